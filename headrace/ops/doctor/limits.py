"""The limits on how long the checks wait for servers."""

from __future__ import annotations

#: Seconds in which the brokers have to answer one check.
TIMEOUT = 15.0

#: How often a question is asked, and the seconds between: a new cluster makes the topic for its
#: groups' offsets only when it is first asked for one, and that takes a busy broker some time.
TRIES, PAUSE = 4, 2.5

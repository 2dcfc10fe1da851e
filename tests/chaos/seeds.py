"""The seeds that chaos tests draw their schedules from."""

from __future__ import annotations

#: One whose minute has every kind of fault, found by drawing.
MINUTE = 7

#: Those whose five minutes once showed a fault of ours.
FOUND_BUGS = (2, 12)

#: Of runs of counts by key whose state has copies: one as good as any other.
STANDBYS = (1,)

#: Of runs of a topology: one as good as any other.
TOPOLOGY = (1,)

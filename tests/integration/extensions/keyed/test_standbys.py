"""Members with copies of one another's state: hand-over, and take-over of what was killed."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.daemon.rig import WAIT
from tests.integration.extensions.keyed.test_daemon import (
    SPARK_WAIT,
    arrived,
    facts,
    keyed,
    produce,
    require_exact,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.daemon.rig import Daemon, Site


def members(site: Site, output: str, names: str, **state: Any) -> dict[str, Daemon]:
    """Return daemons, each with a store of its own, whose channel counts by key."""
    document = site.document(**keyed(site, output, state=state))
    document["zookeeper"]["session_timeout"] = "6s"
    return {name: site.daemon({**document, "instance_id": name}) for name in names}


def eventually(condition: Callable[[], object], *daemons: Daemon) -> None:
    """Wait until something holds."""
    said = "\n".join(daemon.text()[-6000:] for daemon in daemons)
    assert wait_for(condition, Deadline.after(SPARK_WAIT)), said


def claimed(daemon: Daemon) -> set[int]:
    """Return the partitions that a daemon has, as its log says."""
    found: set[int] = set()
    for event in daemon.events():
        if event["event"] == "partition_claimed":
            found.add(event["partition"])
        elif event["event"] in {"claim_released", "claim_ended"}:
            found.discard(event["partition"])
    return found


def lag(daemon: Daemon, number: int) -> float | None:
    """Return how far the copy of a partition is behind."""
    return daemon.metric("headrace_keyed_standby_lag", channel="main", partition=str(number))


def starts(daemon: Daemon, event: str) -> dict[int, tuple[int, int]]:
    """Return from where, and to where, changelogs were read for a reason."""
    found = [each for each in daemon.events() if each["event"] == event]
    return {each["partition"]: (each["start"], each["end"]) for each in found}


@pytest.mark.timeout(400)
def test_a_standby_takes_over_from_a_killed_owner(site: Site) -> None:
    """It goes on from its copy, not from the beginning of the changelog, and each fact counts once.

    The second member is given a live task only once it is warm for it.
    """
    output = site.broker.create_topic(2)
    daemons = members(site, output, "ab", standbys=1)
    first, second = daemons["a"].start(), daemons["b"]
    sent = facts(200, 1)
    produce(site, sent)
    arrived(site, first, output, 200)
    second.start()
    eventually(lambda: len(claimed(second)) == len(claimed(first)) == 1, first, second)
    (handed,), (kept,) = claimed(second), claimed(first)
    events = [(each["event"], each.get("partition")) for each in second.events()]
    assert events.index(("standby_started", handed)) < events.index(("partition_claimed", handed))
    more = facts(200, 2)
    produce(site, more)
    arrived(site, second, output, 400)
    eventually(lambda: lag(second, kept) == 0 and lag(first, handed) == 0, first, second)
    first.signal(signal.SIGKILL)
    first.wait()
    last = facts(100, 3)
    produce(site, last)
    arrived(site, second, output, 500)
    assert claimed(second) == {kept, handed}
    followed = starts(second, "standby_started")[kept]
    # what is left are marks of transactions, of which a read sees none
    start, end = starts(second, "restore_started").get(kept, (followed[1], 0))
    assert start >= followed[1] > 0
    assert end <= start + 3
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    require_exact(site, output, [*sent, *more, *last])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_fact_counts_once_while_owners_and_standbys_are_killed(site: Site, seed: int) -> None:
    """Three members with a standby each; one after the other is killed and comes back."""
    random = Random(seed)
    output = site.broker.create_topic(2)
    daemons = members(site, output, "abc", standbys=1)
    for daemon in daemons.values():
        daemon.start()
    for daemon in daemons.values():
        daemon.wait_event("controller_started", WAIT)
    sent: list[tuple[int, bytes]] = []
    for turn in range(6):
        more = facts(150, 100 * seed + turn)
        produce(site, more)
        sent += more
        name = random.choice("abc")
        if random.random() < 0.5:
            # in the middle of that, or after it
            arrived(site, daemons[name], output, len(sent) - random.randrange(150))
        daemons[name].signal(signal.SIGKILL)
        daemons[name].wait()
        daemons[name].start()
    arrived(site, daemons["a"], output, len(sent))
    for daemon in daemons.values():
        # the last one to be started may have had no part in it
        daemon.wait_event("controller_started", WAIT)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    require_exact(site, output, sent)

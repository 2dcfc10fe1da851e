from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

QUICK = {"backoff": "1ms", "max_backoff": "10ms"}


def _fill(site: Site) -> None:
    site.broker.produce(site.partition(0), b"a", b"b", b"poison", b"c")
    site.broker.produce(site.partition(1), b"x", b"y")


def test_poison_is_skipped_and_counted(site: Site) -> None:
    """With skip, one record is given up after max_attempts; everything else is delivered once."""
    _fill(site)
    daemon = site.run("refuse_poison", on_error={"policy": "skip", "max_attempts": 3, **QUICK})
    eventually(lambda: site.offsets() == [4, 2])
    assert sorted(site.seen()) == ["a", "b", "c", "x", "y"]
    skipped = daemon.wait_event("batch_skipped")
    assert (skipped["first_offset"], skipped["records"], skipped["attempts"]) == (2, 1, 3)
    where = {"channel": "main", "topic": site.topic, "reason": "failed"}
    assert daemon.metric("headrace_skipped_records_total", **where) == 1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_poison_may_stop_the_channel(site: Site) -> None:
    """With stop, the process ends with exit 4, committed up to the record and not past it."""
    _fill(site)
    daemon = site.run("refuse_poison", on_error={"policy": "stop", "max_attempts": 2, **QUICK})
    assert daemon.wait() == 4
    assert "cannot decode this" in daemon.wait_event("channel_failed")["error"]
    assert site.offsets()[0] == 2
    assert site.nodes() == []


def test_poison_holds_up_its_own_partition_only(site: Site) -> None:
    """With retry, the others run on, and the stop is in order and commits nothing past it."""
    _fill(site)
    daemon = site.run("refuse_poison", on_error={"policy": "retry", **QUICK})
    eventually(lambda: site.offsets() == [2, 2])
    site.broker.produce(site.partition(1), b"z")
    eventually(lambda: site.offsets() == [2, 3])
    assert sorted(site.seen()) == ["a", "b", "x", "y", "z"]
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert site.offsets() == [2, 3]

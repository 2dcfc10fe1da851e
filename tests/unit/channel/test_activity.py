"""The activity that a partition reports."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace.channel.partition import RunningCallback
from headrace.channel.status import snapshot_of
from headrace.testing.channel import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition


def test_a_callback_that_began_just_now_runs_for_no_time(
    own: Callable[..., OwnedPartition],
) -> None:
    """A callback that began after the clock was read does not run for a negative time."""
    owned = own()
    owned.hold.callback = RunningCallback(100.5, get_ident())
    assert snapshot_of("main", owned, FakeClock(100.0)).callback_seconds == 0.0
    assert snapshot_of("main", owned, FakeClock(102.0)).callback_seconds == 1.5


def test_a_partition_is_held_back_until_its_time_has_come(
    own: Callable[..., OwnedPartition],
) -> None:
    """The rest of a back-off is told; what is over, or has no end, is none."""
    owned = own()
    for not_before, rest in ((110.0, 10.0), (90.0, None), (float("inf"), None)):
        owned.retries.not_before = not_before
        assert snapshot_of("main", owned, FakeClock(100.0)).held_back_seconds == rest

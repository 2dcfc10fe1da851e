"""Samples of the last hour."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from headrace.ops.admin.history import INTERVAL, KEPT, Rates
from headrace.telemetry.logs.recent import keep
from headrace.telemetry.metrics import Summary
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.unit.ops.admin.scene import Scene


def _sampled(scene: Scene, clock: FakeClock, times: int) -> Rates:
    rates = Rates(scene.controller, clock)
    for _ in range(times):
        rates.sample()
        clock.advance(INTERVAL)
    return rates


def test_a_point_has_what_was_done_since_the_one_before(scene: Scene) -> None:
    """Records, batches and the time of each stage are differences, divided by the time."""
    clock, metrics = FakeClock(), scene.controller.metrics
    rates = Rates(scene.controller, clock)
    rates.sample()
    metrics.records.labels("member", "events").inc(50)
    metrics.batches.labels("member", "events", "answered").inc(10)
    metrics.stage_seconds.labels("member", "reduce").observe(2.5)
    clock.advance(INTERVAL)
    rates.sample()
    (point,) = rates.history()["member"]
    assert (point.records_per_s, point.batches_per_s) == (10.0, 2.0)
    assert point.busy["reduce"] == 0.5
    done = Summary(metrics).channel("member")
    stages = {stage.stage: stage for stage in rates.stages("member", done)}
    assert (stages["reduce"].per_s, stages["reduce"].mean_s) == (0.2, 2.5)


def test_an_hour_is_kept_and_no_more(scene: Scene) -> None:
    """The oldest samples give way."""
    rates = _sampled(scene, FakeClock(), KEPT + 50)
    assert len(rates.history()["member"]) == KEPT - 1


def test_only_new_points_are_sent_after_a_time(scene: Scene) -> None:
    """The answer begins after the point of that time."""
    clock = FakeClock()
    scene.rate_by(clock)
    for _ in range(4):
        scene.rates.sample()
        clock.advance(INTERVAL)
    points = scene.get("/api/v1/history").json()["channels"]["member"]
    assert len(points) == 3
    later = scene.client.get("/api/v1/history", params={"after": points[1]["at"]}).json()
    assert later["channels"]["member"] == points[2:]
    step = datetime.fromisoformat(points[1]["at"]) - datetime.fromisoformat(points[0]["at"])
    assert step == timedelta(seconds=INTERVAL)


def test_a_time_without_a_zone_is_refused(scene: Scene) -> None:
    """It would be compared with another clock's."""
    answer = scene.client.get("/api/v1/history", params={"after": "2026-01-01T00:00:00"})
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_request")


def test_threads_time_is_told_in_parts(scene: Scene) -> None:
    """Each role's parts make a whole."""
    rates = _sampled(scene, FakeClock(), 1)
    done = Summary(scene.controller.metrics).channel("member")
    parts = rates.threads("member", done)
    assert parts.keys() == {ThreadRole.FETCHER, ThreadRole.WORKER, ThreadRole.COMMITTER}
    assert ThreadActivity.IDLE in parts[ThreadRole.WORKER]
    assert 0.99 < sum(parts[ThreadRole.WORKER].values()) < 1.01


def test_a_channel_that_is_gone_leaves_nothing(scene: Scene) -> None:
    """Samples of a removed channel are removed too."""
    clock = FakeClock()
    rates = _sampled(scene, clock, 2)
    del scene.controller.channels["member"]
    rates.sample()
    assert rates.history() == {}


def test_recent_events_are_served_with_the_process_they_are_of(scene: Scene) -> None:
    """The answer has the process and the events after the given number."""
    keep(None, "warning", {"event": "commit_failed", "channel": "member", "epoch": 4})
    found = scene.get("/api/v1/events").json()
    last = found["events"][-1]
    assert (last["event"], last["level"], last["subject"]) == ("commit_failed", "warning", "work")
    assert last["fields"] == {"channel": "member", "epoch": 4}
    rest = scene.client.get("/api/v1/events", params={"after": last["number"]}).json()
    assert (rest["events"], rest["pid"]) == ([], found["pid"])


def _partition(number: int, lag: int | None, epoch: int = 1) -> Any:
    return SimpleNamespace(
        channel="member",
        topic="events",
        partition=number,
        epoch=epoch,
        position=0,
        lag_records=lag,
        lag_seconds=None,
        paused=False,
    )


def _held(scene: Scene, moments: Iterable[Sequence[Any]]) -> Rates:
    """Return samples of a channel that holds these partitions at one moment after the other."""
    clock, channel = FakeClock(), MagicMock()
    scene.controller.channels["member"] = channel
    rates = Rates(scene.controller, clock)
    for partitions in moments:
        channel.partitions.return_value = partitions
        rates.sample()
        clock.advance(INTERVAL)
    return rates


def _lags(scene: Scene, lags: list[int]) -> Rates:
    return _held(scene, ([_partition(0, lag)] for lag in lags))


def test_a_lag_that_falls_says_when_it_is_gone(scene: Scene) -> None:
    """From 200,000 to 19,000 in five minutes, with a burst in between: half a minute is left."""
    lags = [200_000 - 3068 * n + (9000 if n == 40 else 0) for n in range(60)]
    trend = _lags(scene, lags).trend("member", lags[-1], 700.0)
    assert -640 < trend.per_s < -590
    assert trend.catch_up is not None
    assert 28 < trend.catch_up < 34


@pytest.mark.parametrize(
    ("lags", "lag", "rate", "catch_up"),
    [
        ([10_000 + 50 * n for n in range(60)], 12_950, 100.0, None),
        ([500] * 60, 500, 100.0, None),
        ([500] * 60, 500, 900.0, 0.0),
        ([], 500, 100.0, None),
        ([7], 0, 0.0, 0.0),
    ],
)
def test_a_lag_that_does_not_fall_has_no_end(
    scene: Scene, lags: list[int], lag: int, rate: float, catch_up: float | None
) -> None:
    """It rises or rests; what a second of records is under way counts as caught up."""
    assert _lags(scene, lags).trend("member", lag, rate).catch_up == catch_up


def test_partitions_that_come_and_go_do_not_turn_a_trend(scene: Scene) -> None:
    """The lag that they have when they are claimed, or known of, is no falling back."""
    lags = [60_000 - 500 * n for n in range(30)]
    started = [[], [_partition(0, None)], *([_partition(0, lag)] for lag in lags[:14])]
    shared = ([_partition(0, lag), _partition(1, 90_000 + lag)] for lag in lags[14:20])
    again = ([_partition(0, lag, epoch=2)] for lag in lags[20:])
    trend = _held(scene, [*started, *shared, *again]).trend("member", lags[-1], 100.0)
    assert -200 < trend.per_s < -90
    assert trend.catch_up is not None
    assert 200 < trend.catch_up < 500

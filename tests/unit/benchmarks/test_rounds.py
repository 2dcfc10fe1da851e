"""Rounds that say something, and results that are worth keeping."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks import pipeline, spark
from benchmarks.__main__ import main
from benchmarks.report import Report, not_repeated
from benchmarks.rounds import Measured, Rounds, ShortRoundError, alternate, warmed
from benchmarks.scale.run import Plan, _with_daemons, _with_workers
from benchmarks.stack import Topic

if TYPE_CHECKING:
    from benchmarks.scale.used import Usage
    from headrace.devstack import LocalStack

_SIDES = ("value", "reference", "channel", "streaming", "tuned")


def _takes(seconds: float) -> Measured:
    return {"seconds": seconds, "rate": 10}


def test_a_short_round_is_refused_by_the_name_of_its_side() -> None:
    """Three seconds, unless the plan says otherwise; one that does not count may be shorter."""
    sides = {"raw": lambda: _takes(3.0), "channel": lambda: _takes(2.9)}
    with pytest.raises(ShortRoundError, match=r"a round of channel took 2\.9 s, which"):
        alternate(sides, 1, say=lambda _: None)
    warm = alternate(sides, 1, say=lambda _: None, shortest=0.0)
    assert warm.values("channel", "seconds") == [2.9]


def test_a_result_is_repeated_within_the_spread_of_its_rounds() -> None:
    """The middle of the second run counts, whatever a figure that has rounds is called."""
    first = Report("some", {"rate": 9}, {"ratio": [0.9, 1.1, 1.0], "leave_s": [2.0, 2.2]})
    same = Report("some", {"rate": 1}, {"ratio": [1.05, 5.0, 0.1], "leave_s": [2.1]})
    assert not_repeated(first, same) == []
    other = Report("some", {"rate": 9}, {"ratio": [0.18, 0.19, 1.0], "leave_s": [2.1]})
    (said,) = not_repeated(first, other)
    assert said == "ratio was 0.9, 1.1, 1, and 0.19 in the middle of a second run"


def test_a_figure_without_a_counterpart_is_not_repeated() -> None:
    """A second run that lacks a figure, and a first one that has none, keep nothing."""
    first = Report("some", {}, {"ratio": [1.0]})
    assert not_repeated(first, Report("some", {})) == ["ratio is missing in the second run"]
    assert not_repeated(Report("some", {"ratio": 1.0}), first) == [
        "some has no figure round by round, so that nothing can be compared"
    ]


@pytest.mark.parametrize("name", ["scale", "memory", "endurance", "chaos", "soak"])
def test_a_benchmark_without_rounds_is_not_run_twice(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no spread that a second run could stay within, which is said before the first."""
    monkeypatch.setattr("sys.argv", ["benchmarks", name, "--twice"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert f"--twice: {name} has no rounds" in capsys.readouterr().err


def test_each_figure_of_a_comparison_is_compared() -> None:
    """Figures of rates and of times are compared, as the reports begin with them."""
    rates = Rounds({side: [{"rate": 2.0, "batches_per_second": 1.0}] for side in _SIDES})
    steady = Rounds({side: [{"p50": 1.0, "p99": 2.0}] for side in ("value", "streaming")})
    loads = {"100k": rates, "1k": rates}
    assert sorted(pipeline.by_round(loads, steady)) == [
        "batch_ratio_1k",
        "latency_p50_ratio",
        "latency_p99_ratio",
        "reference_ratio_100k",
        "value_ratio_100k",
    ]
    targets = {load.ratio for load in spark.Plan().loads}
    found = spark.by_round(spark.Plan(), {load.name: rates for load in spark.Plan().loads})
    assert {*found} == targets | {f"tuned_{name}" for name in targets}


@pytest.mark.parametrize("kind", ["daemons", "workers"])
def test_scale_refuses_short_rounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names daemons or workers, their number, and the seconds."""
    servers, usage = cast("LocalStack", None), cast("Usage", None)
    scale = sys.modules[Plan.__module__]
    monkeypatch.setattr(scale, "_topic", lambda *_: Topic("topic", 10, 0, {}))
    monkeypatch.setattr(scale, "read_together", lambda *_: _takes(2.9))
    monkeypatch.setattr(scale, "reduce_on", lambda *_, **__: {4: _takes(2.9)})
    measure = _with_daemons if kind == "daemons" else _with_workers
    with pytest.raises(ShortRoundError, match=rf"a round of 2 {kind}, 4 partitions took 2\.9 s"):
        measure(servers, Plan(), usage, 2)
    plan = Plan(partitions=(4,), spark_partitions=(4,), shortest=0.0)
    assert measure(servers, plan, usage, 2) == {"4": _takes(2.9)}


def test_a_side_is_warm_after_rounds_in_a_row_that_are_no_faster() -> None:
    """One round that is no faster is not enough where two are asked for; a faster one counts."""
    rates = iter([10, 10, 20, 20, 40, 41, 41, 80])
    topic = warmed(
        "jvm",
        lambda _: {"seconds": 9.0, "rate": next(rates)},
        lambda _: Topic("some", 100, 0, {}),
        SimpleNamespace(probe=100, most=100, seconds=6.0, shortest=3.0),
        warm_ups=8,
        say=lambda _: None,
        steady=2,
    )
    assert topic.records == 100
    assert list(rates) == [80]

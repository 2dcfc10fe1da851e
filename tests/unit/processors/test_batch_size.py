"""Micro-batches that go towards a target duration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.processors.pending import AdaptiveSize, MergeLimits
from tests.unit.processors.spark_bench import Bench


@given(
    fixed=st.floats(0.0, 0.4),
    per_record=st.floats(1e-6, 1e-3),
    target=st.floats(0.5, 5.0),
    start=st.integers(1_000, 100_000),
)
def test_the_size_goes_where_the_target_is_met(
    fixed: float, per_record: float, target: float, start: int
) -> None:
    """Full micro-batches reach the target or a bound, for any cost of jobs and records."""
    size = AdaptiveSize(100_000, target)
    size.records = start
    for _ in range(60):
        size.took(size.records, fixed + per_record * size.records)

    seconds = fixed + per_record * size.records
    at_a_bound = (size.records == 100_000 and seconds <= target * 1.01) or size.records == 1_000
    assert at_a_bound or abs(seconds - target) < 0.1 * target


def test_small_micro_batches_say_nothing_of_large_ones() -> None:
    """A quick one that was not full does not raise the limit, and a slow one lowers it."""
    size = AdaptiveSize(100_000, 1.0)
    size.records = 10_000

    size.took(100, 0.01)
    assert size.records == 10_000
    size.took(100, 2.0)
    assert size.records == 1_000


def test_one_slow_micro_batch_halves_the_size_at_most() -> None:
    """A pause of the machine is not taken for what the records cost."""
    size = AdaptiveSize(100_000, 1.0)
    size.took(100_000, 60.0)
    assert size.records == 50_000


def test_without_a_target_the_limit_stands() -> None:
    """The limit stays as configured."""
    size = AdaptiveSize(100_000, None)
    size.took(100_000, 60.0)
    assert size.records == 100_000


@pytest.mark.parametrize(
    ("most", "target", "records"),
    [(40_000, 1.0, 40_000), (100_000, 1.0, 50_000), (70_000, None, 70_000)],
)
def test_other_bounds_go_on_from_the_size(most: int, target: float | None, records: int) -> None:
    """A changed configuration counts at once, and what was learnt is kept."""
    size = AdaptiveSize(100_000, 1.0)
    size.took(100_000, 60.0)
    assert size.resized(most, target).records == records


def test_a_slow_micro_batch_is_followed_by_a_smaller_one() -> None:
    """Batches are merged up to the limit that the last job led to, and never cut."""
    bench = Bench(MergeLimits(max_records=40, target=1e-9))
    for number in range(4):
        bench.send(number)
    bench.run_once()
    for number in range(4):
        bench.send(number, 10)
    bench.run_once()

    assert [job.records for job in bench.engine.jobs] == [40, 40]

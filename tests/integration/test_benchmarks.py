"""The benchmarks at sizes that measure nothing: their machinery and its own checks."""

from __future__ import annotations

import json

import pytest

from benchmarks import coordination, memory, passthrough, spark

_MIB = 1 << 20


def test_passthrough_reads_the_same_on_both_sides() -> None:
    """The raw loop and the channel read all records and agree on counts and last offsets."""
    plan = passthrough.Plan(rounds=1, seconds=0.1, probe=20_000, partitions=2)
    figures = json.loads(passthrough.run(plan).as_json())
    assert figures["records"] >= plan.probe
    assert len(figures["ratios"]) == plan.rounds
    assert figures["ratio_to_raw"] > 0
    assert min(figures["commits_per_round"]) >= plan.partitions


def test_spark_counts_the_same_rows_on_both_sides() -> None:
    """The channel and Structured Streaming count every row, in micro-batches of one size."""
    load = spark.Load("tiny", 500, 5_000, "batches_per_second", "ratio", 1.0)
    plan = spark.Plan(
        loads=(load,), rounds=1, partitions=2, warm_up=1, master="local[1]", sizes_differ=1
    )
    figures = json.loads(spark.run(plan).as_json())
    assert figures["records_tiny"] == load.records
    assert len(figures["ratios_tiny"]) == plan.rounds
    assert figures["ratio"] > 0


def test_memory_watches_a_daemon_that_takes_nothing() -> None:
    """A backlog larger than the budget makes the daemon grow, and its growth is reported."""
    plan = memory.Plan(
        processors=("custom",), sizes=(1024,), budget=16 * _MIB, backlog=2, quiet=1.0
    )
    figures = json.loads(memory.run(plan).as_json())
    assert figures["custom_1024"]["peak_mib"] > figures["custom_1024"]["idle_mib"]
    assert figures["worst_of_budget"] == figures["custom_1024"]["of_budget"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_coordination_goes_through_every_kind_of_change() -> None:
    """Members join, are killed, come back and leave, and no partition moves without need."""
    plan = coordination.Plan(rounds=1, partitions=4, sizes=(4, 8))
    figures = json.loads(coordination.run(plan).as_json())
    assert figures["moves_over_minimum"] == 0
    assert figures["threads_growth"] == 0
    assert all(figures[name] > 0 for name in ("join_stable_s", "restart_takeover_s", "leave_s"))
    assert figures["zk_ops_per_partition"] > 0

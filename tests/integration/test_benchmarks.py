"""The benchmarks at sizes that measure nothing: their machinery and its own checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from benchmarks import (
    coordination,
    endurance,
    memory,
    passthrough,
    pipeline,
    realtime,
    rejects,
    sinks,
    soak,
    spark,
    startup,
)
from benchmarks.keyed import run as keyed
from benchmarks.keyed.run import Plan as KeyedPlan
from benchmarks.keyed.state import StatePlan
from benchmarks.lifecycle import run as lifecycle
from benchmarks.lifecycle.run import Plan as LifecyclePlan
from benchmarks.peers import run as peers
from benchmarks.peers.environments import InstallError
from benchmarks.peers.process import PeerError
from benchmarks.peers.run import Plan as PeersPlan
from benchmarks.scale import run as scale
from benchmarks.scale.run import Plan as ScalePlan
from benchmarks.streams import run as streams
from benchmarks.streams.restart import RestartPlan
from benchmarks.streams.run import Plan as StreamsPlan
from benchmarks.workflow import run as workflow
from benchmarks.workflow.run import QUICK
from benchmarks.workflow.sides import redis_program
from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from benchmarks.report import Report

_MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_passthrough_reads_the_same_on_both_sides() -> None:
    """The raw loop and the channel read all records and agree on counts and last offsets."""
    plan = passthrough.Plan(rounds=1, seconds=0.1, shortest=0.0, probe=20_000, partitions=2)
    figures = json.loads(passthrough.run(plan).as_json())
    assert figures["records"] >= plan.probe
    assert len(figures["ratios"]) == plan.rounds
    assert figures["ratio_to_raw"] > 0
    assert min(figures["commits_per_round"]) >= plan.partitions


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_counts_the_same_rows_on_both_sides() -> None:
    """The channel and Structured Streaming count every row, in micro-batches of one size."""
    load = spark.Load("tiny", 500, 5_000, "batches_per_second", "ratio", 1.0)
    plan = spark.Plan(
        loads=(load,),
        rounds=1,
        partitions=2,
        warm_up=1,
        master="local[1]",
        sizes_differ=1,
        shortest=0.0,
    )
    figures = json.loads(spark.run(plan).as_json())
    assert figures["records_tiny"] == load.records
    assert len(figures["ratios_tiny"]) == plan.rounds
    assert figures["ratio"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rejects_are_answered_for_on_all_sides() -> None:
    """Each malformed record is skipped, or in the dead-letter topic, without Spark and with it."""
    plan = rejects.Plan(
        rounds=1,
        records=3_000,
        micro_batch=500,
        partitions=2,
        master="local[1]",
        warm_up=1,
        shortest=0.0,
    )
    figures = json.loads(rejects.run(plan).as_json())
    assert figures["malformed"] == 90
    assert figures["dead_letter_over_skip"] == max(figures["arrow_ratio"], figures["spark_ratio"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sinks_have_the_same_rows_on_both_sides() -> None:
    """Appended and upserted, by COPY and bound: the table has all rows, and both took time."""
    plan = sinks.Plan(rounds=1, rows=2_000, commit=700, shortest=0.0)
    figures = json.loads(sinks.run(plan).as_json())
    assert figures["rows"] == plan.rows
    for mode in ("append", "upsert"):
        assert len(figures[f"{mode}_ratios"]) == plan.rounds
        assert figures[f"{mode}_bound_own"][0] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pipeline_stores_the_same_rows_on_all_sides() -> None:
    """Tables by value, by reference and of Structured Streaming add up; latencies are found."""
    load = spark.Load("1k", 500, 5_000, "batches_per_second", "", 0.0)
    steady = pipeline.Steady(rate=200, seconds=6.0, warm_up=1.0)
    plan = pipeline.Plan(
        loads=(load,),
        steady=steady,
        rounds=1,
        partitions=2,
        warm_up=1,
        master="local[1]",
        commits=200,
        sizes_differ=1,
        shortest=0.0,
    )
    figures = json.loads(pipeline.run(plan).as_json())
    assert figures["batch_ratio_1k"] > 0
    assert figures["latency_p50_ratio"] > 0
    assert figures["delta_commit_growth"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_realtime_forwards_each_record_on_all_sides() -> None:
    """Real-time mode, micro-batches and both channels put every record into the other topic."""
    steady = pipeline.Steady(rate=200, seconds=8.0, warm_up=2.0)
    plan = realtime.Plan(steady=steady, rounds=1, partitions=2, warm_up=1)
    figures = json.loads(realtime.run(plan).as_json())
    for side in ("realtime", "streaming", "spark", "arrow"):
        (p50,), (p99,) = figures[f"{side}_p50_s"], figures[f"{side}_p99_s"]
        assert 0 < p50 <= p99
    assert figures["spark_over_streaming_p50"] > 0


def _started_with(mark: str) -> list[int]:
    """Return the processes that have a variable of their environment so."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are looked for there"
)
def test_one_that_is_ended_leaves_no_process(tmp_path: Path) -> None:
    """SIGTERM in the midst of a round ends the servers and both sides' processes as well."""
    name, value = "HEADRACE_MARK", uuid4().hex
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "passthrough"],
            env={**os.environ, name: value},
            stdout=log,
            stderr=log,
        )
    try:
        assert wait_for(
            lambda: b"warm-up" in (tmp_path / "log").read_bytes(), Deadline.after(120)
        ), (tmp_path / "log").read_text()
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    finally:
        running.kill()
    mark = f"{name}={value}"
    assert wait_for(lambda: not _started_with(mark), Deadline.after(20)), _started_with(mark)


@pytest.mark.slow
def test_startup_starts_commands_and_a_daemon() -> None:
    """Each takes processor time, more than an empty Python, and the daemon says it is ready."""
    figures = json.loads(startup.run(startup.Plan(rounds=1)).as_json())
    assert figures["python_s"] > 0
    assert all(figures[f"{name}_over_python"] > 1 for name in ("help", "import", "health"))
    assert figures["simple_ready_s"] > 0
    assert figures["simple_ready_processor_s"] > figures["python_s"]


@pytest.mark.slow
def test_memory_watches_a_daemon_that_takes_nothing() -> None:
    """A backlog larger than the budget makes the daemon grow, and its growth is reported."""
    plan = memory.Plan(
        processors=("custom",), sizes=(1024,), budget=16 * _MIB, backlog=2, quiet=1.0
    )
    figures = json.loads(memory.run(plan).as_json())
    assert figures["custom_1024"]["peak_mib"] > figures["custom_1024"]["idle_mib"]
    assert figures["worst_of_budget"] == figures["custom_1024"]["of_budget"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_coordination_goes_through_every_kind_of_change() -> None:
    """Members join, are killed, come back and leave, and no partition moves without need."""
    plan = coordination.Plan(rounds=1, partitions=4, sizes=(4, 8))
    figures = json.loads(coordination.run(plan).as_json())
    assert figures["moves_over_minimum"] == 0
    assert figures["threads_growth"] == 0
    assert all(figures[name] > 0 for name in ("join_stable_s", "restart_takeover_s", "leave_s"))
    assert figures["zk_ops_per_partition"] > 0


def _harmless(report: Report) -> Any:
    """Return the figures, of which those that say what went wrong are 0."""
    figures = json.loads(report.as_json())
    assert figures["failures"] == []
    assert figures["complete"]
    assert (figures["lost"], figures["duplicates"], figures["bad_exits"]) == (0, 0, 0)
    assert figures["records"] > 0
    return figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lifecycle_measures_and_operates_without_harm() -> None:
    """One round of each measurement, and each kind of operation once."""
    plan = LifecyclePlan(rounds=1, stops=1, operations=17)
    figures = _harmless(lifecycle(plan=plan))
    assert figures["operations"] == plan.operations
    assert (figures["reload_hot_released"], figures["reload_topic_added_released"]) == (0, 0)
    assert figures["ran_while_paused"] == 0
    assert all(figures[name] > 0 for name in ("pause_ack_s", "stop_idle_s", "reload_hot_s"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_soak_watches_a_daemon_and_its_jvm() -> None:
    """Half a minute of operations on a daemon with Spark, and what both processes hold."""
    plan = soak.Plan(minutes=0.5, interval=1.0, gap=0.5, rest=5.0, look=3.0)
    figures = _harmless(soak.run(plan=plan))
    assert figures["operations"] > 0
    assert figures["processes_gone"] == []
    assert min(figures["daemon"]["rss_mib"] + figures["jvm"]["rss_mib"]) > 50
    assert [heap is None or heap > 10 for heap in figures["live_heap_mib"]] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_endurance_looks_twice_at_one_session() -> None:
    """All micro-batches are in the table, and both looks find the same JVM and its memory."""
    plan = endurance.Plan(batches=50, early=10, master="local[1]")
    figures = json.loads(endurance.run(plan).as_json())
    assert figures["generation"] == 1
    assert figures["exits"] == [0]
    early, late = figures["looks"]
    assert plan.early <= early["batches"] <= late["batches"] == plan.batches
    assert figures["batches"] == late["batches"] - early["batches"]
    for look in (early, late):
        assert min(look["jvm_rss_mib"], look["daemon_rss_mib"]) > 50
        assert look["live_heap_mib"] is None or look["live_heap_mib"] > 10
        assert sum(look["temp_files"].values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_peers_read_the_same_as_a_channel() -> None:
    """A bare loop, a channel and two other libraries count and commit the same records."""
    plan = PeersPlan(
        rounds=1, seconds=0.1, shortest=0.0, probe=25_000, most=50_000, ours=("headrace",)
    )
    try:
        report = peers(without=("faststream", "faust", "quix"), plan=plan)
    except InstallError as error:
        if "HASHES" in str(error):
            raise
        pytest.skip(f"no package index, so no peers: {error}")
    figures = json.loads(report.as_json())
    assert figures["left_out"] == ["faststream", "faust", "quix"]
    for work in plan.works:
        sides = [figures[f"{work}_{side}"] for side in ("raw", "headrace", "aiokafka", "arroyo")]
        assert all(side["rate"] > 0 and side["memory_mib"] > 0 for side in sides)
    assert figures["ratio_to_raw"] > 0
    assert figures["json_ratio_to_fastest_peer"] > 0
    assert figures["versions"]["arroyo"]["confluent-kafka"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_keyed_counts_the_same_on_all_sides() -> None:
    """Channels, Kafka Streams and Quix Streams count alike; a killed daemon has its state again."""
    state = StatePlan(
        few=2_000,
        many=20_000,
        touched=100,
        rounds=1,
        restored=(1_500_000, 2_000_000),
        partitions=2,
        kills=1,
    )
    plan = KeyedPlan(
        rounds=1,
        seconds=0.1,
        shortest=0.0,
        probe=25_000,
        warm_ups=2,
        most=25_000,
        partitions=2,
        keys=500,
        state=state,
    )
    try:
        report = keyed(plan=plan)
    except InstallError as error:
        if "HASHES" in str(error):
            raise
        pytest.skip(f"no package index, so no peers: {error}")
    except LocalStackError as error:
        if "pinned" in str(error):
            raise
        pytest.skip(f"Maven Central cannot be reached: {error}")
    figures = json.loads(report.as_json())
    for side in plan.sides:
        assert figures[f"{side}_records_per_s"] > 0
        assert figures[side]["outputs"] >= plan.keys
    assert figures["each"]["outputs"] == figures["each"]["records"]
    assert figures["arrow"]["commits"] > 0
    assert figures["targets"].keys() - figures.keys() == set()
    assert all(figures[name] > 0 for name in figures["targets"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_streams_count_the_same_on_both_sides() -> None:
    """Topologies, Kafka Streams, and others where they do the same, have the same counts."""
    plan = StreamsPlan(
        rounds=1,
        seconds=0.1,
        shortest=0.0,
        probe=25_000,
        warm_ups=1,
        most=25_000,
        partitions=2,
        keys=500,
        kinds=("tumbling", "session", "wordcount", "join", "spark"),
        restart=RestartPlan(keys=200, windows=3, partitions=2, kills=1),
        many=RestartPlan(keys=2_000, windows=1, row=10, partitions=2, kills=0),
    )
    try:
        report = streams(plan)
    except InstallError as error:
        if "HASHES" in str(error):
            raise
        pytest.skip(f"no package index, so no peers: {error}")
    except LocalStackError as error:
        if "pinned" in str(error):
            raise
        pytest.skip(f"Maven Central cannot be reached: {error}")
    figures = json.loads(report.as_json())
    for kind in plan.kinds:
        assert figures[f"{kind}_ratio_to_kafka_streams"] > 0
        assert figures[f"{kind}_records_per_s"] > 0
        assert figures[kind]["headrace"]["outputs"] >= plan.keys
        assert figures[kind]["kafka_streams"]["outputs"] >= plan.keys
        assert figures[kind]["headrace"]["commits"] > 0
    for other in ("quix", "structured_streaming"):
        assert figures["tumbling"][other]["outputs"] >= plan.keys
        assert figures[f"tumbling_ratio_to_{other}"] > 0
    assert figures["restart_first_output_s"] > 0
    assert figures["restarted_memory_mib"] > 0
    assert figures["many_keys_memory_mib"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workflow_has_each_outcome_and_each_effect_on_all_sides() -> None:
    """Every side runs its instances; what is killed costs Headrace no outcome and no effect."""
    without = []
    try:
        redis_program()
    except PeerError:
        without.append("celery")
    try:
        report = workflow(without, plan=QUICK)
    except InstallError as error:
        if "HASHES" in str(error):
            raise
        pytest.skip(f"no package index, so no peers: {error}")
    figures = json.loads(report.as_json())
    for side in {"arrow", "spark", "celery", "temporal", "asyncio"} - set(without):
        assert min(figures[side]["rates"] + figures[side]["p50_ms"]) > 0
        assert figures[f"{side}_killed"]["instances"] == QUICK.kill
    for side in ("arrow", "spark"):
        killed = figures[f"{side}_killed"]
        assert (killed["lost"], killed["wrong"], killed["not_applied"]) == (0, 0, 0)
        assert (killed["outcomes_twice"], killed["applied_twice"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scale_has_daemons_read_all_of_a_topic_together() -> None:
    """One daemon and two read and commit each record once, and their requests are counted."""
    plan = ScalePlan(
        partitions=(8,),
        daemons=(1, 2),
        spark_partitions=(),
        workers=(),
        records=20_000,
        shortest=0.0,
    )
    figures = json.loads(scale(plan).as_json())
    found = [figures["daemons"][number]["8"] for number in ("1", "2")]
    assert all(each["rate"] > 0 and each["threads"] > 0 for each in found)
    assert figures["rest"]["2"]["requests_per_look"] > max(plan.partitions)

"""Random scenarios, written down in Headrace's API."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.extensions.streams.inline.streams_test import OutRecord, StreamsTest
from headrace.extensions.streams.operators import Aggregate
from tests.streams.program import write_topology
from tests.streams.reference import Reference, Row
from tests.streams.scenario import KINDS, scenario


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**9))
def test_any_scenario_has_a_plan(kind: str, seed: int) -> None:
    """It reads the scenario's topics, writes them, and keeps a state for each aggregate."""
    found = scenario(seed, kind)
    topology = write_topology(found)
    plan = topology.plan("shop")
    internal = set(plan.internal_topics)
    read = {topic for channel in plan.channels for topic in channel.topics}
    written = {topic for channel in plan.channels for topic in channel.writes}
    nodes = found["nodes"]
    sources = {n["topic"] for n in nodes if n["op"] in {"stream", "table"} and _is_read(n, nodes)}
    assert read - internal == sources
    assert written - internal == {node["topic"] for node in nodes if node["op"] == "to"}
    aggregates = {node["name"] for node in nodes if node["op"] in {"aggregate", "group_table"}}
    assert aggregates <= {store.name for store in plan.stores}
    assert len(aggregates) == sum(isinstance(each, Aggregate) for each in topology.operators)


def _is_read(node: dict[str, str], nodes: list[dict[str, str]]) -> bool:
    return any(node["name"] in {n.get("of"), n.get("left"), n.get("right")} for n in nodes)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("sliding")])
@settings(max_examples=10)
@example(seed=883)  # a row of a joined table that lost its partner has its own time again
@given(seed=st.integers(0, 10**9))
def test_a_topology_in_this_process_gives_the_outputs_of_the_reference(
    kind: str, seed: int
) -> None:
    """Record by record, each sink has the keys, rows and times that the reference writes."""
    found = scenario(seed, kind)
    assume(not any((n.get("window") or {}).get("kind") == "sliding" for n in found["nodes"]))
    expected: dict[str, list[tuple[str, Row | None, int]]] = {
        node["topic"]: [] for node in found["nodes"] if node["op"] == "to"
    }
    for output in Reference(found).run(found["records"]):
        # a window is in the row, in place of the key
        key = output.key.partition("@")[0]
        expected[output.topic].append((key, output.value, output.time))
    test = StreamsTest(write_topology(found))
    for topic, key, row, time in found["records"]:
        test.pipe(topic, row, key=key, time=time)
    for topic, rows in expected.items():
        assert [(_key(each), _row(each), each.time) for each in test.read(topic)] == rows


def _key(record: OutRecord) -> str:
    assert record.key is not None
    # the key of a withdrawn window has its bounds as well
    return str(json.loads(record.key)[0]) if record.key.startswith("[") else record.key


def _row(record: OutRecord) -> Row | None:
    value = record.value
    if value is None:
        return None
    if "best" in value:
        return Row(value["best"][0], ",".join(map(str, value["best"])))
    # a group of a table that lost all its rows has no sum, and Kafka Streams has 0
    return Row(value["n"] or 0, value["s"])


def test_a_channel_that_reads_what_it_writes_by_key_processes_all_of_it() -> None:
    """Rows by another key that meet their own source's rows again are all written."""
    nodes = [
        {"name": "p", "op": "stream", "topic": "p"},
        {"name": "q", "op": "stream", "topic": "q"},
        {"name": "by-key", "op": "key_by", "of": "p"},
        {"name": "both", "op": "merge", "left": "q", "right": "by-key"},
        {"name": "sources", "op": "merge", "left": "p", "right": "q"},
        {"name": "to-both", "op": "to", "of": "both", "topic": "both"},
        {"name": "to-sources", "op": "to", "of": "sources", "topic": "sources"},
    ]
    test = StreamsTest(write_topology({"nodes": nodes}), batch=2)
    for number in range(3):
        test.pipe("p", {"n": number, "s": "k"}, key="x", time=number)
    assert [(each.key, each.value["n"]) for each in test.read("both")] == [
        ("k", 0),
        ("k", 1),
        ("k", 2),
    ]
    assert len(test.read("sources")) == 3

"""The row-by-row reference of topologies: what Kafka Streams answered, and Headrace's own rules."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.conformance import by_topic, difference, recorded
from tests.streams.reference import HEADRACE, Difference, Reference
from tests.streams.scenario import KINDS, MOST_OPERATORS, in_task_order, scenario

if TYPE_CHECKING:
    from tests.streams.oracle import Answer
    from tests.streams.reference import Output
    from tests.streams.scenario import Scenario

_SEEDS = st.integers(0, 10**9)

_RECORDED = recorded()


@pytest.mark.parametrize(
    ("each", "answer"),
    _RECORDED,
    ids=[f"{each['kind']}-{each['seed']}" for each, _ in _RECORDED],
)
def test_the_reference_gives_kafka_streams_recorded_answers(each: Scenario, answer: Answer) -> None:
    """With all differences on, outputs and stores are those that Kafka Streams had."""
    assert difference(each, answer) is None


def test_each_kind_of_scenario_has_a_recorded_answer() -> None:
    """No kind is left out of the recording, and each of them wrote something."""
    written = Counter[str]()
    for each, answer in _RECORDED:
        written[each["kind"]] += len(answer.outputs)
    assert set(written) == set(KINDS)
    assert min(written.values()) > 0


@given(_SEEDS, st.sampled_from(KINDS))
def test_a_scenario_is_valid_and_the_same_for_the_same_seed(seed: int, kind: str) -> None:
    """A node reads what stands before it; the number of operators is bounded; it is JSON."""
    found = scenario(seed, kind)
    assert json.loads(json.dumps(found)) == found == scenario(seed, kind)
    known: set[str] = set()
    for node in found["nodes"]:
        assert {node[side] for side in ("of", "left", "right") if side in node} <= known
        known.update([node["name"], f"{node['name']}.yes", f"{node['name']}.no"])
    # of each table that is not read, what its results are, is added at the end
    plain = {"stream", "table", "to", "each"}
    operators = [node["op"] for node in found["nodes"] if node["op"] not in plain]
    assert 0 < len(operators) <= MOST_OPERATORS + 1
    topics = [node["topic"] for node in found["nodes"] if node["op"] in {"stream", "table"}]
    assert {record[0] for record in found["records"]} <= set(topics)
    Reference(found).run(found["records"])


@given(_SEEDS)
def test_records_in_task_order_keep_the_order_of_each_topic(seed: int) -> None:
    """The next one is always that with the lowest time of the heads; none is lost."""
    found = scenario(seed, "mixed")
    ordered = in_task_order(found)["records"]
    topics = [node["topic"] for node in found["nodes"] if node["op"] in {"stream", "table"}]
    waiting = {t: [r for r in found["records"] if r[0] == t] for t in topics}
    for record in ordered:
        heads = [rows[0] for rows in waiting.values() if rows]
        assert record == min(heads, key=lambda head: head[3])
        waiting[record[0]].pop(0)
    assert not any(waiting.values())


def _windowed(seed: int, window: str) -> tuple[list[Output], list[Output]]:
    """Return what the first windows of a scenario are told as, each time and when they are over."""
    found = scenario(seed, f"{window}_each")
    nodes = [n for n in found["nodes"] if n["op"] == "stream"][:1]
    aggregate = next(n for n in found["nodes"] if (n.get("window") or {}).get("kind") == window)
    nodes.append({**aggregate, "name": "windows", "of": nodes[0]["name"]})
    for how in ("each", "final"):
        nodes.append({"name": how, "op": how, "of": "windows"})
        nodes.append({"name": f"to-{how}", "op": "to", "of": how, "topic": how})
    records = [r for r in found["records"] if r[0] == nodes[0]["topic"]]
    outputs = Reference({"nodes": nodes}, HEADRACE).run(records)
    return (
        [output for output in outputs if output.topic == "each"],
        [output for output in outputs if output.topic == "final"],
    )


@given(_SEEDS, st.sampled_from(["tumbling", "hopping", "sliding", "session"]))
def test_a_final_result_comes_once_and_is_the_last_one_of_its_window(
    seed: int, window: str
) -> None:
    """No window is final twice or changes later; one that is withdrawn has no final result."""
    each, final = _windowed(seed, window)
    last = {output.key: output for output in each}
    assert len({output.key for output in final}) == len(final)
    for output in final:
        assert last[output.key].value == output.value is not None
        assert last[output.key].time == output.time
        assert last[output.key].index < output.index


def _join(seed: int, how: str, *, late: bool) -> dict[str, Any]:
    """Return the first join of a scenario by itself, with records of a text of their own.

    Without ``late`` none is later than the join's grace.
    """
    found = scenario(seed, f"join_{how}")
    sources = [n for n in found["nodes"] if n["op"] == "stream"][:2]
    join = next(n for n in found["nodes"] if n["op"] == "join")
    join = {**join, "left": sources[0]["name"], "right": sources[1]["name"]}
    nodes = [*sources, join, {"name": "to", "op": "to", "of": join["name"], "topic": "out"}]
    records, latest = [], 0
    for number, (topic, key, row, time) in enumerate(found["records"]):
        if topic in {source["topic"] for source in sources}:
            latest = max(latest, time)
            own = time if late else max(time, latest - join["grace"])
            records.append([topic, key, row and {"n": number, "s": f"r{number}"}, own])
    closing = {"n": 0, "s": "end"}
    records += [[source["topic"], "end", closing, latest + 10**9] for source in sources]
    return {"nodes": nodes, "records": records}


@given(_SEEDS, st.sampled_from(["left", "outer"]), st.booleans())
def test_a_record_of_a_join_is_told_alone_or_with_its_partners(
    seed: int, how: str, late: bool
) -> None:
    """Each record of a side that tells so is once alone or with others, and never both."""
    found = _join(seed, how, late=late)
    told = [
        output.value.s.split("+")
        for output in Reference(found).run(found["records"])
        if output.value is not None
    ]
    sources = [node["topic"] for node in found["nodes"] if node["op"] == "stream"]
    for side, topic in enumerate(sources if how == "outer" else sources[:1]):
        alone = Counter(pair[side] for pair in told if pair[1 - side] == "-")
        paired = {pair[side] for pair in told if "-" not in pair}
        assert not paired & set(alone)
        assert set(alone.values()) <= {1}
        wanted = {row["s"] for name, key, row, _ in found["records"] if row and name == topic}
        assert wanted - {"end"} == (paired | set(alone)) - {"end"}


@given(_SEEDS, st.sampled_from(["left", "outer"]), st.booleans())
def test_records_alone_are_those_of_kafka_streams_and_never_later(
    seed: int, how: str, late: bool
) -> None:
    """Kafka Streams' bound changes when a record is told alone, and nothing else."""
    found = _join(seed, how, late=late)
    ours = by_topic(Reference(found).run(found["records"]))
    rules = frozenset({Difference.LATER_ALONE})
    theirs = by_topic(Reference(found, rules).run(found["records"]))
    told = {output.value: output.index for output in ours}
    assert len(told) == len(ours)
    for output in theirs:
        assert told[output.value] <= output.index
    pairs = [[o for o in side if o.value and "-" not in o.value.s] for side in (ours, theirs)]
    assert pairs[0] == pairs[1]
    assert len(ours) >= len(theirs)

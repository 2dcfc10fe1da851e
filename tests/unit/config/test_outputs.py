from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import diff, keeps_offsets, refuses_late, single_sinks
from headrace.extensions.delta.section import DeltaSinkConfig
from headrace.sinks.sections import NoopSinkConfig, SeveralSinkConfig
from tests.unit.config.support import CHANNELS, channel, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

DELTA = {"type": "delta", "path": "/t"}
SQL = {"type": "sql", "url": "postgresql://u@h/d", "table": "t"}


def several(**outputs: Any) -> dict[str, Any]:
    """Return a sink of these outputs."""
    return {"type": "several", "outputs": outputs}


def test_outputs_are_sinks_by_name() -> None:
    """A bare word is a type there, too; their places in the file are known."""
    sink = channel(sink=several(a=DELTA, b="noop")).sink
    assert isinstance(sink, SeveralSinkConfig)
    assert single_sinks(sink) == {
        ("sink", "outputs", "a"): DeltaSinkConfig(path="/t"),
        ("sink", "outputs", "b"): NoopSinkConfig(),
    }
    assert single_sinks(NoopSinkConfig()) == {("sink",): NoopSinkConfig()}
    assert keeps_offsets(sink)
    assert not keeps_offsets(channel(sink=several(b="noop")).sink)


def test_outputs_refuse_late_facts_only_together() -> None:
    """An output without offsets is written before the others could refuse."""
    assert refuses_late(channel(sink=several(a=DELTA, b=SQL)).sink)
    assert not refuses_late(channel(sink=several(a=DELTA, b="noop")).sink)
    assert refuses_late(channel(sink=DELTA).sink)
    assert not refuses_late(channel(sink="noop").sink)
    assert not refuses_late(None)


def test_a_change_in_an_output_is_one_of_that_output() -> None:
    """The path of the change names the output."""
    before, after = (channel(sink=several(a=DELTA, b=each)) for each in ("noop", "console"))
    (change,) = diff(before, after)
    assert change.path == "sink.outputs.b"
    (change,) = diff(before, channel(sink=several(a=DELTA)))
    assert change.path == "sink.outputs.b"


@pytest.mark.parametrize(
    ("one", "other", "is_refused"),
    [
        (DELTA, DELTA | {"partition_by": ["x"]}, True),
        (DELTA, DELTA | {"path": "/u"}, False),
        (SQL, SQL | {"mode": "upsert", "key": ["x"]}, True),
        (SQL, SQL | {"table": "u"}, False),
        ({"type": "kafka", "topic": "x"}, {"type": "kafka", "topic": "x"}, False),
        ({"type": "custom", "factory": "a:b"}, {"type": "custom", "factory": "a:b"}, True),
    ],
)
def test_two_outputs_do_not_go_to_one_place(
    one: dict[str, Any], other: dict[str, Any], is_refused: bool
) -> None:
    """Each would take the other's offsets for its own."""
    if is_refused:
        with pytest.raises(ValueError, match="goes where a goes; give it a table of its own"):
            channel(sink=several(a=one, b=other))
    else:
        channel(sink=several(a=one, b=other))


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (
            "{type: several, outputs: {a: noop, b: {type: kafka, topic: flights}}}",
            "channels.flights.sink.outputs.b.topic (line 7): is flights, which the channel reads",
        ),
        (
            "{type: several, outputs: {a: 'x:y'}}",
            "channels.flights.sink.outputs.a.type (line 7): 'function' is not delta, sql, duckdb",
        ),
    ],
)
def test_mistakes_name_the_output(sink: str, problem: str, tmp_path: Path) -> None:
    """The place in the file is that of the output."""
    (found,) = refused(tmp_path, CHANNELS.replace("noop", sink))
    assert found.startswith(problem)


@pytest.mark.parametrize("way", ["sql: select 1", "arrow: 'a:b', result: a INT"])
def test_one_result_does_not_fill_several_outputs(way: str, tmp_path: Path) -> None:
    """A query, and a function that Spark's workers run, make one."""
    text = CHANNELS.replace("noop", "{type: several, outputs: {a: noop}}")
    text = text.replace('reducer: "reducers:reduce"', way)
    (found,) = refused(tmp_path, text)
    assert "makes one result; take a reducer, which returns one for each output" in found


def test_paths_begin_at_the_file(tmp_path: Path) -> None:
    """Relative paths of outputs begin at the file's folder, as for a single sink."""
    text = CHANNELS.replace("noop", "{type: several, outputs: {a: {type: delta, path: t}}}")
    sink = loaded(tmp_path, text).channels["flights"].sink
    assert isinstance(sink, SeveralSinkConfig)
    assert sink.outputs["a"] == DeltaSinkConfig(path=str(tmp_path / "t"))

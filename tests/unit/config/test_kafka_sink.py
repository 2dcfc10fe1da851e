from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.controller.preflight import preflight
from headrace.sinks.sections import KafkaSinkConfig
from tests.unit.config.support import CHANNELS, channel, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

SPARK = {"type": "spark", "reducer": "a:b"}


@pytest.mark.parametrize("fields", [{}, {"topic": None}, {"topic": "late"}])
def test_a_topic_may_be_left_to_the_rows(fields: dict[str, Any]) -> None:
    """Null says so too."""
    sink = channel(processor=SPARK, sink={"type": "kafka", **fields}).sink
    assert sink == KafkaSinkConfig(topic=fields.get("topic"))


def test_results_must_not_come_back(tmp_path: Path) -> None:
    """A topic that the channel reads would be read for ever."""
    text = CHANNELS.replace("noop", "{type: kafka, topic: flights}")
    assert "is flights, which the channel reads, so that each result" in "".join(
        refused(tmp_path, text)
    )


def test_results_may_come_back_where_that_is_said(tmp_path: Path) -> None:
    """A reducer that knows its own results again may write to the topic that it reads."""
    sink = channel(processor=SPARK, sink={"type": "kafka", "topic": "flights", "loop": True}).sink
    assert sink == KafkaSinkConfig(topic="flights", loop=True)
    said = "".join(refused(tmp_path, CHANNELS.replace("noop", "{type: kafka, topic: flights}")))
    assert "write loop: true if the reducer passes over its own" in said


def test_each_partition_gets_a_record_with_the_keyed_processor_only(tmp_path: Path) -> None:
    """Other processors say themselves which partition a row goes to."""
    text = CHANNELS.replace("noop", "{type: kafka, topic: out, to_all: true}")
    said = "".join(refused(tmp_path, text))
    assert "goes with the processor keyed, and this is spark; leave it out" in said


@pytest.mark.parametrize(
    ("sinks", "rejects", "said"),
    [
        (
            "{a: {type: kafka, topic: out, to_all: true}, b: {type: kafka, topic: out}}",
            "{}",
            "is true, and sink.outputs.b would write to out as well",
        ),
        (
            "{a: {type: kafka, topic: out, to_all: true}}",
            "{failing: dead_letter, topic: out}",
            "is true, and rejects would write to out as well",
        ),
    ],
)
def test_a_topic_has_each_record_in_each_partition_or_none(
    tmp_path: Path, sinks: str, rejects: str, said: str
) -> None:
    """Another output to the topic, or rejects, would be copied with it."""
    text = (
        "channels: {c: {topics: t, group: g, processor: {type: keyed, reducer: 'a:b'}, "
        f"rejects: {rejects}, sink: {{type: several, outputs: {sinks}}}}}}}\n"
    )
    assert said in "".join(refused(tmp_path, text))


def test_a_member_has_one_transactional_producer(tmp_path: Path) -> None:
    """The sink's offsets win at a start, so that fencing the group's has no use."""
    text = CHANNELS.replace(
        "sink: noop", "sink: {type: kafka, topic: out}\n    offsets: {fencing: transactions}"
    )
    assert "one transactional producer, which is the Kafka sink's" in "".join(
        refused(tmp_path, text)
    )


REGISTRY = "registry: {url: 'http://r:8081'}\n"


def encoding(rest: str, processor: str = "{type: arrow, reducer: 'a:b'}") -> str:
    """Return a channel whose sink has these keys."""
    return (
        f"channels: {{c: {{topics: t, group: g, processor: {processor}, "
        f"sink: {{type: kafka, topic: out, {rest}}}}}}}\n"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (encoding("encode: avro"), "sink.encode: is avro, whose values name their schemas by ids"),
        (
            REGISTRY + encoding("writer_schema: {id: 1}"),
            "sink.writer_schema: exists only with encode: avro; write that, or leave the key out",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {id: 1, file: f}"),
            "sink.writer_schema.id: is given beside file; give one of them",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {id: 1, register: true}"),
            "sink.writer_schema.register: is for a schema that the registry lacks, and id is of",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {file: f, name: a}"),
            "sink.writer_schema.name: is of a schema that is made of columns, and file has its",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {version: 1}"),
            "sink.writer_schema.version: is of a subject; give subject, or leave it out",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {name: a-b}"),
            "sink.writer_schema.name: 'a-b' is not a name of letters, digits and _, in a",
        ),
        (
            REGISTRY + encoding("encode: protobuf, writer_schema: {message: M}"),
            "sink.writer_schema.message: is of a schema that there is; give file, or name",
        ),
        (
            REGISTRY + encoding("encode: avro, writer_schema: {id: 1, message: M}"),
            "sink.writer_schema.message: exists only with encode: protobuf; leave it out",
        ),
        (
            REGISTRY + encoding("encode: protobuf, writer_schema: {text: a}"),
            "sink.writer_schema.text: is not read of Protobuf; give file, which protoc",
        ),
        (
            REGISTRY + encoding("encode: avro", "{type: keyed, reducer: 'a:b'}"),
            "sink.encode: is avro, which writes columns, and a keyed processor makes values itself",
        ),
    ],
)
def test_mistakes_in_the_form_of_values_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """A sink that cannot write says which key is wrong, and what to write."""
    told = refused(tmp_path, text)
    assert any(problem in each.replace(" (line 1)", "").replace(" (line 2)", "") for each in told)


def test_a_file_that_is_no_schema_to_write_by_is_named_before_the_start(tmp_path: Path) -> None:
    """The check reads it, and says what no column holds."""
    config = loaded(tmp_path, REGISTRY + encoding("encode: avro, writer_schema: {file: it.avsc}"))
    at = ("channels", "c", "sink", "writer_schema", "file")
    ((place, told),) = preflight(config)
    assert place == at
    assert "it.avsc cannot be read" in told
    (tmp_path / "it.avsc").write_text('{"type": "array", "items": "long"}')
    ((place, told),) = preflight(config)
    assert (place, told) == (
        at,
        "is no schema to write by: the schema is array; it must be a record",
    )

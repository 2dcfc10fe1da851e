"""Records by another key: where it is found, what is kept, and what has none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.apps.collector import group_of
from headrace.core.clock import Deadline
from headrace.core.errors import PoisonRecordError, StartError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import TopicPartition
from headrace.core.tables import SCHEMA, left_out
from headrace.extensions.keyed.names import BY_KEY_SETTINGS
from headrace.extensions.keyed.rekey import REKEYED, Rekey, RekeyFunction, RekeySettings
from headrace.extensions.keyed.tables import in_this_thread
from headrace.extensions.keyed.topics import open_by_key
from headrace.kafka.ports import TopicInfo
from headrace.sinks.kafka import prepared
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.kafka.catalog import NewTopic

BATCH = MicroBatch("m", "c", ())


def table(*records: dict[str, Any]) -> pa.Table:
    """Return records of partition 1, with what is given over the least."""
    least = {"topic": "orders", "partition": 1, "timestamp": 1_600_000_000_123_000}
    rows = [{**least, "offset": 7 + at, **each} for at, each in enumerate(records)]
    columns = [[row.get(name) for row in rows] for name in SCHEMA.names]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def value(document: Any) -> dict[str, Any]:
    """Return a record with a JSON value."""
    return {"value": json.dumps(document).encode()}


def rekeyed(
    key: str, *records: dict[str, Any], undecodable: str = "skip", **settings: Any
) -> list[bytes | None]:
    """Return the keys of what records become; None for what is left out."""
    function: Callable[..., Any] | None = settings.pop("function", None)
    made = Rekey(RekeySettings(key, "by-key", undecodable=undecodable, **settings), function)
    result = made(table(*records))
    assert result.schema == REKEYED
    keys: list[bytes | None] = result.column("key").to_pylist()
    return keys


@pytest.mark.parametrize(
    ("customer", "expected"),
    [
        ("c", b"c"),
        ("", b""),
        (12, b"12"),
        (True, b"true"),
        ("ü", "ü".encode()),
        ("[c", b'["[c"]'),
        (["a^b"], b'["a^b"]'),
        (["a", "b"], b'["a","b"]'),
        (None, None),
    ],
)
def test_a_field_of_the_value_is_the_key(customer: Any, expected: bytes | None) -> None:
    """Text is the key as it is, also empty text; other values are JSON; null is no key."""
    assert rekeyed("value.customer.id", value({"customer": {"id": customer}})) == [expected]


@pytest.mark.parametrize("document", [{}, {"customer": None}, {"customer": "c"}, [], "c", 5, None])
def test_a_value_without_the_field_has_no_key(document: Any) -> None:
    """A document that lacks the field, or has another type in its place, has no key."""
    assert rekeyed("value.customer.id", value(document), {"value": None}) == [None, None]


def test_the_last_header_of_a_name_is_the_key() -> None:
    """The last header counts, as for Kafka's own readers; one without a value is no key."""
    twice = [{"key": "t", "value": b"one"}, {"key": "t", "value": b"two"}]
    null = [{"key": "t", "value": None}]
    records: list[dict[str, Any]] = [{"headers": twice}, {"headers": null}, {"headers": []}, {}]
    assert rekeyed("headers.t", *records) == [b"two", None, None, None]


def test_the_records_own_key_is_kept_byte_by_byte() -> None:
    """Re-keying by the record's key changes its partition alone."""
    assert rekeyed("key", {"key": b"\xff["}, {"key": b""}, {}) == [b"\xff[", b"", None]


def test_a_function_gets_the_event() -> None:
    """It sees value, time and place; what it raises is a record without a key."""

    def function(event: Any) -> Any:
        return [event.value["a"], event.ts, event.source, event.partition, event.offset]

    found = rekeyed("m:f", value({"a": 1}), value({}), function=function)
    assert found == [b'[1,1600000000123,"orders",1,7]', None]


def test_the_collectors_events_are_keyed_by_their_group() -> None:
    """``group_of`` is such a function; what belongs to no group has the empty key."""
    create = value({"type": "EventGroupCollectorCreate", "id": "g"})
    done = value({"type": "EventGroupCollectorEntityDone", "id": "e", "group": "g"})
    records = (create, done, value({"type": "other"}))
    for kind in ("json", "bytes"):
        assert rekeyed("headrace.apps.collector:group_of", *records, function=group_of,
                       value=kind) == [b"g", b"g", b""]  # fmt: skip


def test_value_time_and_headers_are_kept() -> None:
    """The produced record is the original with its place in one more header."""
    headers = [{"key": "a", "value": b"b"}, {"key": "n", "value": None}]
    record = {"key": b"k", "value": b"not JSON", "headers": headers}
    made = Rekey(RekeySettings("key", "by-key", value="bytes"))(table(record))
    (row,) = prepared(made, None).to_pylist()
    came_from = {"key": "headrace-from", "value": b"orders/1/7"}
    assert row == {
        "topic": "by-key",
        "key": b"k",
        "value": b"not JSON",
        "timestamp": 1_600_000_000_123,
        "headers": [*headers, came_from],
    }


@pytest.mark.parametrize(
    ("key", "record", "words"),
    [
        ("value.id", value({}), "it has no value.id"),
        ("value.id", {"value": b"{"}, "its value.id cannot be read: JSONDecodeError"),
        ("value.id", value({"id": float("nan")}), "ValueError"),
        ("key", {}, "it has no key"),
    ],
)
def test_a_record_without_a_key_fails_its_batch(
    key: str, record: dict[str, Any], words: str
) -> None:
    """The error names the record and says what is wrong with it."""
    with pytest.raises(PoisonRecordError, match=r"orders-1: record at offset 8: ") as failed:
        rekeyed(key, {"key": b"k", **value({"id": 1})}, record, undecodable="fail")
    assert words in str(failed.value)


def test_a_record_without_a_key_is_a_dead_letter() -> None:
    """It goes to the topic as it was, with the reason and its place; others are not touched."""
    made = Rekey(
        RekeySettings("value.id", "by-key", undecodable="dead_letter", dead_letters="dead")
    )
    good, letter = made(table(value({"id": 1}), {"key": b"k", "value": b"{"})).to_pylist()
    assert (good["topic"], good["key"]) == ("by-key", b"1")
    assert (letter["topic"], letter["key"], letter["value"]) == ("dead", b"k", b"{")
    headers = {each["key"]: each["value"] for each in letter["headers"]}
    assert headers["headrace.topic"] == b"orders"
    assert headers["headrace.offset"] == b"8"
    assert b"cannot be read" in headers["headrace.message"]


def test_a_record_without_a_key_is_left_out_though_others_have_a_topic() -> None:
    """The channel's dead-letter topic gets records that fail, and not those without a key."""
    chosen = RekeySettings("value.id", "by-key", "json", "skip", "dead")
    (found,) = Rekey(chosen)(table(value({}))).to_pylist()
    assert found["topic"] is None


def test_a_record_without_a_key_has_kafka_connects_names_where_that_is_said() -> None:
    """With the error where its value cannot be read, and the reason alone where nothing raised."""
    chosen = RekeySettings(
        "value.id", "by-key", "json", "dead_letter", "dead", LetterHeaders("connect", "group")
    )
    unread, keyless = Rekey(chosen)(table({"value": b"{"}, value({}))).to_pylist()
    for letter, message in ((unread, b"[NOT_JSON] at byte 1: "), (keyless, b"it has no value.id")):
        found = {each["key"]: each["value"] for each in letter["headers"]}
        assert found["__connect.errors.stage"] == b"TRANSFORMATION"
        assert found["__connect.errors.topic"] == b"orders"
        assert message in found["__connect.errors.exception.message"]
        raised = "__connect.errors.exception.stacktrace" in found
        assert raised == (letter is unread)


@pytest.mark.parametrize("tasks", [1, 2, 3, 9])
def test_parts_give_what_the_whole_gives(tasks: int) -> None:
    """Records keep their order for any number of tasks, and skipped ones are reported."""
    records = table(*(value({"id": n} if n % 3 else {}) for n in range(7)))
    function = RekeyFunction(Rekey(RekeySettings("value.id", "by-key", undecodable="skip")))
    sizes: list[int] = []

    def run(rekey: Any, parts: Any) -> list[pa.Table]:
        sizes.extend(part.num_rows for part in parts)
        return in_this_thread(rekey, parts)

    result = function.reduce(records, BATCH, run, tasks)
    assert result.column("key").to_pylist() == [b"1", b"2", b"4", b"5"]
    assert left_out(result) == {TopicPartition("orders", 1): [7, 10, 13]}
    assert len(sizes) <= tasks
    assert sum(sizes) == 7


def test_no_records_give_no_records() -> None:
    """An empty micro-batch is no task, and no error."""
    function = RekeyFunction(Rekey(RekeySettings("key", "by-key")))
    assert function(SCHEMA.empty_table(), BATCH).num_rows == 0


class Topics:
    """A catalog of topics and their settings."""

    def __init__(self, **topics: tuple[int, dict[str, str]]) -> None:
        self.topics = dict(topics)
        self.created: list[NewTopic] = []

    def describe(self, names: Any, deadline: Deadline) -> dict[str, TopicInfo]:  # noqa: ARG002
        """Return what there is of them."""
        known = {name: TopicInfo(name, name, self.topics[name][0]) for name in self.topics}
        return {name: known[name] for name in names if name in known}

    def settings(self, name: str, deadline: Deadline) -> dict[str, str]:  # noqa: ARG002
        """Return a topic's settings."""
        return {"max.message.bytes": "1000", **self.topics[name][1]}

    def create(self, topic: NewTopic, deadline: Deadline) -> bool:  # noqa: ARG002
        """Create a topic."""
        self.created.append(topic)
        self.topics[topic.name] = topic.partitions, dict(topic.settings)
        return True


def opened(catalog: Topics, sources: tuple[str, ...] = ("a",), **settings: Any) -> None:
    """Create the by-key topic."""
    given: Any = catalog
    open_by_key(given, "b", sources, Deadline.after(5), **settings)


def test_the_by_key_topic_has_the_partitions_of_the_input() -> None:
    """It keeps all records and their times, and takes any that the input took."""
    catalog = Topics(a=(3, {"max.message.bytes": "2000000"}), c=(5, {}))
    opened(catalog, ("a", "c"))
    (made,) = catalog.created
    assert (made.name, made.partitions) == ("b", 5)
    assert made.settings.items() >= BY_KEY_SETTINGS.items()
    assert int(made.settings["max.message.bytes"]) > 2_000_000
    opened(catalog)
    assert len(catalog.created) == 1


def test_the_by_key_topic_may_have_other_partitions() -> None:
    """The by-key topic gets the configured number of partitions."""
    catalog = Topics(a=(3, {}))
    opened(catalog, partitions=12)
    assert catalog.topics["b"][0] == 12


@pytest.mark.parametrize(
    ("catalog", "settings", "words"),
    [
        (Topics(a=(1, {})), {"create": False}, "create it with cleanup.policy=delete"),
        (Topics(), {}, "topic a does not exist"),
        (Topics(b=(2, {})), {"partitions": 3}, "has 2 partitions"),
        (Topics(b=(2, {"cleanup.policy": "compact"})), {}, "set it to delete"),
        (Topics(b=(2, {"retention.ms": "604800000"})), {}, "retention.ms=604800000"),
        (Topics(b=(2, {"message.timestamp.type": "LogAppendTime"})), {}, "get another time"),
    ],
)
def test_a_by_key_topic_that_loses_records_is_refused(
    catalog: Topics, settings: dict[str, Any], words: str
) -> None:
    """The start says what is wrong with it, and what to set."""
    with pytest.raises(StartError, match=words):
        opened(catalog, **settings)

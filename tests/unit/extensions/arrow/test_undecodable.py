"""Undecodable records as dead letters: in one pass, in one go, before the rest is stored."""

from __future__ import annotations

import json
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.channel.letter_limits import WINDOW, UndecodableLimits
from headrace.config import ChannelConfig, DeliveredRejects, KafkaConfig
from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError
from headrace.core.letter_headers import code_of, read_letter
from headrace.core.records import Batch
from headrace.devstack.wait import wait_for
from headrace.processors.factory import build_processor
from headrace.sinks.jsonl import JsonLinesSink
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryDeadLetters, in_memory_channel, running
from headrace.testing.records import FakeAssignment, FakeRecord, in_columns
from tests.unit.channel.in_memory import P0, P1, committed, eventually
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from headrace import InboundKafkaChannel
    from headrace.core.records import Record
    from headrace.core.result_columns import ResultColumns
    from headrace.sinks.contract import PartitionCommit
    from headrace.spark import MicroBatch

SCHEMA = "id INT, name STRING"


def ids(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return what was decoded."""
    del batch
    return table.select(["id"])


class CountingLetters(InMemoryDeadLetters):
    """Knows how many letters came in one go."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def store_all(self, letters: ResultColumns, patience: float) -> None:  # noqa: D102 - as there
        before = len(self.letters)
        super().store_all(letters, patience)
        self.calls.append(len(self.letters) - before)


class Stage:
    """A broker with a channel that decodes, and what became of the records."""

    def __init__(self, folder: Path) -> None:
        self.broker = InMemoryBroker()
        self.broker.create_topic("events", 2)
        self.broker.create_topic("dead")
        self.letters = CountingLetters()
        self.metrics = Metrics()
        self._path = folder / "rows.jsonl"

    def channel(self, **limits: int) -> InboundKafkaChannel:
        """Build the channel."""
        chosen: dict[str, Any] = {
            "topics": ["events"],
            "group": "group",
            "processor": {
                "type": "arrow",
                "reducer": f"{__name__}:ids",
                "decode": "json",
                "schema": SCHEMA,
            },
            "sink": {"type": "jsonl", "path": str(self._path)},
            "retry": {"backoff": "1ms", "max_backoff": "1ms"},
            "rejects": {"undecodable": "dead_letter", "topic": "dead", **limits},
        }
        processor = build_processor(
            ChannelConfig.model_validate(chosen), _no_spark, "member", KafkaConfig()
        )
        return in_memory_channel(
            processor,
            self.broker,
            dead_letters=self.letters,
            metrics=self.metrics,
            retry=chosen["retry"],
            rejects=chosen["rejects"],
            processor=chosen["processor"],
            sink=chosen["sink"],
        )

    def stored(self) -> list[int]:
        """Return the ids in the sink."""
        return [json.loads(line)["id"] for line in self._path.read_text().splitlines()]

    def counted(self, name: str) -> float:
        """Return a counter of the topic."""
        labels = {"channel": "member", "topic": "events"}
        return self.metrics.registry.get_sample_value(f"headrace_{name}_total", labels) or 0.0


def _no_spark() -> Any:
    raise AssertionError("a channel of type arrow takes no Spark")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Return one without records."""
    return Stage(tmp_path)


def _records(count: int) -> tuple[list[bytes], list[int], list[int]]:
    """Return values of which each third is bad, the others' ids, and the bad ones' offsets."""
    values = [b"" if n % 3 == 2 else json.dumps({"id": n}).encode() for n in range(count)]
    bad = [n for n in range(count) if n % 3 == 2]
    return values, [n for n in range(count) if n % 3 != 2], bad


def test_undecodable_records_are_letters_and_the_rest_is_stored(stage: Stage) -> None:
    """All of a batch in one go, without a failed delivery or a bisection, and one line logged."""
    values, good, bad = _records(90)
    stage.broker.produce(P0, *values)

    with capture_logs() as logs, running(stage.channel(max_per_thousand=1000)):
        assert committed(stage.broker, P0, 90)

    assert sorted(stage.stored()) == good
    assert sorted(map(int, stage.letters.said("offset"))) == bad
    assert set(stage.letters.said("error")) == {"UndecodableRecordError"}
    assert {code_of(each) for each in stage.letters.said("message")} == {"EMPTY"}
    assert set(stage.letters.said("attempt")) == {"1"}
    assert stage.counted("dead_lettered_records") == len(bad)
    assert stage.counted("bisections") == 0
    lines = [each for each in logs if each["event"] == "undecodable_records_dead_lettered"]
    assert len(lines) == len(stage.letters.calls) < len(bad)
    assert sum(each["records"] for each in lines) == len(bad)
    assert {each["log_level"] for each in lines} == {"warning"}
    assert not [each for each in logs if each["event"] == "processor_error"]


def test_a_letter_is_the_record_as_it_was(stage: Stage) -> None:
    """Key, value and headers are the record's own, and ours say where it is from and why."""
    record = FakeRecord(
        key_=b"k", value_=b'{"id": "x"}', headers_=[("h", b"1"), ("h", None)], timestamp_=1234
    )
    stage.broker.produce(P1, b'{"id": 1}', record)

    with running(stage.channel()):
        assert committed(stage.broker, P1, 2)

    ((topic, letter),) = stage.letters.letters
    assert (topic, letter.key, letter.value) == ("dead", b"k", b'{"id": "x"}')
    assert list(letter.headers)[:2] == [("h", b"1"), ("h", None)]
    said = read_letter(letter.headers)
    assert (said["topic"], said["partition"], said["offset"]) == ("events", "1", "1")
    assert (said["timestamp"], said["group"]) == ("1234", "group")
    assert '[TYPE] field id: INT is expected, found the text "x"' in said["message"]


def test_letters_are_produced_before_rows_are_stored(stage: Stage) -> None:
    """While the dead-letter topic refuses, nothing is committed; then everything is, once."""
    values, good, bad = _records(9)
    stage.broker.produce(P0, *values)
    stage.letters.refuse = "away"

    with capture_logs() as logs, running(stage.channel()):
        eventually(lambda: any(each["event"] == "dead_letter_failed" for each in logs))
        assert not stage.broker.wait_committed("group", P0, 1, Deadline.after(0.01))
        assert stage.stored() == []
        stage.letters.refuse = None
        assert committed(stage.broker, P0, 9)

    assert sorted(stage.stored()) == good
    assert sorted(map(int, stage.letters.said("offset"))) == bad


def test_too_many_undecodable_records_end_the_channel(stage: Stage) -> None:
    """A limit is that of records that fail: nothing is sent, and the error says which and why."""
    stage.broker.produce(P0, b'{"id": 0}', *[b"rubbish"] * 4, b'{"id": 5}')
    channel = stage.channel(max_consecutive=3)

    with running(channel):
        assert wait_for(lambda: channel.failure is not None, Deadline.after(PATIENCE))

    assert isinstance(channel.failure, ChannelFailedError)
    assert "4 records in a row (max_consecutive: 3)" in str(channel.failure)
    assert "offset 4" in str(channel.failure)
    assert "[NOT_JSON]" in str(channel.failure)
    assert stage.letters.letters == []
    assert not stage.broker.wait_committed("group", P0, 1, Deadline.after(0.01))


def test_letters_are_sent_once_though_the_commit_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that refuses a commit has the batch come again; what is sent then is a duplicate."""
    values, good, bad = _records(6)
    stage.broker.produce(P0, *values)
    refused = Event()
    commit = JsonLinesSink.commit

    def refusing(self: JsonLinesSink, kept: Any, offsets: Sequence[PartitionCommit]) -> None:
        if not refused.is_set():
            refused.set()
            raise ConnectionError("away")
        commit(self, kept, offsets)

    monkeypatch.setattr(JsonLinesSink, "commit", refusing)
    with running(stage.channel()):
        assert committed(stage.broker, P0, 6)

    assert stage.stored() == good
    assert {*map(int, stage.letters.said("offset"))} == {*bad}


#: Sizes of batches, and which of their records are undecodable.
_batches = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=8)

#: How far each record lies from the one before it: further than 1 after what is there no more.
_steps = st.just(1) | st.integers(1, 400)


@given(
    parts=_batches,
    most=st.integers(1, 6),
    thousand=st.integers(1, 12),
    in_runs=st.booleans(),
    data=st.data(),
)
def test_limits_are_those_of_all_records_in_their_order(
    parts: list[list[bool]], most: int, thousand: int, in_runs: bool, data: st.DataObject
) -> None:
    """The same record exceeds the limit for any cut into batches, also when batches come twice.

    It is the same with gaps between records and without, and for records in columns.
    """
    section = DeliveredRejects.model_validate(
        {
            "failing": "dead_letter",
            "topic": "dead",
            "max_consecutive": most,
            "max_per_thousand": thousand,
        }
    )
    has_gaps = data.draw(st.booleans())
    limits, end, found = UndecodableLimits(), 0, None
    places: list[tuple[int, bool]] = []
    for part in parts:
        steps = [data.draw(_steps) if has_gaps else 1 for _ in part]
        own = [end - 1 + sum(steps[: at + 1]) for at in range(len(part))]
        batch = _batch_of(own, end, in_runs=in_runs)
        places += zip(own, part, strict=True)
        offsets = [offset for offset, is_bad in zip(own, part, strict=True) if is_bad]
        excess = limits.excess(batch, offsets, section)
        assert excess == limits.excess(batch, offsets, section)
        if excess is not None:
            found = excess[0]
            break
        limits.note(batch, offsets)
        end = batch.next_offset

    assert found == _first_excess(places, most, thousand)


def _batch_of(offsets: list[int], start: int, *, in_runs: bool) -> Batch:
    """Return a batch of records with these offsets that continues from ``start``."""
    records: list[Record] = [FakeRecord(*P0, offset) for offset in offsets]
    run = in_columns(records, P0, pieces=2) if in_runs else records
    return Batch(FakeAssignment(P0), start, run, offsets[-1] + 1, 0)


def _first_excess(records: list[tuple[int, bool]], most: int, thousand: int) -> int | None:
    row = 0
    for offset, is_bad in records:
        row = row + 1 if is_bad else 0
        recent = sum(bad for each, bad in records if offset - WINDOW < each <= offset)
        if is_bad and (row > most or recent > thousand):
            return offset
    return None

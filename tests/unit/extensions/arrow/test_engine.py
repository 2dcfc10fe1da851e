from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from headrace.config import ChannelConfig
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, StartError, UndecodableRecordError
from headrace.core.tables import Decode, Decoding
from headrace.devstack.wait import wait_for
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.delta.sink import DeltaSink
from headrace.processors import BatchResponse, ChannelContext, micro_batches, sink_commits
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.sinks.console import NoopSink
from headrace.sinks.jsonl import JsonLinesSink
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeAssignment, make_batch
from tests.metrics import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from headrace.extensions.arrow.reducer import ArrowReducer
    from headrace.sinks.contract import Sink
    from headrace.spark import MicroBatch

#: Seconds after which a test gives up.
PATIENCE = 10.0
ADVANCE = BatchResponse.advance()


def offsets(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the records' offsets."""
    del batch
    return table.select(["offset"])


@pytest.fixture
def opened() -> Iterator[Callable[..., MicroBatchProcessor]]:
    """Open processors; close them at the end."""
    made: list[MicroBatchProcessor] = []

    def open_one(
        sink: Sink[Any],
        reducer: ArrowReducer | str = offsets,
        seconds: float | None = None,
        decode: Decode | None = None,
    ) -> MicroBatchProcessor:
        processor = MicroBatchProcessor(ArrowEngine(reducer, decode), sink, job_timeout=seconds)
        processor.open(ChannelContext("main", "group", Metrics()))
        made.append(processor)
        return processor

    yield open_one
    for processor in made:
        processor.close(Deadline.after(PATIENCE))


def test_a_batch_that_is_passed_over_moves_the_sinks_offset(
    opened: Callable[..., MicroBatchProcessor], tmp_path: Path
) -> None:
    """Skipped records advance the table's offset and make no rows."""
    sink, assignment = DeltaSink(tmp_path / "table"), FakeAssignment()
    processor = opened(sink)
    first = processor.on_next_batch(make_batch([b"a"], assignment=assignment))
    assert first.result(PATIENCE) == ADVANCE

    processor.pass_over(make_batch([b"b", b"c"], assignment=assignment, start=1))
    assert processor.stored_offset(assignment) == 3
    processor.move_offset(assignment, 1, "back to where it was")
    assert processor.stored_offset(assignment) == 1


def test_a_sink_whose_offsets_cannot_be_moved_says_so(
    opened: Callable[..., MicroBatchProcessor],
) -> None:
    """A seek is refused where the sink keeps offsets and has no way to move them."""

    class Keeping(NoopSink):
        """Keeps an offset, and no more than that."""

        def stored_offset(self, identity: str) -> int | None:
            """Return one."""
            return len(identity)

    processor = opened(Keeping())
    with pytest.raises(HeadraceError, match="Keeping keeps offsets and has no move_offsets"):
        processor.move_offset(FakeAssignment(), 1, "for a test")


def test_a_stop_does_not_wait_for_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for work end when they are told to, however seldom they look around."""
    for module in (micro_batches, sink_commits):
        monkeypatch.setattr(module, "_IDLE_INTERVAL", 60.0)
    processor = MicroBatchProcessor(ArrowEngine(offsets), NoopSink())
    processor.open(ChannelContext("main", "group", Metrics()))
    assert processor.on_next_batch(make_batch([b"a"])).result(PATIENCE) == ADVANCE
    with capture_logs() as logs:
        processor.close(Deadline.after(PATIENCE))
    assert "lane_not_stopped" not in [each["event"] for each in logs]


def test_a_sink_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    """No thread is started then."""
    path = tmp_path / "a folder"
    path.mkdir()
    processor = MicroBatchProcessor(ArrowEngine(offsets), JsonLinesSink(path))
    with pytest.raises(StartError, match="cannot be written"):
        processor.open(ChannelContext("main", "group", Metrics()))
    processor.close(Deadline.after(PATIENCE))


def test_a_reducer_that_hangs_is_told_of_and_left_behind(
    opened: Callable[..., MicroBatchProcessor],
) -> None:
    """The log says where it is, and a stop does not wait for it beyond its deadline."""
    release = Event()

    def hang(table: pa.Table, batch: MicroBatch) -> None:
        del table, batch
        assert release.wait(PATIENCE)

    processor = opened(NoopSink(), hang, seconds=0.02)
    with capture_logs() as logs:
        answer = processor.on_next_batch(make_batch([b"a"]))
        assert wait_for(lambda: _events(logs, "lane_stuck"), Deadline.after(PATIENCE))
        processor.close(Deadline.after(0.01))
    release.set()

    (stuck,) = _events(logs, "lane_stuck")
    assert stuck["lane"] == "arrow-main"
    assert any(call.endswith(" hang") for call in stuck["calls"])
    assert _events(logs, "lane_not_stopped")
    assert answer.exception(PATIENCE) is not None


def _events(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


def test_undecodable_records_are_a_hot_matter(
    opened: Callable[..., MicroBatchProcessor], tmp_path: Path
) -> None:
    """A bad record fails its batch by name, until the channel is told to leave such out."""
    chosen = {"type": "arrow", "reducer": "a:b", "decode": "json", "schema": "n INT"}
    values = {"topics": ["t"], "group": "g", "sink": "noop"}
    sink = DeltaSink(tmp_path / "table")
    processor = opened(sink, numbers, decode=Decode(Decoding.JSON, "n INT"))
    assignment = FakeAssignment()
    batch = make_batch([b'{"n": 1}', b"rubbish", b'{"n": 3}'], assignment=assignment)
    assert isinstance(processor.on_next_batch(batch).exception(PATIENCE), UndecodableRecordError)

    processor.on_reconfigured(
        ChannelConfig.model_validate(
            {**values, "processor": chosen, "rejects": {"undecodable": "skip"}}
        )
    )

    assert processor.on_next_batch(batch).result(PATIENCE) == ADVANCE
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert rows == [{"n": 1}, {"n": 3}]
    skipped = processor.context.metrics.skipped.labels("main", "events", "undecodable")
    assert value_of(skipped) == 1
    assert processor.stored_offset(assignment) == 3


def test_a_schema_that_cannot_be_read_ends_the_start() -> None:
    """A malformed schema fails the start before the engine opens anything."""
    engine = ArrowEngine(numbers, Decode(Decoding.JSON, "n"))
    with pytest.raises(ConfigError, match="decode schema 'n' is not a list of columns"):
        engine.open("main")


def numbers(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the decoded column."""
    del batch
    return table.select(["n"])


def test_hot_values_are_taken_over(opened: Callable[..., MicroBatchProcessor]) -> None:
    """A smaller limit cuts the micro-batches that follow."""
    sizes: list[int] = []

    def count(table: pa.Table, batch: MicroBatch) -> None:
        sizes.append(table.num_rows)
        assert batch.records == table.num_rows

    processor = opened(NoopSink(), count)
    chosen = {"type": "arrow", "reducer": "a:b", "max_records": 2}
    values = {"topics": ["t"], "group": "g", "processor": chosen, "sink": "noop"}
    processor.on_reconfigured(ChannelConfig.model_validate(values))
    assignment = FakeAssignment()
    answers = [
        processor.on_next_batch(make_batch([b"a", b"b"], assignment=assignment, start=start))
        for start in (0, 2, 4)
    ]
    assert [answer.result(PATIENCE) for answer in answers] == [ADVANCE] * 3
    assert sizes == [2, 2, 2]

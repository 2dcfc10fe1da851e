"""Results of a task of Spark's for a chunk: rows, or whose fault a failure is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.errors import PoisonRecordError, RetryableError
from headrace.core.records import TopicPartition
from headrace.extensions.spark.keyed import _result, _task, _to_bytes

TABLE = pa.table({"n": [1, 2]})


def failing(error: Exception) -> object:
    """Return a fold that raises this."""

    def fold(_: pa.Table) -> pa.Table:
        raise error

    return fold


def test_a_chunk_comes_back_as_it_was_folded() -> None:
    """Rows survive the way as bytes, there and back."""
    assert _result(_task(lambda rows: rows.slice(1))(_to_bytes(TABLE))).equals(TABLE.slice(1))


def test_poison_names_its_record_on_the_way_back() -> None:
    """The error is the one that the fold raised, so that policies find the record."""
    error = PoisonRecordError(TopicPartition("t", 3), 7, "why")
    with pytest.raises(PoisonRecordError) as raised:
        _result(_task(failing(error))(_to_bytes(TABLE)))  # type: ignore[arg-type]
    assert (raised.value.partition, raised.value.offset) == (("t", 3), 7)
    assert str(raised.value) == str(error)


def test_a_failure_of_a_timer_is_not_a_record_s() -> None:
    """A timer's failure is tried again, and never divides or skips a batch."""
    with pytest.raises(RetryableError, match="timer 't' failed"):
        _result(_task(failing(RetryableError("timer 't' failed")))(_to_bytes(TABLE)))  # type: ignore[arg-type]

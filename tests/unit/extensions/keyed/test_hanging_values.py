"""Code of users around the reducer that does not return: what says times, keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.core.call_watch import MOST_ENDS, CallWatch
from headrace.core.calls import Call
from headrace.core.errors import JobTimeoutError, PoisonRecordError
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.rekey import Rekey, RekeySettings
from headrace.extensions.keyed.rows import RowSettings, grouped
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from tests.unit.extensions.keyed.test_hanging import (
    HANGS,
    INPUT,
    LIMIT,
    counting,
    forever,
    outcome,
    rows,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CallWatch]:
    """A watch whose failures a test fails by."""

    def fail(error: BaseException) -> None:
        raise error

    made = CallWatch(tmp_path / "calls" / "c")
    made.open("c", fail)
    made.limit(LIMIT)
    yield made
    made.close()


class Times:
    """A channel's stream times: none is known yet."""

    def time(self, partition: int) -> int | None:
        """Return the stream time of a partition."""

    def take_wanted_time(self, partition: int) -> int | None:
        """Return the time that a tick wanted."""

    def due_keys(self, *_: Any, **__: Any) -> list[Any]:
        """Return keys with timers that are due."""
        return []

    def get_many(self, keys: list[Any]) -> list[None]:
        """Return what is stored of keys."""
        return [None] * len(keys)


def records(*values: bytes) -> pa.Table:
    """Return records of partition 3, of one key."""
    rows = [
        {
            "topic": "events",
            "partition": 3,
            "offset": offset,
            "key": b"k",
            "value": value,
            "timestamp": 0,
            "headers": None,
        }
        for offset, value in enumerate(values)
    ]
    names = set(SCHEMA.names)
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in names} for row in rows], schema=SCHEMA
    )


BATCH = MicroBatch("1", "c", (OffsetRange("events", 3, 0, 3, 3),))


def hanging_at_bad(hang: Callable[[], None]) -> Callable[[bytes | None], int]:
    """Return a function that says a time, and hangs at one value."""

    def time(value: bytes | None) -> int:
        if value == b"bad":
            hang()
        return 1000

    return time


@pytest.mark.parametrize("hang", HANGS, ids=lambda each: each.__name__)
def test_a_record_whose_time_function_hangs_is_set_aside_after_one_time_out(
    watch: CallWatch, hang: Callable[[], None]
) -> None:
    """It is named at once, as the function gets one record at a time; all others are grouped."""
    settings = RowSettings(time=hanging_at_bad(hang), undecodable="dead_letter", calls=watch)
    table, state = records(b"a", b"bad", b"c"), Times()
    with pytest.raises(JobTimeoutError, match="the time of offset 1 of events-3"):
        grouped(table, BATCH, state, settings, 5000)  # type: ignore[arg-type]
    found = grouped(table, BATCH, state, settings, 5000)  # type: ignore[arg-type]
    assert [each["offset"] for each in found.rows.to_pylist()[0]["facts"]] == [0, 2]
    (left_out,) = found.undecodable[3]
    assert left_out.letter is not None
    assert left_out.letter[:3] == (DEAD_LETTERS, b"k", b"bad")


def test_with_policy_fail_the_error_names_the_record_whose_time_hangs(watch: CallWatch) -> None:
    """The channel's policy decides then."""
    settings, state = RowSettings(time=hanging_at_bad(forever), calls=watch), Times()
    with pytest.raises(JobTimeoutError):
        grouped(records(b"bad"), BATCH, state, settings, 5000)  # type: ignore[arg-type]
    with pytest.raises(PoisonRecordError, match="does not return") as raised:
        grouped(records(b"bad"), BATCH, state, settings, 5000)  # type: ignore[arg-type]
    assert (raised.value.partition, raised.value.offset) == (("events", 3), 0)


def test_a_value_whose_decoder_hangs_is_set_aside_after_two_time_outs(watch: CallWatch) -> None:
    """First the key is named, then the record; the reducer gets the key's other facts."""

    def read(data: bytes) -> str:
        if data == b"bad":
            forever()
        return data.decode()

    settings = FoldSettings(outputs=("out",), failing="dead_letter", decoder=read)
    fold = Fold(counting(lambda: None), settings, watch)
    table = rows(**INPUT)
    assert "key 'b' of partition 3" in timed_out(fold, table)
    assert "offset 5 of events-3" in timed_out(fold, table)
    found = outcome(fold(table))
    assert found["b"] == (2, ["out", DEAD_LETTERS, "out"])
    assert found["a"][0] == 2


@pytest.mark.parametrize("is_function", [True, False])
def test_a_record_whose_new_key_hangs_is_set_aside_after_one_time_out(
    watch: CallWatch, is_function: bool
) -> None:
    """Whether the function for the key hangs, or the decoder of values."""

    def key(event: Any) -> str:
        if event.value == b"bad":
            forever()
        return "k"

    def read(data: bytes) -> dict[str, str]:
        if data == b"bad":
            forever()
        return {"id": "k"}

    settings = RekeySettings(
        "m:f" if is_function else "value.id",
        "by-key",
        value="bytes",
        undecodable="dead_letter",
        dead_letters="dead",
        decoder=None if is_function else read,
    )
    rekey = Rekey(settings, key if is_function else None, watch)
    table = records(b"a", b"bad", b"c")
    with pytest.raises(JobTimeoutError, match="the key of offset 1 of events-3"):
        rekey(table)
    assert rekey(table).column("topic").to_pylist() == ["by-key", "dead", "by-key"]


def test_a_record_that_ends_process_after_process_is_set_aside(tmp_path: Path) -> None:
    """One or two ends may be chance; the key's facts come one by one from the first on."""
    path, place = tmp_path / "calls" / "c", "offset 5 of events-3"
    for _ in range(MOST_ENDS):
        watch = CallWatch(path)
        watch.open("c", print)
        assert not watch.has_hung(3, b"b", place)
        watch.call(3, b"b", place.encode())  # the process ends here
    with capture_logs():
        last = CallWatch(path)
        last.open("c", print)
    assert last.has_hung(3, b"b", place)
    assert not last.has_hung(3, b"b", "offset 6 of events-3")


@pytest.mark.parametrize("between", [(4, b"b", "offset 5 of events-4"), (3, b"b", "")])
def test_ends_at_different_places_set_nothing_aside(
    tmp_path: Path, between: tuple[int, bytes, str]
) -> None:
    """Processes that are killed somewhere tell nothing of a record."""
    watch, place = CallWatch(tmp_path / "c"), "offset 5 of events-3"
    for _ in range(MOST_ENDS):
        watch.note_end(Call(3, b"b", place))
        watch.note_end(Call(4, b"c", "offset 9 of events-4"))
        watch.note_end(Call(*between))
    assert not watch.has_hung(3, b"b", place)
    assert watch.is_known(3, b"b")

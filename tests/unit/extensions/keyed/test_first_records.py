"""A keyed reducer none of whose records could be reduced since the start: one line says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.keyed.first_records import MOST_BATCHES, MOST_RECORDS, FirstRecords
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics
from headrace.extensions.keyed.state import LayeredState
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing import FakeRecord, records_table
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def reduce(key: str, state: int | None, facts: list[Any], now: int) -> Any:
    """Count, in a way that only works for values that are lists."""
    del key, now
    return (state or 0) + len(facts[0].value.append), [], {}


def reduce_good(key: str, state: int | None, facts: list[Any], now: int) -> Any:
    """Count facts; the value ``bad`` fails."""
    del key, now
    if facts[0].value == "bad":
        raise ValueError("bad")
    return (state or 0) + 1, [], {}


def lines(
    reducer: Any, batches: list[list[str]], *, key_: bytes | None = b"k", **settings: Any
) -> list[MutableMapping[str, Any]]:
    """Return what is logged while a keyed sink stages batches of these values."""
    settings = {"value": "string", "outputs": ("out",), **settings}
    state = LayeredState(MemoryStore())
    state.admit(0)
    fold = Fold(reducer, FoldSettings(**settings))
    function = KeyedFunction(
        fold, RowSettings(undecodable=settings["failing"]), state, SYSTEM_CLOCK
    )
    topics = SinkTopics("log", {"out": "results", "headrace.dead_letters": "dead"})
    sink = KeyedSink(cast("Any", None), state, topics, SYSTEM_CLOCK, FirstRecords("m:reduce"))
    with capture_logs() as logs:
        for number, values in enumerate(batches):
            table = records_table([FakeRecord(key_=key_, value_=each.encode()) for each in values])
            parts = (OffsetRange("events", 0, 0, len(values), len(values), "i/0"),)
            batch = MicroBatch(str(number), "c", parts)
            sink.stage(batch, function(table, batch))
    return [line for line in logs if line["event"] == "processor_never_worked"]


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "quarantine"])
@pytest.mark.parametrize(
    "batches",
    [[["x"]] * (MOST_BATCHES + 2), [["x"] * MOST_RECORDS, ["x"]]],
    ids=["batches", "records"],
)
def test_a_reducer_that_no_record_got_through_is_named_once(
    policy: str, batches: list[list[str]]
) -> None:
    """The log names the reducer and the error once for each policy, with letters and without."""
    (line,) = lines(reduce, batches, failing=policy)
    assert (line["log_level"], line["channel"], line["code"]) == ("error", "c", "m:reduce")
    assert line["failures"] == min(MOST_RECORDS, MOST_BATCHES if len(batches) > 2 else MOST_RECORDS)
    assert "'str' object has no attribute 'append'" in line["error"]


@pytest.mark.parametrize("names", ["headrace", "connect", "both"])
def test_the_error_is_logged_with_any_header_names(names: str) -> None:
    """The error is read from the letter."""
    letters = LetterHeaders(cast("Any", names), "g")
    (line,) = lines(reduce, [["x"] * MOST_RECORDS], failing="dead_letter", letters=letters)
    assert "no attribute 'append'" in line["error"]


def test_values_that_cannot_be_read_count_alike() -> None:
    """Undecodable values count too, which shows a decoding that is not the producers'."""
    (line,) = lines(reduce_good, [["{"] * MOST_RECORDS], failing="dead_letter", value="json")
    assert line["failures"] == MOST_RECORDS
    assert "[NOT_JSON]" in line["error"]


def test_records_without_a_key_count_alike() -> None:
    """A topic of which no record has a key is named where they are skipped."""
    (line,) = lines(reduce_good, [["x"] * MOST_RECORDS], failing="skip", key_=None)
    assert line["error"] == "the record has no key"


@pytest.mark.parametrize(
    "batches",
    [
        [["bad"] * 99, ["x", "bad"], ["bad"] * 1000],
        [["x"], *[["bad"] * 200] * 5],
        [["bad"], ["bad"], [], []],
    ],
    ids=["later", "first", "few"],
)
def test_a_reducer_that_some_record_got_through_is_not_named(batches: list[list[str]]) -> None:
    """A failure after a success may be due to the value; two batches are too few to tell."""
    assert lines(reduce_good, batches, failing="dead_letter") == []

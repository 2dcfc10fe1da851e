"""Reducers that do not return, and those that end the process: the key is found and set aside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.core.call_watch import CallWatch
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError, JobTimeoutError, PoisonRecordError
from headrace.devstack.wait import wait_for
from headrace.extensions.arrow.reducer import WatchedReducer
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.tables import DEAD_LETTERS, ROWS
from headrace.keyed import Fired, Output, at_clock, batched
from headrace.sinks.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Seconds that a call may take here.
LIMIT = 0.2

PATIENCE = 20.0


def forever() -> None:
    """Run in Python code."""
    while True:
        pass


def stubborn() -> None:
    """Run, and take each failure for one of its own."""
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001 - as code does that hangs
            continue


def recursing() -> None:
    """Run in calls that end."""

    def turn(depth: int) -> int:
        return 0 if depth == 0 else turn(depth - 1)

    while True:
        turn(50)


def sleeping() -> None:
    """Sleep again and again: between two sleeps it is in Python code."""
    while True:
        time.sleep(0.01)


HANGS = [forever, stubborn, recursing, sleeping]


def _plain(reducer: Any) -> Any:
    return reducer


def counting(hang: Callable[[], None]) -> Callable[..., Any]:
    """Return a reducer that counts, and hangs at the value ``bad``."""

    def reduce(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del key, now
        for fact in facts:
            if isinstance(fact, Fired) or fact.value == "bad":
                hang()
            state = (state or 0) + 1
        return state, [Output(state)], {}

    return reduce


def fact(offset: int, value: str) -> dict[str, Any]:
    """Return a fact as the fold has it."""
    return {
        "source": "events",
        "offset": offset,
        "ts": 1000 + offset,
        "time": 1000 + offset,
        "late_by": 0,
        "value": value.encode(),
        "headers": None,
    }


def rows(**keys: list[tuple[int, str]]) -> pa.Table:
    """Return rows of partition 3: by key the offsets and values of its facts."""
    return pa.Table.from_pylist(
        [
            {
                "key": key.encode(),
                "partition": 3,
                "state": None,
                "extra": None,
                "facts": [fact(*each) for each in facts],
                "until": 2000,
                "now": 5000,
            }
            for key, facts in keys.items()
        ],
        schema=ROWS,
    )


INPUT = {"a": [(1, "x"), (4, "x")], "b": [(2, "x"), (5, "bad"), (6, "x")], "c": [(3, "x")]}


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


def made_of(hang: Callable[[], None], watch: CallWatch, policy: str, wrapped: Any = _plain) -> Fold:
    """Return a fold of a reducer that hangs at one fact."""
    settings = FoldSettings(outputs=("out",), value="string", failing=policy)
    return Fold(wrapped(counting(hang)), settings, watch)


def outcome(table: pa.Table) -> dict[str, tuple[int | None, list[Any]]]:
    """Return by key its state and where its outputs go."""
    return {
        row["key"].decode(): (
            None if row["state"] is None else int(row["state"]),
            [each["to"] for each in row["outputs"]],
        )
        for row in table.to_pylist()
    }


def timed_out(fold: Fold, table: pa.Table) -> str:
    """Fold, and return how the time-out was named."""
    with pytest.raises(JobTimeoutError) as raised:
        fold(table)
    return str(raised.value)


def test_a_job_is_no_part_of_the_call_before_it() -> None:
    """Time before a job's first call does not count for the call of the job before it."""
    watch = CallWatch()
    with watch.job():
        watch.call(0, b"a")
        hung = watch.number
    assert hung is not None
    with watch.job():
        watch.interrupt(hung)
        sum(range(100_000))
        assert watch.number != hung


@pytest.mark.parametrize(
    ("hang", "wrapped"),
    [*((each, _plain) for each in HANGS), (forever, batched)],
    ids=lambda each: each.__name__,
)
def test_the_fact_that_hangs_is_set_aside_after_two_time_outs(
    watch: CallWatch, hang: Callable[[], None], wrapped: Any
) -> None:
    """First the key is named, then the record; all other facts are counted, the key's own too."""
    fold, table = made_of(hang, watch, "dead_letter", wrapped), rows(**INPUT)
    assert "key 'b' of partition 3" in timed_out(fold, table)
    assert "key 'b' of partition 3, offset 5 of events-3" in timed_out(fold, table)
    found = outcome(fold(table))
    assert found["a"][0] == 2
    assert found["c"] == (1, ["out"])
    assert found["b"] == (2, ["out", DEAD_LETTERS, "out"])
    assert outcome(fold(rows(b=[(7, "x")])))["b"] == (1, ["out"])


@pytest.mark.parametrize(
    ("policy", "state", "outputs"),
    [("skip", 2, ["out", "out"]), ("quarantine", 1, ["out", DEAD_LETTERS, DEAD_LETTERS])],
)
def test_each_policy_takes_a_hanging_fact_for_poison(
    watch: CallWatch, policy: str, state: int, outputs: list[str]
) -> None:
    """The fact is left out, or its key is set aside, as after an exception of the reducer."""
    fold, table = made_of(forever, watch, policy), rows(**INPUT)
    timed_out(fold, table)
    timed_out(fold, table)
    assert outcome(fold(table))["b"] == (state, outputs)


def test_with_policy_fail_the_error_names_the_record(watch: CallWatch) -> None:
    """The channel's policy decides then, as of any record that cannot be processed."""
    fold, table = made_of(forever, watch, "fail"), rows(**INPUT)
    timed_out(fold, table)
    timed_out(fold, table)
    with pytest.raises(PoisonRecordError, match="does not return") as raised:
        fold(table)
    assert (raised.value.partition, raised.value.offset) == (("events", 3), 5)


def test_a_timer_that_hangs_is_set_aside(watch: CallWatch) -> None:
    """It is named by its key and name, and gone after two time-outs."""
    fold = made_of(forever, watch, "dead_letter")
    row = KeyRow.of(b"4", {"wake": at_clock(10)})
    table = rows(b=[]).set_column(2, ROWS.field("state"), pa.array([row.state]))
    table = table.set_column(3, ROWS.field("extra"), pa.array([row.extra]))
    assert "key 'b' of partition 3" in timed_out(fold, table)
    assert "timer 'wake'" in timed_out(fold, table)
    assert outcome(fold(table))["b"] == (4, [DEAD_LETTERS])


def test_many_calls_may_take_longer_than_the_limit(watch: CallWatch) -> None:
    """The limit is that of one call."""

    def slow(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del key, facts, now
        time.sleep(LIMIT / 4)
        return (state or 0) + 1, [], {}

    fold = Fold(slow, FoldSettings(value="string"), watch)
    assert fold(rows(**{f"k{n}": [(n, "x")] for n in range(8)})).num_rows == 8


def test_a_fold_that_ended_interrupts_no_other_code(watch: CallWatch) -> None:
    """Code outside of a call is not interrupted, however long it runs."""
    fold = made_of(forever, watch, "dead_letter")
    timed_out(fold, rows(z=[(1, "bad")]))
    assert not wait_for(lambda: watch.number is not None, Deadline.after(3 * LIMIT))
    assert outcome(fold(rows(a=[(2, "x")])))["a"] == (1, ["out"])


def test_a_call_that_nothing_interrupts_ends_the_process_and_is_known_to_the_next(
    tmp_path: Path,
) -> None:
    """It fails the channel and names the key; the next processes find the fact and leave it out."""
    path = tmp_path / "calls" / "c"
    for place, hung in (("", True), ("offset 5 of events-3", True)):
        failed: list[BaseException] = []
        release = Flag()
        watch = CallWatch(path)
        watch.open("c", failed.append)
        watch.limit(LIMIT)
        fold = made_of(lambda: assert_released(release), watch, "dead_letter")  # noqa: B023
        lane = Thread(target=lambda: suppressed(fold, rows(**INPUT)), daemon=True)  # noqa: B023
        lane.start()
        assert wait_for(lambda: failed, Deadline.after(PATIENCE))  # noqa: B023
        assert isinstance(failed[0], FatalError)
        assert "key 'b' of partition 3" in str(failed[0])
        # the file as the process leaves it that ends now
        kept = path.read_bytes()
        watch.close()
        release.set()
        lane.join(PATIENCE)
        path.write_bytes(kept)
        with capture_logs() as logs:
            after = CallWatch(path)
            after.open("c", failed.append)
            after.close()
        (line,) = [each for each in logs if each["event"] == "process_ended_in_call"]
        assert (line["partition"], line["key"], line["place"]) == (3, "b", place)
        assert line["hung"] is hung
        path.write_bytes(kept)
    last = CallWatch(path)
    last.open("c", failed.append)
    last.limit(LIMIT)
    assert outcome(made_of(forever, last, "dead_letter")(rows(**INPUT)))["b"] == (
        2,
        ["out", DEAD_LETTERS, "out"],
    )
    last.close()


def assert_released(flag: Flag) -> None:
    """Wait in code of C's that Python cannot interrupt."""
    assert flag.wait(PATIENCE)


def suppressed(fold: Fold, table: pa.Table) -> None:
    """Fold, however that ends."""
    with suppress(JobTimeoutError):
        fold(table)


_ENDING = """
import ctypes, faulthandler, os, signal
from pathlib import Path
from headrace.core.call_watch import CallWatch
from headrace.extensions.arrow.reducer import WatchedReducer
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.settings import FoldSettings
from tests.unit.extensions.keyed.test_hanging import rows

faulthandler.disable()
ENDS = {{
    "exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
}}

def reduce(key, state, facts, now):
    if key == "b":
        ENDS[{how!r}]()
    return 1, [], {{}}

watch = CallWatch(Path({path!r}))
watch.open("c", print)
Fold(reduce, FoldSettings(value="string"), watch)(rows(a=[(1, "x")], b=[(2, "x")], c=[(3, "x")]))
"""


def test_the_next_start_names_the_key_that_a_process_ended_in(tmp_path: Path) -> None:
    """Partition and key are logged by the next process after each way to end."""
    ways = ("exit", "segfault", "kill", "abort")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _ENDING.format(how=how, path=str(tmp_path / how))],
            stderr=subprocess.DEVNULL,
        )
        for how in ways
    ]
    assert [child.wait(PATIENCE * 3) for child in children] == [
        0,
        -signal.SIGSEGV,
        -signal.SIGKILL,
        -signal.SIGABRT,
    ]
    for how in ways:
        with capture_logs() as logs:
            watch = CallWatch(tmp_path / how)
            watch.open("c", print)
            watch.close()
        (line,) = [each for each in logs if each["event"] == "process_ended_in_call"]
        assert (line["channel"], line["partition"], line["key"]) == ("c", 3, "b")
        assert line["log_level"] == "error"
        assert watch.is_known(3, b"b")
        with capture_logs() as logs:
            again = CallWatch(tmp_path / how)
            again.open("c", print)
            again.close()
        assert logs == []


def test_after_a_crash_the_record_is_named_by_the_next_one(tmp_path: Path) -> None:
    """A key in which a process ended gets its facts one by one, so that the file has the offset."""
    path = tmp_path / "calls" / "c"
    first = CallWatch(path)
    first.open("c", print)
    first.call(3, b"b")
    second = CallWatch(path)
    second.open("c", print)
    seen: list[bytes] = []

    def reduce(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del state, now
        if key == "b":
            seen.append(path.read_bytes())
        return len(facts), [], {}

    Fold(reduce, FoldSettings(value="string"), second)(rows(b=[(2, "x"), (7, "x")]))
    assert [b"offset 2 of events-3" in seen[0], b"offset 7 of events-3" in seen[1]] == [True, True]
    first.close()
    second.close()


def test_a_watch_without_a_place_goes_without(tmp_path: Path) -> None:
    """Calls are interrupted without the file, and the log says that it is missing."""
    (tmp_path / "calls").write_text("a file, no folder")
    with capture_logs() as logs:
        watch = CallWatch(tmp_path / "calls" / "c")
        watch.open("c", print)
    watch.limit(LIMIT)
    assert [line["event"] for line in logs] == ["calls_not_noted"]
    assert "key 'b'" in timed_out(made_of(forever, watch, "dead_letter"), rows(**INPUT))
    watch.close()


def test_a_reducer_of_whole_batches_is_interrupted_and_its_batches_are_named(
    watch: CallWatch, tmp_path: Path
) -> None:
    """No record is to blame, as with a job of Spark's; a crash leaves the batches in the file."""
    ranges = (OffsetRange("events", 0, 5, 9, 4), OffsetRange("events", 1, 2, 3, 1))
    batch, seen = MicroBatch("1", "c", ranges), []
    named = "offsets 5 to 8 of events-0, offsets 2 to 2 of events-1"

    def reduce(table: pa.Table, batch: MicroBatch) -> pa.Table:
        del batch
        seen.append((tmp_path / "calls" / "c").read_bytes())
        if table.num_rows == 0:
            forever()
        return table

    watched = WatchedReducer(reduce, watch)
    with pytest.raises(JobTimeoutError, match=named):
        watched(pa.table({"n": pa.array([], pa.int64())}), batch)
    assert named.encode() in seen[0]
    assert watched(pa.table({"n": [1]}), batch) == pa.table({"n": [1]})

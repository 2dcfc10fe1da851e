"""A channel's state is whole before anything is delivered, whatever became of store and owner."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import SinkConflictError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed import unwritten
from headrace.extensions.keyed.changelog import EXTRA_HEADER
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.runtime import checkpoints, ticks
from headrace.extensions.keyed.runtime import held as holding
from headrace.kafka.ports import StoredOffset
from headrace.processors.contract import Request
from headrace.testing.records import FakeRecord
from tests.unit.processors.keyed_bench import CHANGELOG, INPUT_ID, PATIENCE, KeyedBench

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.extensions.keyed.state import Layer
    from headrace.processors import BatchResponse
    from tests.unit.processors.keyed_bench import KeyedDaemon


@pytest.fixture
def bench(tmp_path: Path) -> KeyedBench:
    """A group's broker, with a folder for the store."""
    return KeyedBench(tmp_path)


def count_to(daemon: KeyedDaemon, number: int, key: bytes, facts: int) -> None:
    """Take over a partition of which nothing is stored, and count a key's facts."""
    held = daemon.assign(number)
    for _ in range(facts):
        daemon.send(held, key)
    daemon.processor.on_partition_lost(held)


def test_delivery_waits_until_the_state_is_restored(bench: KeyedBench) -> None:
    """The partition rests while its changelog is read; a batch cut before that comes again."""
    with bench.daemon() as first:
        count_to(first, 0, b"a", 3)
    bench.gate.clear()
    bench.written_by_another(0, b"a", b"4")
    with bench.daemon() as second:
        held = second.assign(0, wait=False)
        assert second.rests.resting == {0}
        answer = second.send(held, b"a")
        assert (answer.request, answer.offset, second.member.outputs) == (Request.REVERT, None, [])
        bench.gate.set()
        second.rests.wait_for_none()
        second.send(held, b"a")
        assert second.member.outputs == [(b"a", b"5")]


def test_no_position_is_noted_for_another_owner_s_rows(bench: KeyedBench) -> None:
    """Another member may have gone on after a loss, so its rows are read before counting on."""
    with bench.daemon() as daemon:
        count_to(daemon, 0, b"a", 3)
        bench.written_by_another(0, b"a", b"4")
    with bench.daemon() as again:
        again.assign(0)
        assert again.counted(0, b"a") == 4


def test_no_position_is_noted_after_the_lease(bench: KeyedBench) -> None:
    """A process that stood still does not know yet that another one has its partition."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        held.current = False
        bench.written_by_another(0, b"a", b"2")
        daemon.processor.on_stream_termination(held)
    with bench.daemon() as again:
        again.assign(0)
        assert again.counted(0, b"a") == 2


def test_a_clean_end_notes_how_far_the_store_is(bench: KeyedBench) -> None:
    """The release has the position, so that the next start reads nothing of the changelog."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        daemon.processor.on_stream_termination(held)
        position = daemon.store.position(0)
        assert position is not None
        assert position.offset == 1


def test_a_conflict_has_the_other_writer_s_rows_read(bench: KeyedBench) -> None:
    """The partition rests, reads the other writer's rows, and counts on from there."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.written_by_another(0, b"a", b"2")
        with pytest.raises(SinkConflictError):
            daemon.send(held, b"a")
        daemon.rests.wait_for_none()
        held.position = daemon.processor.stored_offset(held) or 0
        daemon.send(held, b"a")
        assert daemon.member.outputs == [(b"a", b"1"), (b"a", b"3")]


def test_a_batch_that_conflicts_counts_in_no_phase(bench: KeyedBench) -> None:
    """The other writer's row counts once it is read, and only the rest as done here."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        daemon.send(held, b"b")
        assert daemon.phases() == ({"few": 2, "many": 0}, 2, 2)
        bench.written_by_another(0, b"a", b"3")
        with pytest.raises(SinkConflictError):
            daemon.send(held, b"b")
        daemon.rests.wait_for_none()
        assert daemon.phases() == ({"few": 1, "many": 1}, 4, 2)
        held.position = daemon.processor.stored_offset(held) or 0
        daemon.send(held, b"b")
        assert daemon.phases() == ({"few": 1, "many": 1}, 5, 3)


def test_phases_are_those_of_the_partitions_that_are_here(bench: KeyedBench) -> None:
    """One that leaves takes its keys along; come back, it has what was done elsewhere."""
    with bench.daemon() as daemon:
        first, second = daemon.assign(0), daemon.assign(1)
        for held, key in ((first, b"a"), (first, b"b"), (second, b"c")):
            daemon.send(held, key)
        assert daemon.phases() == ({"few": 3, "many": 0}, 3, 3)
        daemon.processor.on_partition_lost(first)
        assert daemon.phases() == ({"few": 1, "many": 0}, 1, 3)
        bench.written_by_another(0, b"a", b"7")
        daemon.assign(0)
        assert daemon.phases() == ({"few": 2, "many": 1}, 9, 3)


def test_phases_are_right_after_a_restart(bench: KeyedBench) -> None:
    """Also where the changelog has more than the store; what is done is counted from the start."""
    with bench.daemon() as daemon:
        count_to(daemon, 0, b"a", 3)
        bench.written_by_another(0, b"b", b"1")
    with bench.daemon() as again:
        again.send(again.assign(0), b"b")
        assert again.phases() == ({"few": 1, "many": 1}, 5, 1)


def test_a_conflict_while_a_partition_is_restored_begins_again(bench: KeyedBench) -> None:
    """Two batches that failed for the same writer have the partition restored once, and whole."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.written_by_another(0, b"a", b"2")
        bench.gate.clear()
        error = SinkConflictError(held.partition, 1, 2)
        daemon.processor.on_exception(held, error, None)
        assert bench.waiting.wait(PATIENCE)
        daemon.processor.on_exception(held, error, None)
        bench.gate.set()
        daemon.rests.wait_for_none()
        assert daemon.counted(0, b"a") == 2


def test_a_partition_given_up_meanwhile_is_not_restored(bench: KeyedBench) -> None:
    """A second partition that is released while the first begins to rest delays no other."""
    with bench.daemon() as daemon:
        first, second = daemon.assign(0), daemon.assign(1)
        daemon.send(first, b"a")
        daemon.send(second, b"b")
        daemon.corrupt_tables()
        given_up: list[int] = []

        def give_up(number: int) -> None:
            """Lose the other partition, once."""
            if not given_up:
                given_up.append(1 - number)
                daemon.processor.on_partition_lost([first, second][1 - number])

        daemon.rests.on_pause = give_up
        with pytest.raises(CorruptStoreError):
            daemon.send(first, b"a")
        daemon.wait_for_new_store()
        (lost,) = given_up
        assert daemon.counted(1 - lost, [b"a", b"b"][1 - lost]) == 1


def test_a_corrupt_store_is_made_again_while_the_channel_runs(bench: KeyedBench) -> None:
    """The batch fails, never for want of state; then it counts on from what was committed."""
    with bench.daemon() as daemon:
        held, other = daemon.assign(0), daemon.assign(1)
        for _ in range(3):
            daemon.send(held, b"a")
        daemon.send(other, b"b")
        daemon.corrupt_tables()
        with pytest.raises(CorruptStoreError):
            daemon.send(held, b"a")
        daemon.wait_for_new_store()
        daemon.send(held, b"a")
        daemon.send(other, b"b")
        assert [value for _, value in daemon.member.outputs] == [b"1", b"2", b"3", b"1", b"4", b"2"]


def test_a_full_disk_s_rows_are_written_without_a_commit(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition that returns waits for the rows, and so no record would ever come."""
    monkeypatch.setattr(checkpoints, "WRITE_INTERVAL", 0.0)
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        flush, is_full = daemon.store.flush, Event()
        is_full.set()

        def may_fail() -> None:
            if is_full.is_set():
                raise StateStoreError("no space left")
            flush()

        monkeypatch.setattr(daemon.store, "flush", may_fail)
        daemon.send(held, b"a")
        assert not daemon.state.flush()
        found = daemon.processor.state_reader().snapshot()
        assert (found.unwritten_rows, found.is_refused) == (1, True)
        daemon.processor.on_partition_lost(held)
        held = daemon.assign(0, wait=False)
        is_full.clear()
        daemon.rests.wait_for_none()
        daemon.send(held, b"a")
        assert [value for _, value in daemon.member.outputs] == [b"1", b"2"]
        reader = daemon.processor.state_reader()
        assert wait_for(lambda: not reader.snapshot().is_refused, Deadline.after(PATIENCE))


def test_many_rows_are_written_before_the_checkpoint(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what may be unwritten is written with no commit's waiting for it."""
    monkeypatch.setattr(unwritten, "MOST_UNWRITTEN", 4)
    with bench.daemon(state={"checkpoint": "1h"}) as daemon:
        held = daemon.assign(0)
        noted = daemon.store.position(0)
        daemon.send(held, b"a")
        daemon.send(held, b"b")
        is_written = lambda: daemon.store.unwritten().entries < 2  # noqa: E731
        assert wait_for(is_written, Deadline.after(PATIENCE))
        assert (daemon.counted(0, b"a"), daemon.counted(0, b"b")) == (1, 1)
        assert daemon.store.position(0) == noted


def test_a_released_partition_leaves_nothing_unwritten(bench: KeyedBench) -> None:
    """A member that gives a partition back has its rows on the disk, and how far they go."""
    with bench.daemon(state={"checkpoint": "1h"}) as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        assert daemon.store.unwritten().entries == 1
        daemon.processor.on_stream_termination(held)
        assert daemon.store.unwritten().entries == 0
        position = daemon.store.position(0)
        assert position is not None
        assert position.offset > 0


def test_rows_refused_by_a_former_store_are_written_to_the_new_one(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is not made again for an error of the one before it."""
    monkeypatch.setattr(checkpoints, "WRITE_INTERVAL", 0.0)
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        with monkeypatch.context() as patch:

            def fail() -> None:
                raise CorruptStoreError("it was")

            patch.setattr(daemon.store, "flush", fail)
            daemon.send(held, b"a")
            assert not daemon.state.flush()
        assert wait_for(lambda: daemon.state.problem is None, Deadline.after(PATIENCE))
        assert daemon.counted(0, b"a") == 1


def test_a_new_store_is_filled_once_jobs_under_way_are_over(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a job commits after the corruption are not overwritten by older ones."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        staging, go_on, sent = Event(), Event(), Event()
        restores = daemon.processor.opened.restores
        stage, is_busy = daemon.state.stage, restores.is_busy
        asked: list[bool] = []

        def wait_and_stage(layer: Layer) -> None:
            staging.set()
            assert go_on.wait(PATIENCE)
            stage(layer)

        def ask(number: int) -> bool:
            asked.append(is_busy(number))
            return asked[-1]

        def send() -> None:
            with suppress(Exception):  # it may be taken back, and comes again then
                daemon.send(held, b"a")
            sent.set()

        monkeypatch.setattr(daemon.state, "stage", wait_and_stage)
        monkeypatch.setattr(restores.restorer, "_is_busy", ask)
        bench.gate.clear()
        Thread(target=send, daemon=True).start()
        assert staging.wait(PATIENCE)
        daemon.store.is_corrupt = True
        restores.rebuild(CorruptStoreError("a tick found it"))
        began = lambda: len(asked) > 1 or bench.waiting.is_set()  # noqa: E731
        assert wait_for(began, Deadline.after(PATIENCE))
        assert asked[0]
        go_on.set()
        assert sent.wait(PATIENCE)
        bench.gate.set()
        daemon.wait_for_new_store()
        assert daemon.counted(0, b"a") == held.position == 2


def stored_after_all(bench: KeyedBench, identity: str) -> None:
    """Add a commit without records to the brokers, which this process takes for failed."""
    found = bench.stored[identity]
    bench.stored[identity] = StoredOffset(
        found.offset, 0, commits=(found.commits or 0) + 1, stream_time=found.stream_time
    )
    row = FakeRecord(key_=b"a", value_=b"5", headers_=[(EXTRA_HEADER, b"")])
    bench.broker.produce(TopicPartition(CHANGELOG, 0), row)


def test_a_tick_that_was_stored_after_all_holds_up_no_timer(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next tick conflicts with it, the partition reads what it changed, and timers fire."""
    monkeypatch.setattr(ticks, "BACKOFF", 0.0)
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"b", b"later")
        stored_after_all(bench, held.identity)
        fired = lambda: (b"b", b"fired") in daemon.member.outputs  # noqa: E731
        assert wait_for(fired, Deadline.after(PATIENCE)), daemon.member.outputs
        assert daemon.counted(0, b"a") == 5


def test_a_refresh_that_was_stored_after_all_is_caught_up_with(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next refresh conflicts, and the partition goes on from what the brokers have."""
    monkeypatch.setattr(holding, "FIRST_REFRESH", 0.0)
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"b")
        stored_after_all(bench, held.identity)
        own = daemon.processor.held.find(0)
        assert own is not None
        own.refresh_at = 0.0
        reached = bench.stored[held.identity].commits or 0
        caught_up = lambda: daemon.state.progress(0).number > reached  # noqa: E731
        assert wait_for(caught_up, Deadline.after(PATIENCE))
        daemon.rests.wait_for_none()
        assert daemon.counted(0, b"a") == 5
        daemon.send(held, b"b")
        assert daemon.member.outputs[-1] == (b"b", b"2")


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_offset_of_a_quiet_partition_is_stored_again(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """Else brokers forget it; the store is as new as that, and no record is counted for it."""
    monkeypatch.setattr(holding, "FIRST_REFRESH", 0.0)
    monkeypatch.setattr(holding, "REFRESH_INTERVAL", 0.0)
    with bench.daemon() as daemon:
        held, unused = daemon.assign(0), daemon.assign(1)
        daemon.send(held, b"a")
        if is_paused:
            daemon.processor.on_pause(held)
        before = bench.stored[held.identity]
        bench.stored.clear()
        again = wait_for(lambda: bench.stored.get(held.identity), Deadline.after(PATIENCE))
        assert again is not None
        assert (again.offset, again.stream_time) == (before.offset, before.stream_time)
        assert unused.identity not in bench.stored, "it has none yet"
        daemon.processor.on_resume(held)
        daemon.send(held, b"a")
        assert daemon.member.outputs == [(b"a", b"1"), (b"a", b"2")]


def test_a_tick_that_is_not_queued_moves_no_time(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch came before it; a later tick, of a partition less quiet, would have that time."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        time = daemon.state.time(0)
        asked = Event()

        def put_if_idle(_: object) -> bool:
            """Queue nothing."""
            asked.set()
            return False

        monkeypatch.setattr(daemon.processor.opened.ticks, "quiet_time", lambda *_: 1 << 50)
        monkeypatch.setattr(daemon.state, "due_keys", lambda *_, **__: [b"a"])
        with monkeypatch.context() as patch:
            patch.setattr(daemon.processor._open, "put_if_idle", put_if_idle)
            assert asked.wait(PATIENCE)
            daemon.processor.on_pause(held)
        monkeypatch.setattr(daemon.state, "due_keys", lambda *_, **__: [])
        assert wait_for(lambda: not daemon.state._wanted_times, Deadline.after(PATIENCE))
        assert daemon.state.time(0) == time


@pytest.mark.parametrize("came_before", [True, False])
def test_a_tick_behind_a_batch_of_ours_has_not_failed(bench: KeyedBench, came_before: bool) -> None:
    """It conflicts with that commit, and the next look is soon; another's is a failure."""
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        answer: Future[BatchResponse] = Future()
        answer.set_exception(SinkConflictError(held.partition, 0, 1))
        own = daemon.processor.held.find(0)
        assert own is not None
        daemon.processor.opened.ticks.end_tick(own, 0 if came_before else 1, answer)
    assert any(each["event"] == "tick_failed" for each in logs) is not came_before


@pytest.mark.parametrize("topic_id", [INPUT_ID, "another"])
def test_state_without_an_offset_is_not_added_to(bench: KeyedBench, topic_id: str) -> None:
    """Without an offset, or with another input topic, it is unknown which records were counted."""
    with bench.daemon() as first:
        count_to(first, 0, b"a", 3)
    if topic_id == INPUT_ID:
        bench.stored.clear()
    with bench.daemon() as again, capture_logs() as logs:
        held = again.assign(0, wait=False, topic_id=topic_id)
        other = again.assign(1, wait=False)

        def said() -> list[Any]:
            return [each["reason"] for each in logs if each["event"] == "state_without_offset"]

        assert wait_for(said, Deadline.after(PATIENCE))
        assert again.send(held, b"a").request is Request.REVERT
        assert again.rests.resting == {0}
        assert "headrace state forget" in said()[0]
        assert again.send(other, b"b").request is Request.ADVANCE


def test_a_corrupt_store_is_found_by_a_write(bench: KeyedBench) -> None:
    """RocksDB finds a bad block as it merges files, and refuses all writes from then on.

    What was committed stands; the store is made again from the changelog, and it counts on.
    """
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        daemon.store.write_tables()
        (table,) = bench.folder.glob("*.sst")
        data = table.read_bytes()
        table.write_bytes(bytes(0xFF ^ each for each in data[:20]) + data[20:])
        for key in (b"b", b"c", b"d"):
            daemon.send(held, key)
            with suppress(Exception):  # files are merged behind it: it fails, or what is next does
                daemon.store.write_tables()

        def refused() -> bool:
            daemon.send(held, b"b")
            return not daemon.state.flush() or any(bench.folder.parent.glob("db.corrupt-*"))

        assert wait_for(refused, Deadline.after(PATIENCE))
        counted = int(daemon.member.outputs[-1][1])
        daemon.wait_for_new_store()
        assert [daemon.counted(0, key) for key in (b"a", b"b", b"d")] == [1, counted, 1]
        daemon.send(held, b"b")
        assert daemon.member.outputs[-1] == (b"b", b"%d" % (counted + 1))


def test_a_corrupt_store_is_found_by_a_tick(bench: KeyedBench) -> None:
    """Without records, the check for timers makes the store again, and the timer fires."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a", b"later")
        daemon.corrupt_tables()
        fired = lambda: (b"a", b"fired") in daemon.member.outputs  # noqa: E731
        assert wait_for(fired, Deadline.after(PATIENCE)), daemon.member.outputs
        daemon.wait_for_new_store()


def test_a_corrupt_store_is_found_by_a_restore(bench: KeyedBench) -> None:
    """A position that cannot be read is not tried again for ever: the store is made again."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        daemon.processor.on_stream_termination(held)
        daemon.corrupt_tables()
        daemon.assign(0)
        assert daemon.counted(0, b"a") == 1
        daemon.wait_for_new_store()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_store_that_cannot_be_opened_is_made_again(bench: KeyedBench, name: str) -> None:
    """A start finds its files to be others than were written, moves them aside, and goes on."""
    with bench.daemon() as daemon:
        count_to(daemon, 0, b"a", 2)
        daemon.store.write_tables()
    (file,) = bench.folder.glob(name)
    file.write_bytes(bytes(0xFF ^ each for each in file.read_bytes()))
    with bench.daemon() as again:
        again.assign(0)
        assert again.counted(0, b"a") == 2
        again.wait_for_new_store()


def test_a_partition_under_way_begins_again_in_the_new_store(bench: KeyedBench) -> None:
    """Rows that it read are in the store that was moved aside, and are read again."""
    with bench.daemon() as daemon:
        count_to(daemon, 1, b"b", 3)
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.written_by_another(1, b"c", b"7")
        bench.gate.clear()
        daemon.assign(1, wait=False)
        assert bench.waiting.wait(PATIENCE)
        daemon.corrupt_tables()
        with pytest.raises(CorruptStoreError):
            daemon.send(held, b"a")
        bench.gate.set()
        daemon.wait_for_new_store()
        found = [daemon.counted(*each) for each in ((0, b"a"), (1, b"b"), (1, b"c"))]
        assert found == [1, 3, 7]

"""One owned partition: transitions, due times, and moving its position."""

from __future__ import annotations

import ast
from concurrent.futures import Future
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import headrace
from headrace.channel import partition
from headrace.channel.buffer import BatchSlice, chunk_of
from headrace.channel.events import OffsetCommitted, OffsetOutOfRange
from headrace.channel.pauses import DeliveryGate, Pause, PauseReason
from headrace.channel.progress import Outstanding
from headrace.channel.states import FINAL, TRANSITIONS, EndReason, PartitionState
from headrace.coordinators.lease import Lease
from headrace.core.errors import FatalError
from headrace.core.records import Batch
from headrace.processors import BatchResponse
from headrace.testing.records import FakeRecord
from tests.unit.channel.conftest import owned_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.core.records import Record
    from headrace.testing.channel import FakeClock

S = PartitionState


def records(first: int, count: int) -> list[Record]:
    """Return consecutive records."""
    return [FakeRecord(offset_=first + index, value_=b"x") for index in range(count)]


def waiting(owned: OwnedPartition, fetched: int = 0) -> OwnedPartition:
    """Bring a partition to WAITING with records from 0 on in its buffer."""
    owned.life.become(S.WAITING)
    owned.progress.buffer.restart(0)
    if fetched:
        owned.progress.buffer.append(
            owned.progress.buffer.generation, chunk_of(records(0, fetched)), 1000.0
        )
    return owned


def hand_out(owned: OwnedPartition, deadline: float = 1e9) -> Outstanding:
    """Take the next batch as a delivery does."""
    cut = owned.take_batch(2000.0)
    assert cut is not None
    batch = Batch(owned, cut.start, cut.records, cut.next_offset, cut.size)
    item = Outstanding(batch, cut, Future(), deadline)
    owned.progress.deliver(item)
    return item


@pytest.mark.parametrize(("before", "after"), list(product(S, S)))
def test_only_the_table_s_transitions_are_possible(
    own: Callable[..., OwnedPartition], before: PartitionState, after: PartitionState
) -> None:
    """Every pair of states is allowed or refused exactly as the table says."""
    owned = own()
    owned.life.state = before
    if before is after or after in TRANSITIONS[before]:
        owned.life.become(after)
        assert owned.life.state is after
    else:
        with pytest.raises(FatalError, match="cannot go from"):
            owned.life.become(after)


def test_every_state_can_be_reached_and_every_other_left() -> None:
    """The table has no island, and only the final states have no way out."""
    reached = set[PartitionState]().union(*TRANSITIONS.values())
    assert reached == set(S)
    assert {state for state in S if not TRANSITIONS[state]} == FINAL


def test_an_ending_only_grows_stronger(own: Callable[..., OwnedPartition]) -> None:
    """A release asked for after a loss does not undo the loss."""
    owned = own()
    owned.life.end(EndReason.LOST)
    owned.life.end(EndReason.RELEASE)
    assert owned.life.ending is EndReason.LOST


def test_a_partition_with_its_batches_out_waits_for_answers(
    own: Callable[..., OwnedPartition],
) -> None:
    """With max_in_flight batches out only the oldest one's deadline makes it due."""
    owned = waiting(own(), fetched=40)
    assert owned.due() == 0.0
    hand_out(owned, deadline=5000.0)
    hand_out(owned, deadline=6000.0)
    assert owned.due() == 5000.0
    owned.progress.outstanding[0].answer.set_result(BatchResponse.advance())
    assert owned.due() == 0.0


def test_an_answer_out_of_turn_does_not_make_it_due(own: Callable[..., OwnedPartition]) -> None:
    """The second batch's answer waits for the first one's."""
    owned = waiting(own(), fetched=40)
    hand_out(owned, deadline=5000.0)
    hand_out(owned).answer.set_result(BatchResponse.advance())
    assert owned.due() == 5000.0


def test_a_pause_leaves_it_due_until_it_has_paused(
    own: Callable[..., OwnedPartition], delivery_gate: DeliveryGate
) -> None:
    """Paused: due once to enter PAUSED, then not, and due again to leave it."""
    owned = waiting(own(), fetched=40)
    pause = Pause(PauseReason.OPERATOR, "test", 0.0)
    delivery_gate.pauses.add(pause)
    assert owned.due() == 0.0
    owned.life.become(S.PAUSED)
    assert owned.due() is None
    delivery_gate.pauses.remove(pause)
    assert owned.due() == 0.0


def test_a_pause_waits_for_answers_and_commits(
    own: Callable[..., OwnedPartition], delivery_gate: DeliveryGate
) -> None:
    """While a batch is out or a commit is owed, the pause has nothing to do yet."""
    owned = waiting(own(), fetched=40)
    item = hand_out(owned, deadline=5000.0)
    delivery_gate.pauses.add(Pause(PauseReason.OPERATOR, "test", 0.0))
    assert owned.due() == 5000.0
    owned.progress.outstanding.clear()
    sequence = owned.pending_commits.enqueue(None)
    assert owned.due() is None
    owned.post(OffsetCommitted(item.batch.next_offset, sequence))
    assert owned.due() == 0.0


def test_suspended_it_waits_for_zookeeper_and_nothing_else(
    own: Callable[..., OwnedPartition], delivery_gate: DeliveryGate
) -> None:
    """While ZooKeeper is silent a partition with records is not due; afterwards it is."""
    owned = waiting(own(), fetched=40)
    delivery_gate.suspended.set()
    owned.life.suspend()
    assert owned.due() is None
    delivery_gate.suspended.clear()
    assert owned.due() == 0.0


def test_work_is_current_until_the_lease_is_over(
    own: Callable[..., OwnedPartition], clock: FakeClock
) -> None:
    """A sink may commit while the lease lasts, by this member's own clock."""
    owned = waiting(own(session_timeout=10.0))
    assert owned.is_current()
    clock.advance(10)
    assert not owned.is_current()


@pytest.mark.parametrize("refuses", [True, False])
def test_while_zookeeper_is_silent_only_a_sink_that_refuses_the_late_may_store(
    clock: FakeClock, *, refuses: bool
) -> None:
    """Without offsets in the sink nothing takes effect on the lease alone."""
    delivery_gate = DeliveryGate(sink_refuses=refuses)
    owned = waiting(
        owned_partition(lease=Lease(10.0, clock, clock.monotonic()), delivery_gate=delivery_gate)
    )
    delivery_gate.suspended.set()
    assert owned.is_current() is refuses
    delivery_gate.suspended.clear()
    assert owned.is_current()
    delivery_gate.suspended.set()
    clock.advance(10)
    assert not owned.is_current()


def test_a_revert_delivers_the_same_batches_again_from_memory(
    own: Callable[..., OwnedPartition],
) -> None:
    """Going back to an outstanding batch needs no fetch and keeps the batches as they were."""
    owned = waiting(own(), fetched=40)
    first, second = hand_out(owned), hand_out(owned)
    assert owned.rewind(first.cut.start, owned.progress.withdraw())
    assert first.answer.cancelled()
    assert second.answer.cancelled()
    assert owned.position == 0
    assert hand_out(owned).cut == first.cut
    assert hand_out(owned).cut == second.cut
    owned.progress.outstanding.clear()
    assert hand_out(owned).cut.start == second.cut.next_offset


def test_a_seek_into_a_batch_delivers_the_rest_of_it(own: Callable[..., OwnedPartition]) -> None:
    """Resuming at record i of a batch begins exactly there."""
    owned = waiting(own(), fetched=40)
    item = hand_out(owned)
    owned.progress.outstanding.clear()
    assert owned.rewind(4, [item.cut])
    again = hand_out(owned).cut
    assert (again.start, again.records[0].offset(), again.next_offset) == (4, 4, 10)


@pytest.mark.parametrize("target", [60, 5])
def test_a_seek_beyond_the_buffer_needs_a_fetch(
    own: Callable[..., OwnedPartition], target: int
) -> None:
    """Everything is dropped for an offset before the retained records or after the buffer."""
    owned = waiting(own(), fetched=40)
    hand_out(owned)
    owned.progress.outstanding.clear()
    item = hand_out(owned)
    owned.progress.outstanding.clear()
    assert not owned.rewind(target, [item.cut])
    assert (owned.position, owned.progress.buffer.records) == (target, 0)


def test_a_restart_resets_the_state_of_the_former_position(
    own: Callable[..., OwnedPartition],
) -> None:
    """Records, failures, back-off and doubt of the former position do not hold at the new one."""
    owned = waiting(own(), fetched=40)
    out = hand_out(owned)
    owned.progress.pending.append(BatchSlice(10, records(10, 10), 20, 100))
    owned.progress.note_gap(50, owned.progress.buffer.generation)
    owned.retries.count_failure(out.cut)
    owned.retries.hold_until(5000.0)
    generation = owned.progress.buffer.generation
    owned.log_doubt.begin(OffsetOutOfRange(generation))
    owned.log_doubt.halt()
    owned.restart_at(60, leader_epoch=3)
    assert out.answer.cancelled()
    assert (
        owned.progress.processed_offset,
        owned.position,
        owned.progress.buffer.fetch_offset,
    ) == (60, 60, 60)
    assert owned.progress.leader_epoch_at(60) == 3
    assert owned.progress.buffer.generation > generation
    assert (owned.held_bytes(), owned.progress.suspect_records, owned.batch) == (0, 0, None)
    assert (
        owned.retries.attempts,
        owned.retries.not_before,
        owned.log_doubt.doubt,
        owned.rests,
    ) == (0, 0.0, None, False)
    assert owned.progress.take_gap() is None


def test_a_revert_past_the_buffer_keeps_other_state(
    own: Callable[..., OwnedPartition],
) -> None:
    """The processed offset, a wait and a doubt of the log are not the processor's to revert."""
    owned = waiting(own(), fetched=40)
    owned.progress.process_to(10, None)
    owned.retries.hold_until(5000.0)
    doubt = OffsetOutOfRange(owned.progress.buffer.generation)
    owned.log_doubt.begin(doubt)
    assert not owned.rewind(60, [])
    assert (owned.position, owned.progress.processed_offset) == (60, 10)
    assert (owned.retries.not_before, owned.log_doubt.doubt) == (5000.0, doubt)


def test_only_its_own_module_changes_a_partition(own: Callable[..., OwnedPartition]) -> None:
    """Every other module of the package calls its methods."""
    attributes = set(vars(own()))
    found = []
    for path in (Path(headrace.__file__).parent).rglob("*.py"):
        if path == Path(partition.__file__):
            continue
        found += [
            f"{path.name}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr in attributes
            and "owned" in ast.unparse(node.value)
        ]
    assert found == []


@example(["records", "deliver", "gap", "hear", "records", "deliver", "answer", "answer"])
@given(st.lists(st.sampled_from(["records", "gap", "hear", "deliver", "answer"]), max_size=40))
def test_commits_rise_to_the_end_whatever_gaps_come_between(steps: list[str]) -> None:
    """None goes back, and once all batches are answered the last one is where the log ends."""
    owned = waiting(owned_partition())
    progress, buffer, generation = (
        owned.progress,
        owned.progress.buffer,
        owned.progress.buffer.generation,
    )
    unheard: list[int] = []
    commits = [0]
    for step in [*steps, "hear", *["deliver", "answer"] * len(steps)]:
        if step == "records":
            buffer.append(generation, chunk_of(records(buffer.fetch_offset, 3)), 1000.0)
        elif step == "gap":
            gap = buffer.pass_gap(generation, buffer.fetch_offset + 1)
            unheard += [] if gap is None else [gap]
        elif step == "hear":
            # the fetcher tells of a gap by an event
            while unheard:
                progress.note_gap(unheard.pop(0), generation)
        elif step == "deliver" and buffer.records and len(progress.outstanding) < 2:
            hand_out(owned)
        elif step == "answer" and progress.outstanding:
            with progress.settles() as item:
                progress.process_to(item.batch.next_offset, item.batch)
                commits.append(item.batch.next_offset)
        passed = progress.take_gap()
        commits += [] if passed is None else [passed]
    assert commits == sorted(commits)
    assert commits[-1] == buffer.fetch_offset


def test_a_seek_into_a_gap_starts_there(own: Callable[..., OwnedPartition]) -> None:
    """An offset without a record is a position like any other."""
    owned = waiting(own())
    cut = BatchSlice(0, [FakeRecord(offset_=0), FakeRecord(offset_=9)], 10, 100)
    owned.progress.buffer.restart(10)
    assert owned.rewind(5, [cut])
    again = hand_out(owned).cut
    assert (again.start, [record.offset() for record in again.records]) == (5, [9])


@pytest.mark.parametrize("again", [True, False])
def test_a_batch_that_was_taken_is_known_at_once(
    own: Callable[..., OwnedPartition], *, again: bool
) -> None:
    """An operator may have one of its records left out before the processor has it."""
    owned = waiting(own(), fetched=40)
    if again:
        cut = hand_out(owned).cut
        owned.rewind(0, owned.progress.withdraw())
        owned.retries.count_failure(cut)
    assert owned.take_batch(2000.0) is not None
    assert owned.batch == (0, 10)


def fail(owned: OwnedPartition, item: Outstanding) -> None:
    """Settle the batch that is out as one that failed and comes again."""
    with owned.progress.settles() as oldest:
        assert oldest is item
        owned.retries.count_failure(item.cut)
        assert owned.rewind(item.cut.start, [item.cut])


def in_its_turn(owned: OwnedPartition, turn: str) -> Callable[[], object]:
    """Bring a batch that failed once to where its ``turn`` comes, and return what makes it."""
    fail(owned, hand_out(owned))
    if turn == "take":
        return lambda: owned.take_batch(2000.0)
    if turn == "hand out":
        cut = owned.take_batch(2000.0)
        assert cut is not None
        batch = Batch(owned, cut.start, cut.records, cut.next_offset, cut.size)
        item = Outstanding(batch, cut, Future(), 1e9)
        return lambda: owned.progress.deliver(item)
    item = hand_out(owned)
    if turn == "settle":
        return owned.progress.settles().__enter__
    return lambda: fail(owned, item)


def interrupt(value: Any, before_read: Callable[[], object]) -> None:
    """Call a function before each read of an attribute of a value, its own reads among them."""
    kind: Any = type(value)

    def __getattribute__(self: object, name: str) -> Any:  # noqa: N807 - the method of that name
        before_read()
        return kind.__getattribute__(self, name)

    value.__class__ = type(
        kind.__name__, (kind,), {"__slots__": (), "__getattribute__": __getattribute__}
    )


def read_meanwhile(
    owned: OwnedPartition, turn: Callable[[], object], moment: int
) -> tuple[Any, bool]:
    """Return ``owned.batch``, and whether another thread made its turn before so many reads."""
    reads, turns = count(), {moment: turn}

    def before_read() -> None:
        if turns and (make := turns.pop(next(reads), None)) is not None:
            make()

    for part in (owned.progress, owned.retries):
        interrupt(part, before_read)
    return owned.batch, not turns


@pytest.mark.parametrize("turn", ["take", "hand out", "settle", "fail"])
def test_a_batch_that_comes_again_is_known_at_every_moment(
    own: Callable[..., OwnedPartition], turn: str
) -> None:
    """An operator can skip in the batch at any moment of its holder's turn."""
    missed, moment, is_made = [], 0, True
    while is_made:
        owned = waiting(own(), 10)
        found, is_made = read_meanwhile(owned, in_its_turn(owned, turn), moment)
        if found != (0, 10):
            missed.append(moment)
        moment += 1
    assert moment > 1
    assert missed == []


def test_a_smaller_next_size_bounds_one_batch_only(own: Callable[..., OwnedPartition]) -> None:
    """The size a processor asks for holds for the next batch, then the channel's again."""
    owned = waiting(own(), fetched=40)
    owned.progress.next_batch.wish(3, None)
    assert [len(hand_out(owned).cut.records) for _ in range(2)] == [3, 10]


def test_a_larger_next_size_does_not_exceed_the_channel_s(
    own: Callable[..., OwnedPartition],
) -> None:
    """A processor cannot break the memory budget."""
    owned = waiting(own(), fetched=40)
    owned.progress.next_batch.wish(1000, 1_000_000)
    assert len(hand_out(owned).cut.records) == 10


def test_batches_that_a_processor_copies_fit_into_the_share(
    own: Callable[..., OwnedPartition],
) -> None:
    """With a small share of the budget batches are cut smaller than configured."""
    owned = waiting(own(copies=2), fetched=40)
    whole = hand_out(owned).cut
    owned.progress.outstanding.clear()
    owned.progress.next_batch.set_share(whole.size * 5 // 2)
    assert len(hand_out(owned).cut.records) == 5


def test_buffered_records_are_delivered_in_full_batches(
    own: Callable[..., OwnedPartition],
) -> None:
    """A small share lowers the records to wait for, but a batch takes all that are buffered."""
    owned = waiting(own(), fetched=40)
    whole = hand_out(owned).cut
    owned.progress.outstanding.clear()
    owned.progress.next_batch.set_share(whole.size * 3 // 2)
    assert owned.progress.next_batch.waits_for().max_bytes == whole.size // 2
    assert len(hand_out(owned).cut.records) == len(whole.records) == 10

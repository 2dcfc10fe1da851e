"""Carrying out a plan: hold the group, look again, move the sink's offsets, commit the group's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.clock import Deadline
from headrace.config.kinds.targets import Replay
from headrace.offsets.errors import ChannelRunningError, OffsetsError
from headrace.offsets.hold import holding
from headrace.spark.sinks.contract import CommitConflictError, OutputReplacer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.clock import Clock
    from headrace.config import ChannelConfig
    from headrace.kafka.ports import Failure, OffsetStore
    from headrace.offsets.hold import Hold
    from headrace.offsets.planning import Change, Plan
    from headrace.offsets.reading import PartitionOffsets
    from headrace.records import TopicPartition
    from headrace.spark.sinks.contract import OffsetKeeper, OffsetMove
    from headrace.zookeeper.protocol import Session

T = TypeVar("T")

#: Seconds between two looks whether the hold has to be prolonged: a fraction of any session.
_KEEP_S = 0.1

#: Seconds the commit of the group's offsets may take, as in a channel.
COMMIT_TIMEOUT = 10.0

#: Seconds in which the producers of former owners have to be shut out; about 0.1 s for each.
FENCE_TIMEOUT = 10.0

_SINK_MOVED = "the sink's offsets were moved, and a start goes by them"


@dataclass(frozen=True, slots=True)
class Group:
    """A stopped channel's group and what its offsets are stored in.

    ``subscribers`` asks Kafka who consumes in the group by Kafka's own protocol.
    """

    channel: ChannelConfig
    session: Session
    store: OffsetStore
    keeper: OffsetKeeper | None
    subscribers: Callable[[], Sequence[str]]
    clock: Clock


def change(
    group: Group,
    partitions: Sequence[TopicPartition],
    read: Callable[[TopicPartition], PartitionOffsets],
    plan: Callable[[Sequence[PartitionOffsets]], Plan],
    note: str,
    *,
    replay: Replay | None = None,
) -> Plan:
    """Make and carry out a plan while no member can begin with the partitions. Blocks.

    ``read`` is called when they are held, so that what it finds cannot become outdated; ``plan`` is
    called on another thread. ``note`` says in the sink's history what was done, and ``replay`` what
    becomes of the sink's output of records that are read again.

    Raises:
        ChannelRunningError: somebody consumes in the group; nothing was changed.
        OffsetsError: it failed; the message says what was changed.
    """
    with holding(group.session, group.channel, partitions, group.clock) as hold:
        refuse_subscribers(group)
        hold.fence(group.store, Deadline.after(FENCE_TIMEOUT, group.clock))
        found = [_read(hold, read, partition) for partition in partitions]
        made = _while_held(hold, lambda: plan(found))
        hold.raise_above(found)
        refuse_subscribers(group)
        hold.confirm()
        moved = _while_held(hold, lambda: _move_sink(group, made, note, replay))
        if moved:
            _confirm_again(hold)
        _commit(group, made, hold, moved=moved)
    return made


def _read(
    hold: Hold, read: Callable[[TopicPartition], PartitionOffsets], partition: TopicPartition
) -> PartitionOffsets:
    hold.keep()
    return read(partition)


def _confirm_again(hold: Hold) -> None:
    try:
        hold.confirm()
    except OffsetsError as error:
        raise OffsetsError(f"{_SINK_MOVED}; {error}") from error


def refuse_subscribers(group: Group) -> None:
    """Refuse to go on while consumers are subscribed in the group.

    Raises:
        ChannelRunningError: some are; the message names them.
    """
    active = group.subscribers()
    if active:
        raise ChannelRunningError(
            f"group {group.channel.group} has subscribed consumers: {', '.join(active)}; they are "
            "other programs that use the same group, so stop them, or give the channel a group of "
            "its own"
        )


def _while_held(hold: Hold, work: Callable[[], T]) -> T:
    """Do what may take longer than a lease, as looking through a large table does."""
    with ThreadPoolExecutor(1, thread_name_prefix="offsets") as pool:
        future = pool.submit(work)
        while not wait([future], _KEEP_S).done:
            # a hold that is lost is found out by the confirmation that comes behind each work
            with suppress(OffsetsError):
                hold.keep()
        return future.result()


def _move_sink(group: Group, plan: Plan, note: str, replay: Replay | None) -> bool:
    """Move the sink's offsets first, all or none, as a start goes by them; whether there were."""
    replaces = replay is Replay.REPLACE
    moves = [
        move
        for change in plan
        if (move := change.as_move()) is not None and (change.moves_sink or replaces)
    ]
    if not moves:
        return False
    keeper = group.keeper
    assert keeper is not None, "no offset of a sink was found without one"
    history = _history(note, moves, replay)
    try:
        if replaces:
            assert isinstance(keeper, OutputReplacer), "the plan was refused otherwise"
            keeper.replace(moves, history)
        else:
            keeper.move_offsets(moves, history)
    except CommitConflictError as error:
        raise OffsetsError(
            f"nothing was changed: somebody writes to the sink ({error}); stop who does, then try "
            "again"
        ) from error
    except Exception as error:
        raise OffsetsError(
            f"the sink's offsets could not be moved: {type(error).__name__}: {error}; the group's "
            "were not touched, so mend the sink and run the same command again"
        ) from error
    return True


def _history(note: str, moves: Sequence[OffsetMove], replay: Replay | None) -> str:
    moved = {str(move.partition): [move.start, move.next_offset] for move in moves}
    said: dict[str, object] = {"operation": note, "moved": moved}
    if any(move.next_offset < move.start for move in moves) and replay is not None:
        said["replay"] = replay.value
    return json.dumps(said, separators=(",", ":"))


def _commit(group: Group, plan: Plan, hold: Hold, *, moved: bool) -> None:
    """Store the group's offsets, also those that stay, under the epochs of the hold.

    A member would do the same with its start positions: whoever compares the epoch in a commit
    with that of the last claim finds them equal.
    """
    offsets = {
        change.found.partition: hold.commit(change.found.partition, *after)
        for change in plan
        if (after := _after(change)) is not None
    }
    if not offsets:
        return
    deadline = Deadline.after(min(COMMIT_TIMEOUT, hold.remaining()), group.clock)
    hold.clean = False
    failures = group.store.commit(offsets, deadline)
    if failures:
        raise OffsetsError(_failure_text(group.channel.group, failures, moved=moved))
    hold.clean = True


def _after(change: Change) -> tuple[int, str | None] | None:
    """Return the offset to store and the topic it is of; None where there is none."""
    if change.after is not None:
        return change.after, change.found.topic_id
    group = change.found.group
    return None if group is None else (group.offset, group.topic_id)


def _failure_text(group: str, failures: Mapping[TopicPartition, Failure], *, moved: bool) -> str:
    named = "; ".join(f"{partition}: {reason}" for partition, reason in failures.items())
    text = f"group {group}: these offsets are not known to be stored: {named}; "
    if moved:
        text += f"{_SINK_MOVED}; "
    return text + "run the same command again, which does what is left"

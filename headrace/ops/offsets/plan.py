"""From what there is and what is wanted to a plan: rules without any I/O of their own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.positions import At, Earliest, Latest, Replay, ShiftBy, To, format_moment
from headrace.core.records import kafkas_topic_id
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.offsets.hold import holding
from headrace.sinks.contract import OffsetMove, OutputReplacer
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.config import ChannelConfig
    from headrace.config.subscription import Subscription
    from headrace.core.clock import Clock
    from headrace.core.positions import Target
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import CommitFailure, OffsetStore
    from headrace.ops.offsets.commands import OffsetsDocument
    from headrace.ops.offsets.hold import Hold
    from headrace.ops.offsets.reader import Cluster, PartitionOffsets
    from headrace.sinks.contract import TransactionalOffsets
    from headrace.zookeeper.protocol import Session


if TYPE_CHECKING:
    #: Finds the first offset not older than a timestamp, None where all are older.
    OffsetAt = Callable[[TopicPartition, int], int | None]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The change of one partition's offset. ``after`` is None where it is left as it is."""

    found: PartitionOffsets
    after: int | None
    notes: tuple[str, ...] = ()

    @property
    def moves_group(self) -> bool:
        """Return whether the group's offset becomes another."""
        group = self.found.group
        if self.after is None:
            return False
        return group is None or group.offset != self.after or self.found.is_of_former_topic

    @property
    def moves_sink(self) -> bool:
        """Return whether the sink's offset changes; one that it does not have stays absent."""
        return self.after is not None and self.found.sink not in {None, self.after}

    @property
    def moves(self) -> bool:
        """Return whether anything changes."""
        return self.moves_group or self.moves_sink

    def as_move(self) -> OffsetMove | None:
        """Return the move of the sink's offset, also to where it stands; None where it has none."""
        if self.after is None or self.found.sink is None:
            return None
        return OffsetMove(self.found.identity, self.found.partition, self.found.sink, self.after)


Plan = tuple[OffsetChange, ...]


def plan_reset(target: Target, found: Sequence[PartitionOffsets], offset_at: OffsetAt) -> Plan:
    """Return what a reset does, each offset within what the broker has."""
    return tuple(_reset(target, offsets, offset_at) for offsets in found)


def _reset(target: Target, offsets: PartitionOffsets, offset_at: OffsetAt) -> OffsetChange:
    match target:
        case At(timestamp):
            found = offset_at(offsets.partition, timestamp)
            if found is not None:
                return change_to(offsets, found)
            note = f"no record from {format_moment(timestamp)} on: the end"
            return change_to(offsets, offsets.high, note)
        case ShiftBy(count):
            if offsets.next is None:
                return OffsetChange(offsets, None, ("no offset to shift: left as it is",))
            return change_to(offsets, offsets.next + count)
        case _:
            return change_to(offsets, _fixed(target, offsets))


def _fixed(target: Earliest | Latest | To, offsets: PartitionOffsets) -> int:
    match target:
        case Earliest():
            return offsets.low
        case Latest():
            return offsets.high
        case To(offset):
            return offset


def change_to(offsets: PartitionOffsets, wanted: int, *notes: str) -> OffsetChange:
    """Return the change to an offset, clamped to the log, with what is to be said about it."""
    after = max(offsets.low, min(wanted, offsets.high))
    said = [*notes]
    if after > wanted:
        said.append(f"{wanted} is before the log: its first offset")
    if after < wanted:
        said.append(f"{wanted} is past the log: its end")
    if offsets.sink is not None and after < offsets.sink:
        said.append("the sink has output of these records")
    return OffsetChange(offsets, after, tuple(said))


def partitions_of(
    document: OffsetsDocument, subscription: Subscription, cluster: Cluster
) -> list[TopicPartition]:
    """Return the partitions that a file is about, once all of them are the channel's.

    Raises:
        UsageError: with every reason why the file is not for this channel and cluster.
    """
    problems = [
        *_cluster_problems(document, cluster),
        *(p for topic in document.topic_ids for p in _topic_problems(document, topic, cluster)),
    ]
    problems += [
        f"topic {topic} is not of this channel, which reads {subscription}; remove it from "
        "the file, or import with the channel that reads it"
        for topic in document.topic_ids
        if not subscription.covers(topic)
    ]
    if problems:
        raise UsageError(*problems)
    return sorted(document.offsets)


def _cluster_problems(document: OffsetsDocument, cluster: Cluster) -> list[str]:
    if document.cluster in {None, cluster.id}:
        return []
    problem = (
        f"the offsets are of cluster {document.cluster}, not of {cluster.id}, and mean other "
        "records here; if they do fit, remove the line cluster and the lines id from the file"
    )
    return [problem]


def _topic_problems(document: OffsetsDocument, topic: str, cluster: Cluster) -> list[str]:
    info = cluster.topics.get(topic)
    if info is None:
        return [
            f"topic {topic} does not exist on the brokers; create it, or remove it from the file"
        ]
    problems = [
        f"topic {topic} has no partition {p.partition}; it has {info.partitions}, from 0 on"
        for p in document.offsets
        if p.topic == topic and p.partition >= info.partitions
    ]
    wanted = document.topic_ids[topic]
    if wanted is not None and kafkas_topic_id(wanted) != kafkas_topic_id(info.topic_id):
        problems.append(
            f"topic {topic} was created again since the export (it had the id {wanted}, now "
            f"{info.topic_id}), so offsets mean other records; if they do fit, remove the line id "
            "from the file"
        )
    return problems


def plan_import(document: OffsetsDocument, found: Sequence[PartitionOffsets]) -> Plan:
    """Return what an import does.

    Raises:
        UsageError: the brokers do not have some of the offsets.
    """
    problems = [
        f"{offsets.partition}: offset {wanted} is outside of what the brokers have, "
        f"{offsets.low} to {offsets.high}; correct it in the file, or remove it there and use reset"
        for offsets in found
        if not offsets.low <= (wanted := document.offsets[offsets.partition]) <= offsets.high
    ]
    if problems:
        raise UsageError(*problems)
    return tuple(change_to(o, document.offsets[o.partition]) for o in found)


T = TypeVar("T")

#: Seconds between two looks whether the hold has to be prolonged: a fraction of any session.
_KEEP_S = 0.1

#: Seconds the commit of the group's offsets may take, as in a channel.
COMMIT_TIMEOUT = 10.0

#: Seconds in which the producers of former owners have to be shut out; about 0.1 s for each.
FENCE_TIMEOUT = 10.0

_SINK_MOVED = "the sink's offsets were moved, and a start goes by them"


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A stopped channel's group and what its offsets are stored in.

    ``subscribers`` asks Kafka who consumes in the group by Kafka's own protocol.
    """

    channel: ChannelConfig
    session: Session
    store: OffsetStore
    sink_offsets: TransactionalOffsets | None
    subscribers: Callable[[], Sequence[str]]
    clock: Clock


def change(
    group: GroupOffsets,
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
        ChannelRunningError: a member consumes in the group; nothing was changed.
        HeadraceError: it failed; the message says what was changed.
    """
    with holding(group.session, group.channel, partitions, group.clock) as hold:
        refuse_subscribers(group)
        hold.fence(group.store, Deadline.after(FENCE_TIMEOUT, group.clock))
        found = [_read(hold, read, partition) for partition in partitions]
        made = while_held(hold, lambda: plan(found))
        hold.raise_above(found)
        refuse_subscribers(group)
        hold.confirm()
        moved = while_held(hold, lambda: _move_sink(group, made, note, replay))
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
    except HeadraceError as error:
        raise HeadraceError(f"{_SINK_MOVED}; {error}") from error


def refuse_subscribers(group: GroupOffsets) -> None:
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


def while_held(hold: Hold, work: Callable[[], T]) -> T:
    """Run ``work``, which may take longer than a lease, while the hold is renewed."""
    with ThreadPoolExecutor(1, thread_name_prefix="offsets") as pool:
        future = pool.submit(work)
        while not wait([future], _KEEP_S).done:
            # a hold that is lost is found out by the confirmation that comes after each work
            with suppress(HeadraceError):
                hold.keep()
        return future.result()


def _move_sink(group: GroupOffsets, plan: Plan, note: str, replay: Replay | None) -> bool:
    """Move the sink's offsets first, all or none, as a start goes by them; whether there were."""
    replaces = replay is Replay.REPLACE
    moves = [
        move
        for change in plan
        if (move := change.as_move()) is not None and (change.moves_sink or replaces)
    ]
    if not moves:
        return False
    sink_offsets = group.sink_offsets
    assert sink_offsets is not None, "no offset of a sink was found without one"
    history = _history(note, moves, replay)
    try:
        if replaces:
            assert isinstance(sink_offsets, OutputReplacer), "the plan was refused otherwise"
            sink_offsets.replace(moves, history)
        else:
            sink_offsets.move_offsets(moves, history)
    except CommitConflictError as error:
        raise HeadraceError(
            f"nothing was changed: another process writes to the sink ({error}); stop it, then "
            "try again"
        ) from error
    except Exception as error:
        raise HeadraceError(
            f"the sink's offsets could not be moved: {type(error).__name__}: {error}; the group's "
            "were not touched, so fix the sink and run the same command again"
        ) from error
    return True


def _history(note: str, moves: Sequence[OffsetMove], replay: Replay | None) -> str:
    moved = {str(move.partition): [move.start, move.next_offset] for move in moves}
    said: dict[str, object] = {"operation": note, "moved": moved}
    if any(move.next_offset < move.start for move in moves) and replay is not None:
        said["replay"] = replay.value
    return json.dumps(said, separators=(",", ":"))


def _commit(group: GroupOffsets, plan: Plan, hold: Hold, *, moved: bool) -> None:
    """Store the group's offsets, also those that stay, under the epochs of the hold.

    A member would do the same with its start positions: one that compares the epoch in a commit
    with that of the last claim finds them equal.
    """
    offsets = {
        change.found.partition: hold.commit(change.found.partition, *after)
        for change in plan
        if (after := _offset_after(change)) is not None
    }
    if not offsets:
        return
    deadline = Deadline.after(min(COMMIT_TIMEOUT, hold.remaining()), group.clock)
    hold.clean = False
    failures = group.store.commit(offsets, deadline)
    if failures:
        raise HeadraceError(_failure_text(group.channel.group, failures, moved=moved))
    hold.clean = True


def _offset_after(change: OffsetChange) -> tuple[int, str | None] | None:
    """Return the offset to store and the topic it is of; None where there is none."""
    if change.after is not None:
        return change.after, change.found.topic_id
    group = change.found.group
    return None if group is None else (group.offset, group.topic_id)


def _failure_text(
    group: str, failures: Mapping[TopicPartition, CommitFailure], *, moved: bool
) -> str:
    named = "; ".join(f"{partition}: {reason}" for partition, reason in failures.items())
    text = f"group {group}: these offsets are not known to be stored: {named}; "
    if moved:
        text += f"{_SINK_MOVED}; "
    return text + "run the same command again, which does what is left"

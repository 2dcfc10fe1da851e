"""From what there is and what is wanted to a plan: rules without any I/O of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.kinds.moments import format_moment
from headrace.config.kinds.targets import At, Earliest, Latest, ShiftBy, To
from headrace.spark.sinks.contract import OffsetMove

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.config.kinds.targets import Target
    from headrace.offsets.reading import PartitionOffsets
    from headrace.records import TopicPartition

    #: Finds the first offset not older than a timestamp, None where all are older.
    OffsetAt = Callable[[TopicPartition, int], int | None]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one partition. ``after`` is None where it is left as it is."""

    found: PartitionOffsets
    after: int | None
    notes: tuple[str, ...] = ()

    @property
    def moves_group(self) -> bool:
        """Whether the group's offset becomes another."""
        group = self.found.group
        if self.after is None:
            return False
        return group is None or group.offset != self.after or self.found.is_of_former_topic

    @property
    def moves_sink(self) -> bool:
        """Whether the sink's offset becomes another; one that it does not have stays absent."""
        return self.after is not None and self.found.sink not in {None, self.after}

    @property
    def moves(self) -> bool:
        """Whether anything changes."""
        return self.moves_group or self.moves_sink

    def as_move(self) -> OffsetMove | None:
        """Return the move of the sink's offset, also to where it stands; None where it has none."""
        if self.after is None or self.found.sink is None:
            return None
        return OffsetMove(self.found.identity, self.found.partition, self.found.sink, self.after)


Plan = tuple[Change, ...]


def plan_reset(target: Target, found: Sequence[PartitionOffsets], offset_at: OffsetAt) -> Plan:
    """Return what a reset does, each offset within what the broker has."""
    return tuple(_reset(target, offsets, offset_at) for offsets in found)


def _reset(target: Target, offsets: PartitionOffsets, offset_at: OffsetAt) -> Change:
    match target:
        case At(timestamp):
            found = offset_at(offsets.partition, timestamp)
            if found is not None:
                return change_to(offsets, found)
            note = f"no record from {format_moment(timestamp)} on: the end"
            return change_to(offsets, offsets.high, note)
        case ShiftBy(count):
            if offsets.next is None:
                return Change(offsets, None, ("no offset to shift: left as it is",))
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


def change_to(offsets: PartitionOffsets, wanted: int, *notes: str) -> Change:
    """Return the change to an offset, clamped to the log, with what is to be said about it."""
    after = max(offsets.low, min(wanted, offsets.high))
    said = [*notes]
    if after > wanted:
        said.append(f"{wanted} is before the log: its first offset")
    if after < wanted:
        said.append(f"{wanted} is behind the log: its end")
    if offsets.sink is not None and after < offsets.sink:
        said.append("the sink has output of these records")
    return Change(offsets, after, tuple(said))

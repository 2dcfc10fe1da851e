from __future__ import annotations

from headrace.core.positions import At, Earliest, Latest, ShiftBy, Target, To
from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from headrace.ops.offsets.plan import OffsetChange, plan_reset
from headrace.ops.offsets.reader import PartitionOffsets

P0 = TopicPartition("events", 0)


def at(
    group: int | None = 50, sink: int | None = None, low: int = 10, high: int = 100
) -> PartitionOffsets:
    """Return a partition's offsets."""
    stored = None if group is None else StoredOffset(group, 3)
    return PartitionOffsets(P0, "c/g/t/0", low, high, stored, sink)


def reset(target: Target, offsets: PartitionOffsets, found: int | None = None) -> OffsetChange:
    """Plan for one partition; a search by time finds ``found``."""
    (change,) = plan_reset(target, [offsets], lambda *_: found)
    return change


def test_each_target_names_an_offset() -> None:
    """Within the log they are taken as they are, without a note."""
    changes = [
        reset(Earliest(), at()),
        reset(Latest(), at()),
        reset(To(70), at()),
        reset(ShiftBy(-20), at()),
        reset(At(0), at(), 60),
    ]
    assert [change.after for change in changes] == [10, 100, 70, 30, 60]
    assert not any(change.notes for change in changes)


def test_an_offset_outside_of_the_log_is_clamped_with_a_note() -> None:
    """The target is the first offset or the end, and the note has the wanted one."""
    low, high = reset(ShiftBy(-1000), at()), reset(To(1000), at())
    assert (low.after, low.notes) == (10, ("-950 is before the log: its first offset",))
    assert (high.after, high.notes) == (100, ("1000 is past the log: its end",))


def test_a_time_behind_the_last_record_is_the_end() -> None:
    """It is said, because it may not be what was meant."""
    change = reset(At(1_357_016_400_000), at(), None)
    assert change.after == 100
    assert change.notes == ("no record from 2013-01-01T05:00:00Z on: the end",)


def test_an_offset_of_a_former_topic_is_the_first_record() -> None:
    """A start begins there, so shifts count from there; to keep its number is a change as well."""
    stored = StoredOffset(50, 3, "a", "former")
    offsets = PartitionOffsets(P0, "c/g/t/0", 10, 100, stored, None, "present")
    assert offsets.next == 10
    assert reset(ShiftBy(5), offsets).after == 15
    kept = reset(To(50), offsets)
    assert (kept.after, kept.moves_group) == (50, True)
    trusted = PartitionOffsets(P0, "c/g/t/0", 10, 100, StoredOffset(50, 3), None, "present")
    assert trusted.next == 50


def test_without_an_offset_there_is_nothing_to_shift() -> None:
    """The partition is left as it is; other targets do not need an offset."""
    change = reset(ShiftBy(5), at(group=None))
    assert (change.after, change.moves) == (None, False)
    assert change.notes == ("no offset to shift: left as it is",)
    assert reset(Earliest(), at(group=None)).moves_group


def test_the_sink_s_offset_is_the_one_that_is_shifted() -> None:
    """A start goes by it, whatever the group committed."""
    change = reset(ShiftBy(1), at(group=50, sink=60))
    assert (change.after, change.moves_group, change.moves_sink) == (61, True, True)
    assert change.notes == ()


def test_going_back_in_a_sink_is_told() -> None:
    """The sink has output of records that are read again."""
    change = reset(Earliest(), at(group=60, sink=60))
    assert change.notes == ("the sink has output of these records",)


def test_a_sink_without_an_entry_is_not_given_one() -> None:
    """The group's offset decides then, and only that is moved."""
    change = reset(Earliest(), at(sink=None))
    assert (change.moves_group, change.moves_sink) == (True, False)


def test_an_offset_at_its_target_does_not_move() -> None:
    """Group and sink are compared separately."""
    assert not reset(To(50), at(group=50, sink=50)).moves
    only_sink = reset(To(50), at(group=50, sink=60))
    assert (only_sink.moves_group, only_sink.moves_sink) == (False, True)

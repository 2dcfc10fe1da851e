"""Moving keys to where they belong by another number of partitions: ``headrace state repartition``.

A partition's state is of exactly the records before its offset. So an unread record of a key that
belongs elsewhere now would count in a state that begins from nothing: such records are written
again where that may be done, and named otherwise.
"""

from __future__ import annotations

import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.records import ResultRecord, TopicPartition, offset_of
from headrace.extensions.keyed.changelog import record_of
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import REKEY_SUFFIX, is_by_key
from headrace.kafka.ports import ChangelogMark, StoredOffset
from headrace.kafka.result_transactions import CountedMove
from headrace.kafka.source import read_log
from headrace.ops.offsets.plan import while_held
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf, changing, group_held, require_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from headrace.config import Config
    from headrace.core.records import Record
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.ops.state.changelog import ChangelogTable

    Partitioner = Callable[[bytes, int], int]


def _consistent(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


#: Where producers put keys: Java's and ours, and librdkafka's by its default.
PARTITIONERS: Mapping[str, Partitioner] = {"murmur2": partition_of, "consistent": _consistent}

#: Keys that are named of those that have two states.
_SHOWN = 5


@dataclass(slots=True)
class Seen:
    """The answers of a partitioner about rows and unread records.

    ``misfits`` are where it puts none by either number of partitions, ``strays`` unread records
    that are where they belonged before; of both the first one is named. ``early`` has of each
    partition the keys that are there by the new number only. ``arrivals`` are the partitions that
    get rows.
    """

    misfits: int = 0
    misfit: str = ""
    strays: int = 0
    stray: str = ""
    early: dict[int, set[bytes]] = field(default_factory=dict)
    arrivals: set[int] = field(default_factory=set)

    def add_misfit(self, place: str, key: bytes) -> None:
        """Count what is nowhere right."""
        self.misfits += 1
        self.misfit = self.misfit or f"{place}, with key {key!r}"

    def add_stray(self, place: str, key: bytes) -> None:
        """Count an unread record that is where it belonged before."""
        self.strays += 1
        self.stray = self.stray or f"{place}, with key {key!r}"


class Numbers(NamedTuple):
    """For how many partitions the state was, and for how many it is to be."""

    before: int
    after: int


class Repartition:
    """The move of one channel's rows to another number of partitions. Every method but ``ends``
    blocks, perhaps for long.

    ``unread`` has the first unread offset of each partition of the input, and its end.
    """

    def __init__(
        self,
        state: StateOf,
        changelog: ChangelogTable,
        numbers: Numbers,
        unread: Mapping[int, tuple[int, int]],
    ) -> None:
        self._state = state
        self._changelog = changelog
        self._numbers = numbers
        self._unread = unread
        #: Where each partition of the changelog begins and ends, without what is written here.
        self.ends = {n: changelog.ends(n) for n in range(numbers.after)}
        self.moved = self.kept = self.rewritten = 0

    def survey_keys(self, names: Sequence[str]) -> dict[str, Seen]:
        """Return what partitioners say of all rows and all unread records."""
        seen = {name: Seen() for name in names}
        for number, ends in self.ends.items():
            for row in self._changelog.rows(number, ends):
                for name, found in seen.items():
                    self._look_at_row(name, found, number, row)
        for number in self.ends:
            for record in self._records(number):
                for name, found in seen.items():
                    self._look_at_record(name, found, number, record)
        return seen

    def _look_at_row(self, name: str, found: Seen, number: int, key: bytes) -> None:
        was, is_here = self._places(name, key, number)
        if not was and not is_here:
            found.add_misfit(f"{self._changelog.topic}-{number}", key)
        elif not was:
            found.early.setdefault(number, set()).add(key)
        if not is_here:
            found.arrivals.add(PARTITIONERS[name](key, self._numbers.after))

    def _look_at_record(self, name: str, found: Seen, number: int, record: Record) -> None:
        key = record.key()
        if key is None:
            return
        was, is_here = self._places(name, key, number)
        place = f"{self._state.input}-{number}@{offset_of(record)}"
        if not was and not is_here:
            found.add_misfit(place, key)
        elif not is_here:
            found.add_stray(place, key)

    def _places(self, name: str, key: bytes, number: int) -> tuple[bool, bool]:
        """Return whether a key belonged to a partition before, and whether it does now."""
        by, (before, after) = PARTITIONERS[name], self._numbers
        return number < before and by(key, before) == number, by(key, after) == number

    def twins(self, by: Partitioner, seen: Seen) -> list[str]:
        """Return keys that have two states, counted under both numbers of partitions."""
        found = []
        for number in range(self._numbers.before) if seen.early else ():
            for key in self._changelog.rows(number, self.ends[number]):
                home = by(key, self._numbers.after)
                if home != number and key in seen.early.get(home, ()):
                    found.append(f"{key!r} in {number} and {home}")
        return found

    def rows(self, by: Partitioner) -> Iterator[ResultRecord]:
        """Yield what moves each key's row: a deletion where it is, and itself where it belongs."""
        topic = self._changelog.topic
        for number, ends in self.ends.items():
            for key, row in self._changelog.rows(number, ends).items():
                home = by(key, self._numbers.after)
                if home == number:
                    self.kept += 1
                    continue
                self.moved += 1
                yield record_of(topic, number, key, None)
                yield record_of(topic, home, key, row)

    def unread(self, by: Partitioner) -> Iterator[ResultRecord]:
        """Yield all unread records for where they belong.

        Those that are elsewhere come first: they are older than what their keys have there.
        """
        for is_stray in (True, False):
            for number in self.ends:
                for record in self._records(number):
                    key = record.key()
                    home = number if key is None else by(key, self._numbers.after)
                    if (home != number) is is_stray:
                        self.rewritten += 1
                        yield _copy_record(self._state.input, home, record)

    def _records(self, number: int) -> Iterator[Record]:
        settings = {**self._state.properties, "isolation.level": "read_committed"}
        partition = TopicPartition(self._state.input, number)
        return read_log(settings, self._state.channel.group, partition, *self._unread[number])


def _copy_record(topic: str, partition: int, record: Record) -> ResultRecord:
    kind, ts = record.timestamp()
    named = [(name, value) for name, value in record.headers() or ()]
    time = ts if kind else None
    return ResultRecord(topic, record.value(), record.key(), named or None, partition, time)


def repartition(
    config: Config, channel: str | None, *, partitioner: str | None, rewrite: bool
) -> None:
    """Add partitions to the changelog as the input has them, and move each key's state.

    Rows, offsets and what is written again of unread records are one transaction: a command that
    is ended anywhere has moved nothing or all, and can be run again.

    Raises:
        ChannelRunningError: the group has a member; nothing was changed.
        UsageError: it cannot be told where keys belong, or something would be lost.
    """
    state = StateOf.of(config, channel)
    state.require_one_topic("repartition")
    if state.processor.row_keys == "store" and not state.has_fixed_keys:
        raise UsageError(
            f"channel {state.name} is of a topology, whose rows are by store and window, so they "
            "cannot be moved by their keys. Nothing was moved; stop all "
            f"members of the channel, and {state.split_step}"
        )
    with (
        _re_keying_held(state),
        changing(state, may_differ=True) as (change, transactions, changelog),
    ):
        stored = {
            found.partition.partition: entry
            for found in change.found
            if (entry := transactions.stored_entry(found.identity)) is not None
        }
        numbers = Numbers(number_before(stored, changelog), len(change.found))
        require_rows(stored, changelog)
        _refuse_fewer(changelog, numbers)
        _grow(state, changelog, numbers)
        if state.has_fixed_keys or numbers.before == numbers.after:
            typer.echo(f"{state.topic}: each key is where it belongs by {numbers.after} partitions")
            return
        unread = {
            number: (stored[number].offset if number in stored else found.low, found.high)
            for found in change.found
            for number in [found.partition.partition]
        }
        task = Repartition(state, changelog, numbers, unread)
        is_own = is_by_key(state.channel.group, state.input)
        names = ["murmur2"] if is_own else [partitioner] if partitioner else list(PARTITIONERS)
        seen = while_held(change.hold, lambda: task.survey_keys(names))
        name = _chosen_partitioner(state, seen)
        by, found_by = PARTITIONERS[name], seen[name]
        _refuse_twins(state, while_held(change.hold, lambda: task.twins(by, found_by)))
        again = found_by.strays > 0
        if again and not (is_own or rewrite):
            raise UsageError(_strays(state, found_by, numbers))
        moves = [
            _move_to_end(
                found,
                stored,
                _mark(found, stored, changelog.info.topic_id, task, found_by.arrivals),
                to_end=again,
            )
            for found in change.found
        ]
        records = chain(task.rows(by), task.unread(by) if again else ())
        change.hold.confirm()
        conflicts = while_held(change.hold, lambda: transactions.commit(moves, records))
        if conflicts:
            raise HeadraceError(
                f"nothing was moved: another client stored an offset meanwhile ({conflicts[0]}); "
                "see who writes in the group, and run the command again"
            )
        for move, found in zip(moves, change.found, strict=True):
            change.store_in_group(found, move.next_offset)
        typer.echo(
            f"{state.topic}: {task.moved} of {task.moved + task.kept} keys moved, from "
            f"{numbers.before} to {numbers.after} partitions, as {name} puts them"
            + (f"; {task.rewritten} unread records written again" if again else "")
        )


@contextmanager
def _re_keying_held(state: StateOf) -> Iterator[None]:
    """Hold the group of the channel that writes the input by key, where there is one."""
    writer = state.config.channels.get(f"{state.name}{REKEY_SUFFIX}")
    with ExitStack() as stack:
        if writer is not None and is_by_key(state.channel.group, state.input):
            stack.enter_context(group_held(state.config, writer))
        yield


def number_before(stored: Mapping[int, StoredOffset], changelog: ChangelogTable) -> int:
    """Return for how many partitions the state is."""
    marks = [each.changelog.partitions for each in stored.values() if each.changelog is not None]
    if marks:
        return min(marks)
    # of an earlier version, which did not say it: no other partition was committed to
    return min(changelog.partitions, max(stored, default=changelog.partitions - 1) + 1)


def _refuse_fewer(changelog: ChangelogTable, numbers: Numbers) -> None:
    info = changelog.info
    if numbers.after < max(numbers.before, info.partitions):
        raise UsageError(
            f"{info.name} has {info.partitions} partitions, with a state for {numbers.before}, and "
            f"the input has {numbers.after}: fewer cannot be made of more. Give the input as many "
            "(kafka-topics.sh --alter), or begin again with headrace state forget"
        )


def _grow(state: StateOf, changelog: ChangelogTable, numbers: Numbers) -> None:
    if changelog.partitions < numbers.after:
        deadline = Deadline.after(ANSWER_TIMEOUT)
        changelog.catalog.grow(state.topic, numbers.after, deadline)
        typer.echo(f"{state.topic}: {numbers.after} partitions")


def _chosen_partitioner(state: StateOf, seen: Mapping[str, Seen]) -> str:
    """Return by which partitioner keys are where they are."""
    fitting = [name for name, found in seen.items() if not found.misfits]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(
            f"nothing says by which partitioner {state.input} has its keys: there are too few "
            "states and records. Nothing was moved; say --partitioner murmur2, as of Java's "
            "producers, or consistent, as of librdkafka's by default"
        )
    named = "; ".join(
        f"{found.misfits} are not where {name} puts them, the first one {found.misfit}"
        for name, found in seen.items()
    )
    raise UsageError(
        f"of the states and unread records of {state.input} {named}: it cannot be told where keys "
        "belong. Nothing was moved; have processor.key: key write the records again by key, with "
        "another group"
    )


def _refuse_twins(state: StateOf, twins: Sequence[str]) -> None:
    if twins:
        raise UsageError(
            f"{len(twins)} keys of {state.topic} have two states, as records were counted under "
            f"both numbers of partitions: {'; '.join(twins[:_SHOWN])}. Nothing was moved; put them "
            "together in a file of headrace state export, each key once and where it belongs, and "
            "headrace state import --replace takes that"
        )


def _strays(state: StateOf, seen: Seen, numbers: Numbers) -> str:
    return (
        f"{seen.strays} unread records of {state.input} are where their keys belonged by "
        f"{numbers.before} partitions, the first one at {seen.stray}: they would count in a state "
        "that begins from nothing. Nothing was moved; say --rewrite to have all unread records "
        f"written again to {state.input}, each where it belongs: other readers of the topic find "
        "them twice. Have all producers know of the new partitions before that "
        "(metadata.max.age.ms, 5 minutes by default, or a restart)"
    )


def _mark(
    found: PartitionOffsets,
    stored: Mapping[int, StoredOffset],
    topic_id: str,
    task: Repartition,
    arrivals: Collection[int],
) -> ChangelogMark:
    number = found.partition.partition
    low, high = task.ends[number]
    known = stored[number].changelog if number in stored else None
    first = low if known is None else known.start
    has_rows = high > first or number in arrivals
    keys = (each.changelog.key for each in stored.values() if each.changelog is not None)
    key = next((each for each in keys if each is not None), None)
    return ChangelogMark(topic_id, first, len(task.ends), has_rows, key)


def _move_to_end(
    found: PartitionOffsets,
    stored: Mapping[int, StoredOffset],
    mark: ChangelogMark,
    *,
    to_end: bool,
) -> CountedMove:
    entry = stored.get(found.partition.partition)
    if entry is None:
        # no timer fires earlier in a new partition, and no record is late that was not
        times = [each.stream_time for each in stored.values() if each.stream_time is not None]
        entry = StoredOffset(found.low, 0, commits=0, stream_time=min(times, default=None))
    return CountedMove(
        found.identity,
        found.partition,
        entry.offset,
        found.high if to_end else entry.offset,
        None,
        None if to_end else entry.leader_epoch,
        entry.commits or 0,
        entry.stream_time,
        mark,
    )

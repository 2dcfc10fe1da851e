"""Giving the topics by key of a topology more partitions: ``headrace streams reshard``.

Each partition is divided: the new number is a multiple of the former, so that a new partition has
keys of one former partition alone. It begins with that one's operator times, by which no window is
told twice, and none is over earlier than it was.

Topics are given partitions first. From then on a part whose rows are not moved yet does not start,
and records are written where they belong by the new number. So the command goes on wherever it was
ended: the rows of each part are moved in one transaction.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.records import TopicPartition, identity_of, offset_of
from headrace.extensions.keyed.changelog import record_of
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.streams.runtime.stored_rows import StoredRows
from headrace.extensions.streams.runtime.stores import time_key
from headrace.kafka.ports import ChangelogMark, StoredOffset
from headrace.kafka.result_transactions import CountedMove
from headrace.kafka.source import read_log
from headrace.ops.offsets.plan import while_held
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf, changing, group_held, require_rows
from headrace.ops.state.repartition import number_before
from headrace.ops.streams.commands import plan_of, topology_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import Config
    from headrace.core.records import ResultRecord
    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.kafka.result_transactions import ResultTransactions
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.ops.state.change import StateChange
    from headrace.ops.state.changelog import ChangelogTable


class MovedRow(NamedTuple):
    """A row to be written to a partition, or to be deleted from it where it is None."""

    partition: int
    key: bytes
    row: KeyRow | None


@dataclass(slots=True)
class Division:
    """The move of a part's rows, each to where its key belongs by the new number of partitions.

    ``moved`` and ``kept`` count rows; ``dropped`` are of stores that the part has no more.
    ``arrivals`` are the partitions that get rows.
    """

    formats: tuple[StoredRows, ...]
    times: frozenset[bytes]
    before: int
    after: int
    moved: int = 0
    kept: int = 0
    dropped: int = 0
    arrivals: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, plan: Plan, part: Channel, before: int, after: int) -> Division:
        """Return what moves the rows of a part."""
        stores = [each for each in plan.stores if each.name in part.stores]
        return cls(
            tuple(StoredRows(plan, each) for each in stores),
            frozenset(time_key(each.rows) for each in stores),
            before,
            after,
        )

    def move(self, number: int, rows: Mapping[bytes, KeyRow]) -> Iterator[MovedRow]:
        """Yield what becomes of the rows of a former partition, all but those that stay.

        Raises:
            UsageError: a row is not where its key belongs.
        """
        for key, row in rows.items():
            if key in self.times:
                for each in range(number + self.before, self.after, self.before):
                    self.arrivals.add(each)
                    yield MovedRow(each, key, row)
                continue
            home = self._home(number, key, row)
            if home == number:
                self.kept += 1
                continue
            yield MovedRow(number, key, None)
            if home is None:
                # its records since were not counted: it is of no use to anybody
                self.dropped += 1
            else:
                self.moved += 1
                self.arrivals.add(home)
                yield MovedRow(home, key, row)

    def _home(self, number: int, key: bytes, row: KeyRow) -> int | None:
        """Return where a row belongs, None of a store that the part has no more."""
        read = next((each for each in self.formats if key.startswith(each.prefix)), None)
        if read is None:
            return None
        name = read.read(key, row.value).key
        if partition_of(name, self.before) != number:
            raise UsageError(
                f"row {key!r} is in partition {number}, and its key belongs to "
                f"{partition_of(name, self.before)} of {self.before}: another program wrote to the "
                "topic by key. Its rows cannot be moved; give the topology another group"
            )
        return partition_of(name, self.after)


def parts_by_key(plan: Plan, config: Config, partitions: int) -> list[Channel]:
    """Return the parts that read topics by key alone, each after those that write to it.

    Raises:
        UsageError: a part reads others beside them, or the configuration has another number.
    """
    by_key = {*plan.by_key.values()}
    found = [each for each in plan.channels_in_order if by_key.intersection(each.topics)]
    if not found:
        raise UsageError(f"topology {plan.name} has no topic by key: its inputs say how many")
    problems = [
        f"{part.name} reads {topic} beside topics by key, with as many partitions; once that has "
        "more, give the topology another group, which begins again"
        for part in found
        for topic in part.topics
        if topic not in by_key
    ]
    for part in plan.channels:
        processor = config.channels[part.name].processor
        assert isinstance(processor, StateProcessorConfig), "parts of topologies are"
        if processor.internal.partitions not in {None, partitions}:
            problems.append(
                f"channel {part.name} has internal.partitions: {processor.internal.partitions}; "
                f"set it to {partitions} before"
            )
    if problems:
        raise UsageError(*problems)
    return found


class Survey(NamedTuple):
    """A part by the brokers: partitions of its topics, and for how many its state is.

    ``strays`` are unread records whose keys would be elsewhere; of them the first one is named.
    """

    topics: Mapping[str, int]
    before: int
    strays: int
    stray: str


def survey(state: StateOf, partitions: int) -> Survey:
    """Return what there is of a part by the brokers, whose group is held. Blocks.

    Raises:
        UsageError: a topic does not exist.
    """
    group = state.channel.group
    state.end_open_transaction()
    with state.changelog() as changelog, closing(state.transactions()) as transactions:
        catalog, deadline = changelog.catalog, Deadline.after(ANSWER_TIMEOUT)
        found = catalog.describe(state.channel.topics, deadline)
        if missing := sorted(set(state.channel.topics) - found.keys()):
            raise UsageError(f"topic {missing[0]} does not exist; start the topology once")
        cluster = catalog.cluster_id(deadline)
        strays, stray, stored = 0, "", dict[TopicPartition, StoredOffset]()
        for topic, info in found.items():
            for number in range(info.partitions):
                place = TopicPartition(topic, number)
                entry = transactions.stored_entry(
                    identity_of(cluster, group, info.topic_id, number)
                )
                low, high = catalog.watermarks(place, Deadline.after(ANSWER_TIMEOUT))
                if entry is not None:
                    stored[place] = entry
                start = low if entry is None else entry.offset
                for offset in _strays(state, place, (start, high), partitions):
                    strays, stray = strays + 1, stray or f"{place}@{offset}"
        topics = {topic: info.partitions for topic, info in found.items()}
        before = min(topics.values())
        if state.processor.has_rows and stored:
            before = number_before(last_of_tasks(stored), changelog)
        return Survey(topics, before, strays, stray)


def last_of_tasks(stored: Mapping[TopicPartition, StoredOffset]) -> dict[int, StoredOffset]:
    """Return what was stored last of each task: of its topics one may have missed commits."""
    in_order = sorted(stored.items(), key=lambda each: each[1].commits or 0)
    return {partition.partition: entry for partition, entry in in_order}


def _strays(
    state: StateOf, place: TopicPartition, bounds: tuple[int, int], partitions: int
) -> Iterator[int]:
    """Yield the offsets of records that are not where their keys belong by the new number."""
    settings = {**state.properties, "isolation.level": "read_committed"}
    for record in read_log(settings, state.channel.group, place, *bounds):
        key = record.key()
        if key is not None and partition_of(key, partitions) != place.partition:
            yield offset_of(record)


def reshard(config: Config, topology: str, partitions: int) -> None:
    """Add partitions to topics by key and changelogs, and move each row to where it belongs.

    Raises:
        ChannelRunningError: a group of the topology has a member; nothing was changed.
        UsageError: it cannot be done, or something would be lost or counted in two places.
    """
    plan = plan_of(config, topology_name(config, topology))
    if plan.answers:
        raise UsageError(
            f"topology {topology} has a join by a foreign key, whose rows are by two keys; give it "
            "another group, which begins again with as many partitions as you like"
        )
    parts = parts_by_key(plan, config, partitions)
    states = {part.name: StateOf.of(config, part.name) for part in parts}
    with ExitStack() as stack:
        for each in plan.channels:
            stack.enter_context(group_held(config, config.channels[each.name]))
        found = {name: survey(state, partitions) for name, state in states.items()}
        _require_divisible(found, partitions)
        for name, state in states.items():
            _grow(state, found[name], partitions)
    for part in parts:
        if states[part.name].processor.has_rows:
            _move(plan, part, states[part.name], partitions)


def _require_divisible(found: Mapping[str, Survey], partitions: int) -> None:
    problems = []
    for name, each in found.items():
        topics = ", ".join(each.topics)
        most = max(each.topics.values())
        if partitions % each.before or partitions < most:
            problems.append(
                f"{topics} has {most} partitions, with a state for {each.before}; it can be given "
                f"a multiple of {each.before}, by which each is divided and none mixed, of {most} "
                f"at least, and {partitions} is none"
            )
        elif each.strays:
            problems.append(
                f"{name} has {each.strays} unread records of {topics} whose keys would belong "
                f"elsewhere, the first one {each.stray}; headrace run --until latest reads them"
            )
    if problems:
        raise UsageError(*problems, "Nothing was changed")


def _grow(state: StateOf, found: Survey, partitions: int) -> None:
    """Add partitions to the topics of a part, and to its changelog where there is one."""
    with state.changelog() as changelog:
        if state.processor.has_rows and changelog.exists and changelog.partitions < partitions:
            changelog.catalog.grow(changelog.topic, partitions, Deadline.after(ANSWER_TIMEOUT))
            typer.echo(f"{changelog.topic}: {partitions} partitions")
        for topic, number in found.topics.items():
            if number < partitions:
                changelog.catalog.grow(topic, partitions, Deadline.after(ANSWER_TIMEOUT))
                typer.echo(f"{topic}: {partitions} partitions")


def _move(plan: Plan, part: Channel, state: StateOf, partitions: int) -> None:
    """Move the rows of a part, and store for how many partitions they are, in one transaction."""
    with changing(state, may_differ=True) as (change, transactions, changelog):
        stored = {
            each.partition: entry
            for found in change.found
            for each in change.of_task(found)
            if (entry := transactions.stored_entry(each.identity)) is not None
        }
        tasks = last_of_tasks(stored)
        before = number_before(tasks, changelog) if tasks else partitions
        if before == partitions:
            typer.echo(f"{state.topic}: each row is where it belongs by {partitions} partitions")
            return
        require_rows(tasks, changelog)
        if changelog.partitions < partitions:
            changelog.catalog.grow(changelog.topic, partitions, Deadline.after(ANSWER_TIMEOUT))
        work = _PartMove(change, changelog, Division.of(plan, part, before, partitions), stored)
        while_held(change.hold, work.look)
        work.commit(transactions)
        division = work.division
        typer.echo(
            f"{state.topic}: {division.moved} of {division.moved + division.kept} rows moved, from "
            f"{before} to {partitions} partitions"
            + (f"; {division.dropped} of former stores deleted" if division.dropped else "")
        )


class _PartMove:
    """The move of a part's rows, and of what is stored with its offsets, while its group is held.

    ``stored`` is what there is of each partition of its topics.
    """

    def __init__(
        self,
        change: StateChange,
        changelog: ChangelogTable,
        division: Division,
        stored: Mapping[TopicPartition, StoredOffset],
    ) -> None:
        self._change, self._changelog = change, changelog
        self._stored, self._tasks = stored, last_of_tasks(stored)
        self._ends = {number: changelog.ends(number) for number in range(division.after)}
        self.division = division

    def look(self) -> None:
        """Count all rows by what becomes of them. Blocks, perhaps for long.

        Raises:
            UsageError: they cannot be moved.
        """
        if taken := sorted(e for e in self._stored if e.partition >= self.division.before):
            raise UsageError(
                f"{taken[0]} has an offset already, so keys may have been counted from nothing "
                "there. Nothing was moved; give the topology another group"
            )
        for _ in self._moved(self.division):
            pass

    def _moved(self, division: Division) -> Iterator[MovedRow]:
        for number in range(division.before):
            yield from division.move(number, self._changelog.rows(number, self._ends[number]))

    def commit(self, transactions: ResultTransactions) -> None:
        """Store rows and offsets in one transaction.

        Raises:
            HeadraceError: nothing was moved.
        """
        every = [each for found in self._change.found for each in self._change.of_task(found)]
        moved = [each for each in every if self._former(each.partition) in self._stored]
        moves = [self._move(each) for each in moved]
        self._change.hold.confirm()
        conflicts = while_held(
            self._change.hold, lambda: transactions.commit(moves, self._records())
        )
        if conflicts:
            raise HeadraceError(
                f"nothing was moved: another client stored an offset meanwhile ({conflicts[0]}); "
                "see who writes in the group, and run the command again"
            )
        for each, move in zip(moved, moves, strict=True):
            self._change.store_in_group(each, move.next_offset)

    def _records(self) -> Iterator[ResultRecord]:
        again = replace(self.division, moved=0, kept=0, dropped=0, arrivals=set())
        for each in self._moved(again):
            yield record_of(self._changelog.topic, each.partition, each.key, each.row)

    def _former(self, partition: TopicPartition) -> TopicPartition:
        """Return the partition that one is a part of."""
        return partition._replace(partition=partition.partition % self.division.before)

    def _move(self, found: PartitionOffsets) -> CountedMove:
        number, own = found.partition.partition, self._stored.get(found.partition)
        offset = found.low if own is None else own.offset
        last = self._tasks[number % self.division.before]
        return CountedMove(
            found.identity,
            found.partition,
            offset,
            offset,
            None,
            None if own is None else own.leader_epoch,
            0 if own is None else own.commits or 0,
            last.stream_time,
            self._mark(number, last),
            (last.commits or 0) + 1,
        )

    def _mark(self, number: int, last: StoredOffset) -> ChangelogMark:
        (low, high), known = self._ends[number], last.changelog
        first = low if known is None or number >= self.division.before else known.start
        has_rows = high > first or number in self.division.arrivals
        key = None if known is None else known.key
        info = self._changelog.info
        return ChangelogMark(info.topic_id, first, self.division.after, has_rows, key)

"""Turning a keyed channel's state into that of a reducer in a topology: ``headrace streams adopt``.

Each key's state and timers become a row of the reducer's store, and the offsets of the channel
those of the topology's part, all in one transaction. Where a channel writes its records again by
key, a part of the topology does that too: it goes on at the offsets of the channel that did, and
the other one begins with a topic by key of its own. The channel's own are left as they are.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.extensions.keyed.changelog import record_of
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.topics import open_by_key
from headrace.extensions.streams.runtime.stores import rows_prefix, time_key
from headrace.kafka.result_transactions import (
    CountedMove,
    OffsetsBeside,
    ResultTransactions,
)
from headrace.kafka.source import read_log
from headrace.ops.offsets.hold import own_name
from headrace.ops.offsets.plan import while_held
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf, changing, group_held, require_rows
from headrace.ops.streams.adopter import Adopter, KeyedState, adopted_row, misfits, shown_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.config import ChannelConfig, Config
    from headrace.core.records import ResultRecord
    from headrace.kafka.ports import StoredOffset
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.ops.state.change import StateChange
    from headrace.ops.state.changelog import ChangelogTable

T = TypeVar("T")


def adopt(config: Config, channel: str, name: str) -> None:
    """Write a keyed channel's states to a reducer's store, and its offsets to the parts' groups.

    All of it is one transaction: a command that is ended anywhere has moved nothing or all, and
    can be run again.

    Raises:
        ChannelRunningError: one of the groups has a member; nothing was changed.
        UsageError: the state would mean something else, or the part has offsets already.
    """
    source, adopter = KeyedState.of(config, channel), Adopter.of(config, name)
    if found := list(misfits(source, adopter)):
        raise UsageError(
            *(f"channel {channel} cannot be taken over by {name}: {each}" for each in found)
        )
    with ExitStack() as stack:
        held = stack.enter_context(changing(source.state))
        known = _Known(source.state, *held)
        target, reader = (StateOf.of(config, e.name) for e in (adopter.part, adopter.reader))
        if source.writer is not None:
            _open_by_key(reader, target.input, known)
        change, transactions, changelog = stack.enter_context(changing(target, may_differ=True))
        # after that: an offset in a transaction that was left open cannot be read
        feed = None
        if source.writer is not None:
            feed = _Feed.open(reader, source.writer, stack)
        move = _Adoption(adopter, known, feed, change, changelog)
        move.read()
        stored = stored_of(transactions, change)
        is_new = not stored and (feed is None or not feed.stored)
        if is_new:
            move.require_room()
            move.commit(transactions)
        elif not move.was_done(stored):
            ran = target if stored else reader
            raise UsageError(
                f"{ran.name} has offsets in group {ran.channel.group}, as one that ran has; "
                "nothing was changed. For it to begin with the state of the channel, give the "
                "topology another group"
            )
        move.store_in_groups()
    typer.echo(
        f"{move.count} keys of {source.state.topic} {'are' if is_new else 'were'} taken over "
        f"{'' if is_new else 'before '}by {adopter.operator.label}, in {target.topic}; "
        f"{adopter.reader.name} goes on at the offsets of {channel}"
    )
    typer.echo(
        f"take channel {channel} out of the configuration before a start, or both process the same "
        f"records. Other stores of {adopter.part.name} begin empty",
        err=True,
    )


def stored_of(transactions: ResultTransactions, change: StateChange) -> dict[int, StoredOffset]:
    """Return what is stored of the partitions that a channel reads, those of its first topic."""
    found = {
        each.partition.partition: transactions.stored_entry(each.identity) for each in change.found
    }
    return {number: entry for number, entry in found.items() if entry is not None}


class _Known(NamedTuple):
    """The channel, whose group is held, and its changelog."""

    state: StateOf
    change: StateChange
    transactions: ResultTransactions
    changelog: ChangelogTable


class _Feed(NamedTuple):
    """The part that writes a reducer's facts by key, in place of a channel that did.

    ``starts`` are where that one would go on, and ``stored`` is what the part has.
    """

    change: StateChange
    transactions: ResultTransactions
    starts: Mapping[int, int]
    stored: Mapping[int, StoredOffset]

    @classmethod
    def open(cls, state: StateOf, writer: ChannelConfig, stack: ExitStack) -> _Feed:
        """Hold the groups of the part and of the channel; ``stack`` releases them.

        Raises:
            ChannelRunningError: one has a member.
        """
        written = stack.enter_context(group_held(state.config, writer))
        change, transactions, _ = stack.enter_context(changing(state, may_differ=True))
        starts = {}
        with closing(ResultTransactions(state.properties, writer.group, own_name())) as theirs:
            for each in written:
                entry = theirs.stored_entry(each.identity)
                first = each.low if writer.initial_offset == "earliest" else each.high
                starts[each.partition.partition] = first if entry is None else entry.offset
        return cls(change, transactions, starts, stored_of(transactions, change))

    @property
    def was_done(self) -> bool:
        """Return whether what the part has is what this command stored, and nothing after it."""
        wanted = {number: (start, 1) for number, start in self.starts.items()}
        return wanted == {n: (each.offset, each.commits) for n, each in self.stored.items()}

    def moves(self) -> list[CountedMove]:
        """Return what has the part begin where the channel would go on."""
        return [
            CountedMove(
                each.identity,
                each.partition,
                self.starts[each.partition.partition],
                self.starts[each.partition.partition],
                None,
                None,
                0,
                None,
                self.change.mark(each.partition.partition, written=False),
            )
            for each in self.change.found
        ]


def _open_by_key(state: StateOf, topic: str, known: _Known) -> None:
    """Create the topic by key of a part, with the partitions that the channel's has."""
    made = {each.name: each for each in state.processor.topics_by_key(state.channel)}[topic]
    count, catalog = len(known.change.found), known.changelog.catalog
    there = catalog.describe([topic], Deadline.after(ANSWER_TIMEOUT)).get(topic)
    wanted = made.partitions if there is None else there.partitions
    if wanted not in {None, count}:
        raise UsageError(
            f"topic {topic} has {wanted} partitions, or is to have them, and that of the channel "
            f"{count}: keys belong elsewhere in it. Nothing was changed; set internal.partitions "
            f"to {count}, and delete the topic where it exists"
        )
    open_by_key(
        catalog,
        topic,
        made.sources,
        Deadline.after(ANSWER_TIMEOUT),
        create=made.create,
        replication_factor=made.replication_factor,
        partitions=count,
        settings=made.settings,
    )


class _Adoption:
    """The move of a channel's rows to a store, while all groups are held. Every method blocks."""

    def __init__(
        self,
        adopter: Adopter,
        known: _Known,
        feed: _Feed | None,
        change: StateChange,
        changelog: ChangelogTable,
    ) -> None:
        self._adopter, self._known, self._feed = adopter, known, feed
        self._change, self._changelog = change, changelog
        changes = [known.change, change, *([] if feed is None else [feed.change])]
        self._holds = [each.hold for each in changes]
        self._entries: dict[int, StoredOffset] = {}
        self._rows: dict[int, dict[bytes, KeyRow]] = {}

    @property
    def count(self) -> int:
        """Return how many keys are moved."""
        return sum(map(len, self._rows.values()))

    def read(self) -> None:
        """Read all rows of the channel.

        Raises:
            UsageError: they were lost, nothing says which records they are of, or a row has what a
                topology does not.
        """
        known = self._known
        self._entries = stored_of(known.transactions, known.change)
        require_rows(self._entries, known.changelog)
        for found in known.change.found:
            number = found.partition.partition
            rows = self._while_held(partial(known.changelog.rows, number))
            if rows and number not in self._entries:
                raise UsageError(
                    f"no offset is stored for {found.partition}, so nothing says which records its "
                    "state is of; headrace state export it, and import it with --offsets"
                )
            if self._feed is not None:
                self._require_by_key(found, rows)
            self._rows[number] = {key: adopted_row(key, row) for key, row in rows.items()}

    def _require_by_key(self, found: PartitionOffsets, rows: Mapping[bytes, KeyRow]) -> None:
        """Return if a topology has the same keys, and nothing is left of the former topic by key.

        Raises:
            UsageError: it has not, or something is.
        """
        if odd := next((key for key in rows if key.startswith(b"[")), None):
            raise UsageError(
                f"key {shown_key(odd)} begins with [, and a topology writes it otherwise, as "
                "another key. Nothing was changed"
            )
        entry = self._entries.get(found.partition.partition)
        start = found.low if entry is None else entry.offset
        unread = self._while_held(lambda: self._count(found, start))
        if unread:
            raise UsageError(
                f"{found.partition} has {unread} unread records, which {self._adopter.part.name} "
                "would not get; headrace run --until latest reads them. Nothing was changed"
            )

    def _count(self, found: PartitionOffsets, start: int) -> int:
        """Return how many records of a partition are committed from an offset on."""
        state = self._known.state
        settings = {**state.properties, "isolation.level": "read_committed"}
        bounds = found.partition, start, found.high
        return sum(1 for _ in read_log(settings, state.channel.group, *bounds))

    def require_room(self) -> None:
        """Return if the changelog of the part has room for the rows: as many partitions, no rows.

        Raises:
            UsageError: it has not.
        """
        there, wanted = self._changelog.partitions, len(self._change.found)
        if not there == wanted == len(self._rows):
            raise UsageError(
                f"{self._changelog.topic} has {there} partitions, its input {wanted} and the "
                f"channel's state {len(self._rows)}; nothing was changed. Give the topology "
                "another group, so that it has topics of its own"
            )
        for number in self._rows:
            if self._while_held(partial(self._changelog.rows, number)):
                raise UsageError(
                    f"{self._changelog.topic} has rows, and no offset says which records they are "
                    "of; nothing was changed. Delete that topic, or give the topology another group"
                )

    def was_done(self, stored: Mapping[int, StoredOffset]) -> bool:
        """Return whether what the parts have is what this command stored, and nothing after it."""
        wanted = {each.partition.partition: (self._start(each), 1) for each in self._change.found}
        is_same = wanted == {n: (each.offset, each.commits) for n, each in stored.items()}
        return is_same and (self._feed is None or self._feed.was_done)

    def _start(self, found: PartitionOffsets) -> int:
        """Return where the part begins in a partition."""
        number = found.partition.partition
        if self._feed is not None:
            return found.low
        if number in self._entries:
            return self._entries[number].offset
        return found.low if self._known.state.channel.initial_offset == "earliest" else found.high

    def commit(self, transactions: ResultTransactions) -> None:
        """Store rows and offsets in one transaction.

        Raises:
            HeadraceError: they were not stored.
        """
        moves = [self._move(found) for found in self._change.found]
        feed = self._feed
        beside = None if feed is None else OffsetsBeside(feed.transactions, feed.moves())
        for hold in self._holds:
            hold.confirm()
        conflicts = self._while_held(lambda: transactions.commit(moves, self._records(), beside))
        if conflicts:
            raise HeadraceError(
                f"nothing was changed: another client stored an offset meanwhile ({conflicts[0]}); "
                "see who writes in the group, and run the command again"
            )

    def store_in_groups(self) -> None:
        """Store the same offsets in the groups; those that are stored with the state count."""
        for found in self._change.found:
            self._change.store_in_group(found, self._start(found))
        if (feed := self._feed) is not None:
            for found in feed.change.found:
                feed.change.store_in_group(found, feed.starts[found.partition.partition])

    def _move(self, found: PartitionOffsets) -> CountedMove:
        number, start = found.partition.partition, self._start(found)
        entry = self._entries.get(number)
        return CountedMove(
            found.identity,
            found.partition,
            start,
            start,
            None,
            None if entry is None or self._feed is not None else entry.leader_epoch,
            0,
            None if entry is None else entry.stream_time,
            self._change.mark(number, written=any(True for _ in self._records_of(number))),
        )

    def _records(self) -> Iterator[ResultRecord]:
        for number in self._rows:
            yield from self._records_of(number)

    def _records_of(self, number: int) -> Iterator[ResultRecord]:
        """Yield the rows of the store in a partition, and its operator time where it has one."""
        topic, store = self._changelog.topic, self._adopter.store.rows
        prefix = rows_prefix(store)
        for key, row in self._rows[number].items():
            yield record_of(topic, number, prefix + key, row)
        entry = self._entries.get(number)
        if entry is not None and entry.stream_time is not None:
            time = KeyRow(str(entry.stream_time).encode())
            yield record_of(topic, number, time_key(store), time)

    def _while_held(self, work: Callable[[], T]) -> T:
        """Return what work returns, while all holds are renewed."""
        for hold in self._holds:
            work = partial(while_held, hold, work)
        return work()

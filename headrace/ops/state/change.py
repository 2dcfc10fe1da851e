"""Changing the state of a stopped channel: rows and offsets of its partitions, together."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, StartError, UsageError
from headrace.extensions.keyed.changelog import record_of
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.store_folder import StoreFolder
from headrace.extensions.keyed.topics import (
    Changelog,
    lost_rows,
    open_changelog,
    split_keys,
)
from headrace.kafka import ResultTransactions
from headrace.kafka.clients import client_properties
from headrace.kafka.fencing import fence_producers
from headrace.kafka.ports import ChangelogMark
from headrace.kafka.result_transactions import CountedMove
from headrace.ops.offsets.commands import access, channel_name
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.offsets.hold import holding, own_name
from headrace.ops.offsets.plan import (
    COMMIT_TIMEOUT,
    FENCE_TIMEOUT,
    refuse_subscribers,
    while_held,
)
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.changelog import ChangelogTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.config import ChannelConfig, Config
    from headrace.core.records import TopicPartition
    from headrace.extensions.keyed.row import KeyRow
    from headrace.kafka.ports import StoredOffset
    from headrace.ops.offsets.commands import Access
    from headrace.ops.offsets.hold import Hold
    from headrace.ops.offsets.reader import Cluster, PartitionOffsets

#: Seconds in which rows have to be stored, in one transaction.
_TRANSACTION_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class StateOf:
    """A channel with state. ``input`` is the topic that it reads, of several the first."""

    name: str
    config: Config
    channel: ChannelConfig
    processor: StateProcessorConfig
    input: str

    @classmethod
    def of(cls, config: Config, channel: str | None) -> StateOf:
        """Return the channel that is meant: the one named, or the only one with state.

        Raises:
            UsageError: there is none, or it keeps no state.
        """
        kept = [
            name
            for name, each in config.channels.items()
            if isinstance(each.processor, StateProcessorConfig) and each.processor.has_rows
        ]
        name = kept[0] if channel is None and len(kept) == 1 else channel_name(config, channel)
        chosen = config.channels[name]
        if not isinstance(chosen.processor, StateProcessorConfig):
            raise UsageError(
                f"channel {name} keeps no state: its processor is of type "
                f"{chosen.processor.type}; " + choose(kept)
            )
        return cls(name, config, chosen, chosen.processor, chosen.topics[0])

    def require_one_topic(self, command: str) -> None:
        """Return if the channel reads one topic.

        Raises:
            UsageError: it reads several, whose offsets the command does not know together.
        """
        if len(self.channel.topics) > 1:
            raise UsageError(
                f"channel {self.name} reads {', '.join(self.channel.topics)}, and headrace state "
                f"{command} goes with one topic; headrace state forget begins again with all of "
                "them, and a channel with another group reads them independently"
            )

    @property
    def properties(self) -> dict[str, Any]:
        """Return what clients of the brokers are made with."""
        return dict(client_properties(self.config.kafka))

    @property
    def has_fixed_keys(self) -> bool:
        """Return whether keys are those of partitions, so that more of them split none."""
        return self.processor.has_fixed_keys

    @property
    def split_step(self) -> str:
        """Return what to do where the input has more partitions than the rows are for."""
        return self.processor.split_step(self.channel)

    @property
    def topic(self) -> str:
        """Return the changelog."""
        return changelog_name(self.channel.group, self.input)

    def key(self, text: str, *, is_hex: bool) -> bytes:
        """Return the bytes of a key that is named.

        Raises:
            UsageError: it is to be in hexadecimal digits, and is not.
        """
        if not is_hex and self.processor.shows_keys_as_text:
            return text.encode("utf-8", "surrogateescape")
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise UsageError(
                f"{text} is not in hexadecimal digits, two for each byte; give the key's bytes as "
                "in 6b6579, for key"
            ) from error

    def changelog(self) -> ChangelogTable:
        """Return the changelog, to be closed."""
        return ChangelogTable(self.properties, self.channel.group, self.topic)

    @property
    def transactional_id(self) -> str:
        """Return what commands store rows under: one that begins ends what another left open."""
        return f"headrace.{self.channel.group}.state"

    def end_open_transaction(self) -> None:
        """End what a command that was killed left open: its offsets cannot be read before.

        The group has to be held. Blocks.

        Raises:
            OffsetStoreError: it could not be ended.
        """
        fence_producers(self.properties, [self.transactional_id], Deadline.after(FENCE_TIMEOUT))

    def transactions(self) -> ResultTransactions:
        """Return what stores rows and offsets, to be closed."""
        return ResultTransactions(
            self.properties,
            self.channel.group,
            own_name(),
            timeout=_TRANSACTION_TIMEOUT,
            own_id=self.transactional_id,
        )

    @property
    def store_folder(self) -> Path:
        """Return where a process of this configuration has its local store."""
        return Path(self.config.state_dir) / self.config.instance_id / "keyed" / self.name / "db"

    def open_store(self) -> RocksStore:
        """Open the local store of a stopped process, to be closed.

        Raises:
            UsageError: there is none, or one that is being replaced.
            ChannelRunningError: a process has it.
        """
        if StoreFolder(self.store_folder).is_unsettled:
            raise UsageError(
                f"headrace state restore --from-snapshot was ended while it replaced "
                f"{self.store_folder}; run it again, or start the process, which finishes it"
            )
        if not self.store_folder.exists():
            raise UsageError(
                f"{self.store_folder} does not exist: no process of this configuration kept state "
                "here"
            )
        store = RocksStore(self.store_folder)
        try:
            store.open()
        except StartError as error:
            raise ChannelRunningError(
                f"the state store in {self.store_folder} cannot be opened: {error.__cause__}. "
                "headrace state list asks a process that runs; stop it first, and leave the folder "
                "as it is"
            ) from error
        return store


class StateChange:
    """Changes rows and offsets of a stopped channel, each partition in one transaction."""

    def __init__(
        self,
        state: StateOf,
        opened: Access,
        hold: Hold,
        every: Sequence[PartitionOffsets],
        changelog: ChangelogTable,
    ) -> None:
        self._every = every
        self._state = state
        self._opened = opened
        self._changelog = changelog
        self.hold = hold
        #: The partitions of the input, in their order.
        self.found = [each for each in every if each.partition.topic == state.input]

    def of_task(self, found: PartitionOffsets) -> list[PartitionOffsets]:
        """Return a partition of the input, and those of the other topics with its number."""
        number = found.partition.partition
        mine = [each for each in self._every if each.partition.partition == number]
        return [found, *(each for each in mine if each is not found)]

    def fit_changelog(self) -> None:
        """Add partitions to the changelog, as many as the topics have. Its rows are to go.

        Raises:
            UsageError: it has more, or the topics have different numbers of them.
        """
        topics = Counter(each.partition.topic for each in self._every)
        most, there = max(topics.values()), self._changelog.partitions
        if len(set(topics.values())) > 1:
            numbers = ", ".join(f"{topic} has {number}" for topic, number in sorted(topics.items()))
            raise UsageError(
                f"the topics of channel {self._state.name} have different numbers of partitions: "
                f"{numbers}. Give each of them {most} (kafka-topics.sh --alter)"
            )
        if there > most:
            topic, step = self._state.input, self._state.split_step
            raise UsageError(split_keys(topic, most, there, self._state.topic, step))
        if there < most:
            deadline = Deadline.after(ANSWER_TIMEOUT)
            self._changelog.catalog.grow(self._state.topic, most, deadline)

    def rows(self, changelog: ChangelogTable, found: PartitionOffsets) -> dict[bytes, KeyRow]:
        """Return what there is of a partition, while the group stays held."""
        return while_held(self.hold, lambda: changelog.rows(found.partition.partition))

    def commit(
        self,
        transactions: ResultTransactions,
        found: PartitionOffsets,
        rows: Iterable[tuple[bytes, KeyRow | None]],
        starts: Mapping[TopicPartition, int],
        stream_time: int | None,
        *,
        whole: bool = True,
    ) -> None:
        """Store rows of a partition and where its task begins, both or neither.

        What is missing in ``starts`` stays where it is. ``whole``: the changelog has all rows with
        that, whatever became of it before.
        """
        number, written = found.partition.partition, list(rows)
        mark = self.mark(number, written=bool(written))
        moved = [e for e in self.of_task(found) if e is found or e.partition in starts]
        moves = []
        for each in moved:
            stored = transactions.stored_entry(each.identity)
            at = None if stored is None else stored.offset
            start = starts.get(each.partition, each.low if at is None else at)
            move = CountedMove(
                each.identity,
                each.partition,
                start if at is None else at,
                start,
                None,
                None,
                0 if stored is None else stored.commits or 0,
                stream_time,
                mark if whole or stored is None else stored.changelog,
            )
            moves.append(move)
        records = (record_of(self._state.topic, number, key, row) for key, row in written)
        self.hold.confirm()
        conflicts = while_held(self.hold, lambda: transactions.commit(moves, records))
        if conflicts:
            raise HeadraceError(
                f"{found.partition}: another client stored an offset meanwhile ({conflicts[0]}); "
                "see who writes in the group, and run the command again"
            )
        for each, move in zip(moved, moves, strict=True):
            self.store_in_group(each, move.next_offset)

    def mark(self, number: int, *, written: bool) -> ChangelogMark:
        """Return what says that the changelog, as it is now, has the state of a partition.

        ``written``: rows are written with that.
        """
        info, (low, high) = self._changelog.info, self._changelog.ends(number)
        key = self._state.processor.state_key(self._state.channel)
        return ChangelogMark(info.topic_id, low, info.partitions, written or high > low, key)

    def store_in_group(self, found: PartitionOffsets, offset: int) -> None:
        """Store the same offset in the group; the one stored with the state counts."""
        self.hold.confirm()
        commit = self.hold.commit(found.partition, offset, found.topic_id)
        deadline = Deadline.after(min(COMMIT_TIMEOUT, self.hold.remaining()))
        failures = self._opened.group.store.commit({found.partition: commit}, deadline)
        if failures:
            named = "; ".join(f"{partition}: {why}" for partition, why in failures.items())
            typer.echo(f"the group's own offset is not known to be stored: {named}", err=True)


@contextmanager
def changing(
    state: StateOf, *, may_differ: bool = False
) -> Iterator[tuple[StateChange, ResultTransactions, ChangelogTable]]:
    """Hold the group of a stopped channel while its state is changed.

    What a command that was ended in between had open is undone first. ``may_differ``: a changelog
    that does not exist is created, where the configuration lets it be; and input and changelog need
    not have as many partitions.

    Raises:
        ChannelRunningError: a member consumes in the group; nothing was changed.
    """
    with (
        access(state.config, state.channel) as opened,
        state.changelog() as changelog,
        closing(state.transactions()) as transactions,
    ):
        cluster = opened.reader.cluster(state.channel.topics)
        if missing := sorted(set(state.channel.topics) - cluster.topics.keys()):
            raise UsageError(f"topic {missing[0]} does not exist on the brokers")
        if not may_differ:
            _require_as_many(state, cluster, changelog)
        partitions = cluster.partitions
        with holding(opened.group.session, state.channel, partitions, SYSTEM_CLOCK) as hold:
            refuse_subscribers(opened.group)
            hold.fence(opened.group.store, Deadline.after(FENCE_TIMEOUT))
            state.end_open_transaction()
            if may_differ and not changelog.exists:
                _create(state, changelog)
            group = state.channel.group
            found = [opened.reader.of(each, cluster, group) for each in partitions]
            hold.raise_above(found)
            yield StateChange(state, opened, hold, found, changelog), transactions, changelog


@contextmanager
def group_held(config: Config, channel: ChannelConfig) -> Iterator[list[PartitionOffsets]]:
    """Hold the group of a stopped channel that is to stay stopped, and return its offsets.

    Former owners are fenced.

    Raises:
        ChannelRunningError: a member consumes in the group.
    """
    with access(config, channel) as opened:
        cluster = opened.reader.cluster(channel.topics)
        partitions = cluster.partitions
        with holding(opened.group.session, channel, partitions, SYSTEM_CLOCK) as hold:
            refuse_subscribers(opened.group)
            hold.fence(opened.group.store, Deadline.after(FENCE_TIMEOUT))
            yield [opened.reader.of(each, cluster, channel.group) for each in partitions]


def _create(state: StateOf, changelog: ChangelogTable) -> None:
    internal = state.processor.internal
    open_changelog(
        changelog.catalog,
        state.channel.group,
        state.input,
        Deadline.after(ANSWER_TIMEOUT),
        create=internal.create,
        replication_factor=internal.replication_factor,
        grows=state.has_fixed_keys,
        step=state.split_step,
    )


def _require_as_many(state: StateOf, cluster: Cluster, changelog: ChangelogTable) -> None:
    there = changelog.partitions
    for topic, info in cluster.topics.items():
        if info.partitions != there:
            step = state.split_step
            raise UsageError(split_keys(topic, info.partitions, there, state.topic, step))


def require_rows(stored: Mapping[int, StoredOffset], changelog: ChangelogTable) -> None:
    """Return if a changelog has all rows of what was committed, by partition.

    Raises:
        UsageError: some were lost.
    """
    info = changelog.info
    known = Changelog(info.name, info.topic_id, 0.0, info.partitions)
    for number, entry in stored.items():
        if not entry.commits or entry.changelog is None or number >= info.partitions:
            continue
        if reason := lost_rows(known, number, entry.changelog, None, changelog.ends(number)):
            raise UsageError(f"{reason}. Nothing was moved")


def choose(names: list[str]) -> str:
    """Return what is said of the channels that are meant to be chosen from."""
    return f"choose from {', '.join(names)}" if names else "no channel of this file is keyed"

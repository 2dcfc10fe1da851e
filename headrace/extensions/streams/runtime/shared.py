"""Shared tables: topics that each member has whole in memory, and follows while the channel runs.

They are read by a consumer of their own, at their latest state: not in the order of the records
that look them up, and not in the transaction.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import structlog
from typing_extensions import override

from headrace.core.errors import ChannelFailedError, StartError
from headrace.core.records import TopicPartition, all_partitions, offset_of
from headrace.core.supervision import PeriodicThread
from headrace.extensions.streams.inline.batch import Change, TopicRecords
from headrace.extensions.streams.inline.stateless import read_records
from headrace.extensions.streams.inline.tables import Held, SourceTable, TableState
from headrace.extensions.streams.operators import TableSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.clock import Clock, Deadline
    from headrace.core.record_runs import Run
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.kafka.ports import Fetched, RecordSource, TopicCatalog

log = structlog.get_logger(__name__)

#: Seconds that one fetch waits for records.
_FETCH_TIMEOUT = 0.5

#: Seconds without a record after which a start does not wait for the end of a topic any more.
_STALL = 60.0


class SharedRows(TableState):
    """The rows of a shared table. Written by one thread, read on any while they change."""

    @override
    def put(
        self,
        at: int,
        key: bytes,
        row: Mapping[str, Any] | None,
        time: int,
        row_time: int | None = None,
    ) -> Change:
        own = time if row_time is None else row_time
        # a reader finds a row before and after, and at no moment in between none
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = Held(row, own)
        return Change(at, key, row, None, time, own)


class _Logged:
    """Records that are no rows: they are left out, and named in the log. A ``Poison``."""

    def __init__(self, channel: str, partition: TopicPartition, offsets: Sequence[int]) -> None:
        self._channel, self._partition, self._offsets = channel, partition, offsets

    def note(self, at: int, reason: str) -> None:
        log.warning(
            "shared_record_left_out",
            channel=self._channel,
            topic=self._partition.topic,
            partition=self._partition.partition,
            offset=self._offsets[at],
            reason=reason,
        )


class SharedTables:
    """The shared tables that operators of a channel look up, by their places in the plan."""

    def __init__(self, plan: Plan, channel: Channel) -> None:
        self._plan = plan
        self.by_place = {
            place: SourceTable(operator.output, SharedRows())
            for place, operator in enumerate(plan.operators)
            if isinstance(operator, TableSource)
            and operator.shared
            and operator.topic in channel.shared
            and operator.output is not None
        }
        self.topics = channel.shared

    def counts(self) -> dict[str, int]:
        """Return how many rows each table has."""
        named = self._plan.operators
        return {
            str(named[place].own_name): len(table.state.rows)
            for place, table in self.by_place.items()
        }

    def apply(self, partition: TopicPartition, records: Run, channel: str) -> None:
        """Apply records of a partition to the tables of its topic. One thread."""
        offsets = [offset_of(each) for each in records]
        values = TopicRecords(
            partition.topic,
            np.arange(len(offsets)),
            pa.array([each.key() for each in records], pa.binary()),
            pa.array([each.value() for each in records], pa.binary()),
            # of no effect: a row that looks another one up keeps its own time
            np.zeros(len(offsets), np.int64),
        )
        poison = _Logged(channel, partition, offsets)
        for place, table in self.by_place.items():
            operator = self._plan.operators[place]
            assert isinstance(operator, TableSource), "others are not shared"
            assert operator.output is not None, "rows come out"
            if operator.topic != partition.topic:
                continue
            names = self._plan.fields[place]
            decoder = self._plan.decoders.get(place)
            batch = read_records(values, operator.output, names, operator.codec, poison, decoder)
            table.process(batch, operator.label, poison)


class SharedReader(PeriodicThread):
    """Reads the topics of shared tables to their ends, and follows them from then on."""

    def __init__(
        self,
        channel: str,
        tables: SharedTables,
        source: Callable[[], RecordSource],
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"shared-{channel}", fail)
        self._channel, self._tables, self._clock = channel, tables, clock
        self._make_source = source
        self._fail = fail
        self._starts: Mapping[TopicPartition, int] = {}
        self._left: set[TopicPartition] = set()
        self._loaded = Event()
        self._moved = clock.monotonic()
        self._denied: str | None = None
        self._complaint: str | None = None

    def load(self, catalog: TopicCatalog, deadline: Deadline) -> None:
        """Start to read, and return when the end of each partition was reached. Blocks.

        For as long as records come; the ``deadline`` is for what there is of the topics.

        Raises:
            StartError: a topic does not exist or may not be read, or no record comes.
            KafkaUnavailableError: no broker answered by the deadline.
        """
        found = catalog.describe(self._tables.topics, deadline)
        if missing := sorted(set(self._tables.topics) - found.keys()):
            raise StartError(
                f"topic {missing[0]}, a shared table of channel {self._channel}, does not exist; "
                "create it, or correct its name in the topology"
            )
        partitions = all_partitions({name: each.partitions for name, each in found.items()})
        self._starts = {each: catalog.watermarks(each, deadline)[0] for each in partitions}
        self._left = set(partitions)
        self._moved = self._clock.monotonic()
        self.start()
        while not self._loaded.wait(_FETCH_TIMEOUT):
            problem = self._denied
            if problem is None and self._clock.monotonic() - self._moved >= _STALL:
                problem = self._complaint or f"no record came for {_STALL:g} s"
            if problem is not None:
                left = ", ".join(sorted(map(str, set(self._left)))) or "a topic"
                raise StartError(
                    f"channel {self._channel}: the end of {left} was not reached, which a shared "
                    f"table is read to before the channel starts: {problem}"
                )
        log.info("shared_tables_read", channel=self._channel, rows=self._tables.counts())

    def _run(self) -> None:
        source = self._make_source()
        try:
            source.assign(self._starts)
            while not self._stopping.is_set():
                self._take(source.fetch(_FETCH_TIMEOUT))
        finally:
            source.close()

    def _take(self, fetched: Fetched) -> None:
        """Apply what was fetched, and see which ends were reached."""
        for complaint in fetched.errors:
            if complaint != self._complaint:
                log.warning("shared_tables_failed", channel=self._channel, error=complaint)
            self._complaint = complaint
        for partition, records in fetched.chunks:
            self._tables.apply(partition, records, self._channel)
            self._moved = self._clock.monotonic()
            self._complaint = None
        if fetched.denied:
            self._denied = f"this user may not read {', '.join(sorted(fetched.denied))}"
        self._left.difference_update(partition for partition, _ in fetched.ends)
        if not self._left:
            self._loaded.set()
        lost = [*fetched.out_of_range, *(each for each, _ in fetched.truncated)]
        if lost:
            # what it had that is gone now is not known: the next start reads it whole
            self._fail(
                ChannelFailedError(
                    f"channel {self._channel}: {lost[0]} of a shared table lost records, or is "
                    "another topic of the same name; it is read whole at the next start"
                )
            )
            self._stopping.set()

"""The order of a task: the times by which records of several topics are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.expressions import FieldNode, walk
from headrace.extensions.streams.inline.batch import QUIET, TopicRecords
from headrace.extensions.streams.inline.run import topics_in_code
from headrace.extensions.streams.inline.stateless import read_records, with_time
from headrace.extensions.streams.operators import Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.plan import Channel, Plan

#: Before any time: such a record comes right after the one before it.
_NEVER = np.iinfo(np.int64).min


class RowTimes:
    """Finds the times of records by what the streams that read them say: ``time=``, or their own.

    Any thread.
    """

    def __init__(self, plan: Plan, topics: Sequence[str]) -> None:
        self._sources: dict[str, tuple[Source, list[str], CustomDecoder | None]] = {}
        for place, operator in enumerate(plan.operators):
            # all streams of a topic have the same time
            if isinstance(operator, Source) and operator.topic in topics and operator.time:
                names = [each.name for each in walk(operator.time) if isinstance(each, FieldNode)]
                self._sources[operator.topic] = (operator, names, plan.decoders.get(place))

    @property
    def are_all_own(self) -> bool:
        """Return whether no stream says another time than the records' own."""
        return not self._sources

    def find(self, records: TopicRecords) -> Array:
        """Return the times of a topic's records, lower than any for one that is poison by it.

        Raises:
            RetryableError: values cannot be read now.
        """
        if records.topic not in self._sources:
            return records.times
        source, names, decoder = self._sources[records.topic]
        assert source.output is not None, "rows come out"
        rows = read_records(records, source.output, names, source.codec, QUIET, decoder)
        rows = with_time(source, rows, QUIET)
        found = np.full(len(records.at), _NEVER)
        found[np.searchsorted(records.at, rows.at)] = rows.times
        return found


class TimedRecord(Protocol):
    """A record with its own time, in milliseconds."""

    @property
    def key(self) -> bytes | None:
        """Return the key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Return the value."""
        ...

    @property
    def time(self) -> int:
        """Return the time."""
        ...


T = TypeVar("T", bound=TimedRecord)


def in_task_order(plan: Plan, channel: Channel, waiting: Mapping[str, Sequence[T]]) -> list[T]:
    """Return the records of a channel's topics by time; in a topic they keep their order."""
    topics = topics_in_code(plan, channel)
    times = RowTimes(plan, topics)
    found: list[tuple[int, int, int, T]] = []
    for place, topic in enumerate(topics):
        own = waiting.get(topic, ())
        # a record out of order comes after those before it
        reached = np.maximum.accumulate(times.find(columns_of(topic, own)))
        found += [
            (time, place, number, each)
            for number, (time, each) in enumerate(zip(reached.tolist(), own, strict=True))
        ]
    return [each[-1] for each in sorted(found, key=lambda each: each[:3])]


def columns_of(
    topic: str, records: Sequence[TimedRecord], at: Sequence[int] | None = None
) -> TopicRecords:
    """Return records in columns; ``at`` are their places in the micro-batch, all of it if None."""
    return TopicRecords(
        topic,
        np.arange(len(records)) if at is None else np.array(at, np.int64),
        pa.array([each.key for each in records], pa.binary()),
        pa.array([each.value for each in records], pa.binary()),
        np.array([each.time for each in records], np.int64),
    )

"""Fetching records in columns: a consumer that is assigned its partitions and joins no group."""

from __future__ import annotations

import ctypes as c
import weakref
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from headrace.core.columns import PIECE_OVERHEAD, SCHEMA, ColumnRun, Extent
from headrace.core.memory import relax
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.clients import refused
from headrace.kafka.columnar import library
from headrace.kafka.errors import LibraryMissingError
from headrace.kafka.ports import Fetched, RecordSource
from headrace.kafka.source import LOCAL_TIMEOUT
from headrace.kafka.token_file import TOKEN_CALLBACK
from headrace.kafka.truncation import NO_EPOCH, note

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Directive(IntEnum):
    """A directive to the client about partitions."""

    ASSIGN = 0
    """Fetch them, from offsets."""

    UNASSIGN = 1
    """Fetch them no longer, and drop what was prefetched."""

    PAUSE = 2
    """Fetch them no longer for a while, and drop what was prefetched."""

    RESUME = 3
    """Go on fetching them."""


class About(IntEnum):
    """The subject of an event."""

    PARTITION = 0
    """One partition: it comes in place of a record."""

    CLIENT = 1
    """The client as a whole."""

    LOG = 2
    """A line of the client's log; ``code`` is its level as in syslog, ``topic`` its facility."""


class ClientEvent(NamedTuple):
    """An event that came in place of a record, or beside records."""

    about: About
    code: int
    partition: int
    offset: int
    topic: str
    text: str


#: Properties that the Python client sets before all others, which may depend on them.
_FIRST = ("debug", "plugin.library.paths")

#: What the Python client does itself, in Python, where librdkafka is asked for it.
_IN_PYTHON = ("sasl.oauthbearer.metadata.authentication.type", "aws_iam")


class Consumer:
    """Used by one thread. ``properties`` are librdkafka's, without callbacks.

    One that is forgotten without :meth:`close` is closed when it is freed.

    Raises:
        ConfigError: librdkafka does not know a property, or refuses its value.
        LibraryMissingError: the part in C is not there, or cannot do what properties want.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        name, value = _IN_PYTHON
        if properties.get(name) == value:
            raise LibraryMissingError(f"only the Python client knows {name}={value}")
        if TOKEN_CALLBACK in properties:
            raise LibraryMissingError(
                "only the Python client reads tokens from kafka.oauth.token_file"
            )
        #: The leader epochs of the last records of the last take.
        self.leader_epochs: dict[TopicPartition, int] = {}
        self._library = library.load()
        self._why = c.create_string_buffer(library.SENTENCE)
        self._array = c.create_string_buffer(library.ARROW_ARRAY)
        ordered = sorted(properties, key=lambda each: each not in _FIRST)
        handle = self._library.open(
            _texts(ordered),
            _texts(properties[each] for each in ordered),
            len(ordered),
            self._why,
            library.SENTENCE,
        )
        if not handle:
            raise refused(self._reason())
        self._open: int | None = handle
        self._close = weakref.finalize(self, self._library.close, handle)
        # the end of the process does not wait for it
        self._close.atexit = False

    @property
    def _handle(self) -> int:
        """Return the consumer in C, which has no answer for none at all: the process would end.

        Raises:
            RuntimeError: it is closed.
        """
        if self._open is None:
            raise RuntimeError("the consumer is closed")
        return self._open

    def _reason(self) -> str:
        return self._why.value.decode("utf-8", "replace")

    def direct(
        self,
        what: Directive,
        partitions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Direct the client to partitions and their offsets, which count for ``ASSIGN`` only.

        So do ``epochs``, leader epochs under which the log was seen to lead to the offsets.

        Raises:
            KafkaException: the client refuses.
        """
        count = len(partitions)
        known = epochs or {}
        if self._library.direct(
            self._handle,
            what,
            _texts(each.topic for each in partitions),
            (c.c_int32 * count)(*(each.partition for each in partitions)),
            (c.c_int64 * count)(*partitions.values()),
            (c.c_int32 * count)(*(known.get(each, NO_EPOCH) for each in partitions)),
            count,
            self._why,
            library.SENTENCE,
        ):
            raise KafkaException(KafkaError(KafkaError._FAIL, self._reason()))  # noqa: SLF001 - the client's public name for it

    def look_up(self, topic: str, seconds: float) -> bool:
        """Request the leaders of a topic; return whether a broker answered. Blocks."""
        answer: int = self._library.look_up(self._handle, topic.encode(), round(seconds * 1000))
        return answer == 0

    def end(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition as last seen."""
        topic, number = partition
        high: int = self._library.end(self._handle, topic.encode(), number)
        return high if high >= 0 else None

    def take(self, max_records: int, max_bytes: int, seconds: float) -> list[ColumnRun]:
        """Return what has come, waiting for it so long; a thousand records may pass the limits.

        Python's other threads run meanwhile. There may be :meth:`events` beside it.
        """
        self.leader_epochs.clear()
        count = self._library.take(self._handle, max_records, max_bytes, round(seconds * 1000))
        return [self._run(number) for number in range(count)]

    def _run(self, number: int) -> ColumnRun:
        head = self._library.part(self._handle, number).contents
        partition = TopicPartition(head.topic.decode(), head.partition)
        self._library.give(self._handle, number, self._array)
        rows = pa.RecordBatch._import_from_c(c.addressof(self._array), SCHEMA)  # noqa: SLF001 - pyarrow documents it by this name
        if head.leader_epoch >= 0:
            self.leader_epochs[partition] = head.leader_epoch
        size = head.bytes + PIECE_OVERHEAD
        extent = Extent(head.first_offset, head.last_offset + 1, size)
        return ColumnRun(partition, (rows,), extent)

    def events(self) -> list[ClientEvent]:
        """Return what came beside the records of the last take."""
        count = self._library.event_count(self._handle)
        found = [self._library.event(self._handle, number).contents for number in range(count)]
        return [
            ClientEvent(
                About(each.kind),
                each.code,
                each.partition,
                each.offset,
                each.topic.decode(),
                each.text.decode("utf-8", "replace"),
            )
            for each in found
        ]

    def close(self) -> None:
        """Release the client; harmless if called again. Blocks until its threads have ended."""
        self._open = None
        self._close()


def _texts(values: Any) -> Any:
    """Return values as C has them: text, or no address for None."""
    texts = [None if value is None else str(value).encode() for value in values]
    return (c.c_char_p * len(texts))(*texts)


#: Records and bytes of one fetch, of all partitions together: enough to make the cost of the call
#: and of an Arrow batch for each partition disappear, and little enough to wait for. A partition
#: may keep that much alive with its last record.
MAX_RECORDS = 20_000
MAX_BYTES = 4 << 20

#: Python's levels for those of syslog, as the Python client translates them.
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


class ColumnarRecordSource(RecordSource):
    """A ``RecordSource`` on one librdkafka consumer, whose records come in columns.

    It asks librdkafka for the same as :class:`headrace.kafka.KafkaRecordSource` does, by the same
    calls, and returns the same records. Python's garbage collector is relaxed, as it is there:
    runs are looked at record by record where a batch fails.

    Raises:
        LibraryMissingError: the part in C is not there.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str, prefetch: int) -> None:
        relax()
        wanted = clients.source(client_properties, group, prefetch)
        self._logger = wanted.pop("logger", None)
        self._report = wanted.pop("error_cb", None)
        self._max_bytes = max(1, min(MAX_BYTES, prefetch))
        self._consumer = Consumer(wanted)
        self._known: set[str] = set()

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        for topic in sorted({p.topic for p in starts} - self._known):
            if self._consumer.look_up(topic, LOCAL_TIMEOUT):
                self._known.add(topic)
        self._consumer.direct(Directive.ASSIGN, starts, epochs)
        self._consumer.direct(Directive.RESUME, starts)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.direct(Directive.UNASSIGN, dict.fromkeys(partitions, 0))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.direct(Directive.PAUSE, dict.fromkeys(partitions, 0))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.direct(Directive.RESUME, dict.fromkeys(partitions, 0))

    def fetch(self, timeout: float) -> Fetched:
        runs = self._consumer.take(MAX_RECORDS, self._max_bytes, timeout)
        epochs = dict(self._consumer.leader_epochs)
        fetched = Fetched([(run.partition, run) for run in runs], leader_epochs=epochs)
        for event in self._consumer.events():
            self._note_event(fetched, event)
        return fetched

    def _note_event(self, fetched: Fetched, event: ClientEvent) -> None:
        """Put an event where it belongs."""
        if event.about is About.CLIENT and self._report is not None:
            self._report(KafkaError(event.code, event.text))
        elif event.about is About.LOG and self._logger is not None:
            self._logger.log(_LEVELS[event.code], "%s %s", event.topic, event.text)
        elif event.about is About.PARTITION:
            partition = TopicPartition(event.topic, event.partition)
            note(fetched, partition, event.offset, event.code, event.text)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self._consumer.end(partition)

    def close(self) -> None:
        self._consumer.close()

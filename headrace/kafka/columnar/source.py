"""Fetching records in columns: a consumer that is assigned its partitions and joins no group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from headrace.kafka import collector, properties
from headrace.kafka.columnar.consumer import About, Consumer, Tell
from headrace.kafka.ports import Fetched
from headrace.kafka.source import LOCAL_TIMEOUT
from headrace.kafka.truncation import OUT_OF_RANGE, former_end, is_truncation
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.kafka.columnar.consumer import News

#: Records and bytes of one fetch, of all partitions together: enough to make the cost of the call
#: and of an Arrow batch for each partition disappear, and little enough to wait for. A partition
#: may keep that much alive with its last record.
MAX_RECORDS = 20_000
MAX_BYTES = 4 << 20

#: Python's levels for those of syslog, as the Python client translates them.
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


class ColumnarRecordSource:
    """A ``RecordSource`` on one librdkafka consumer, whose records come in columns.

    It asks librdkafka for the same as :class:`headrace.kafka.KafkaRecordSource` does, by the same
    calls, and returns the same records. Python's garbage collector is relaxed, as it is there:
    runs are looked at record by record where a batch fails.

    Raises:
        LibraryMissingError: the part in C is not there.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str, prefetch: int) -> None:
        collector.relax()
        wanted = properties.source(client_properties, group, prefetch)
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
        """Begin to fetch; other partitions keep what was prefetched.

        Partitions are resumed because the client may remember a pause beyond an assignment. Topics
        new to the client are looked up first: by itself it asks for leaders once a second only.
        """
        for topic in sorted({p.topic for p in starts} - self._known):
            if self._consumer.look_up(topic, LOCAL_TIMEOUT):
                self._known.add(topic)
        self._consumer.tell(Tell.ASSIGN, starts, epochs)
        self._consumer.tell(Tell.RESUME, starts)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching."""
        self._consumer.tell(Tell.UNASSIGN, dict.fromkeys(partitions, 0))

    def seek(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Fetch from the offsets given, by assigning afresh."""
        self.unassign(starts)
        self.assign(starts, epochs)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching for a while."""
        self._consumer.tell(Tell.PAUSE, dict.fromkeys(partitions, 0))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on fetching."""
        self._consumer.tell(Tell.RESUME, dict.fromkeys(partitions, 0))

    def fetch(self, timeout: float) -> Fetched:
        """Return what has come, in order."""
        runs = self._consumer.take(MAX_RECORDS, self._max_bytes, timeout)
        epochs = dict(self._consumer.leader_epochs)
        fetched = Fetched([(run.partition, run) for run in runs], leader_epochs=epochs)
        for news in self._consumer.news():
            self._note(fetched, news)
        return fetched

    def _note(self, fetched: Fetched, news: News) -> None:
        """Put a piece of news where it belongs."""
        if news.about is About.CLIENT and self._report is not None:
            self._report(KafkaError(news.code, news.text))
        elif news.about is About.LOG and self._logger is not None:
            self._logger.log(_LEVELS[news.code], "%s %s", news.topic, news.text)
        elif news.about is About.PARTITION:
            self._note_partition(fetched, news)

    @staticmethod
    def _note_partition(fetched: Fetched, news: News) -> None:
        partition = TopicPartition(news.topic, news.partition)
        if news.partition < 0 or not news.topic:
            fetched.errors.append(news.text)
        elif news.code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
            fetched.ends.append((partition, news.offset))
        elif is_truncation(news.text):
            fetched.truncated.append((partition, former_end(news.text)))
        elif news.code in OUT_OF_RANGE:
            fetched.out_of_range.append(partition)
        else:
            fetched.errors.append(f"{partition}: {news.text}")

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the end as last seen."""
        return self._consumer.end(partition)

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()

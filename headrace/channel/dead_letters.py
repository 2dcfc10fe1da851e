"""Dead letters: the way of a record to the dead-letter topic, and the limits of how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import DeadLetterLimitError, KafkaUnavailableError, UnknownTopicError
from headrace.core.letter_headers import Failure, LetterHeaders, shortened
from headrace.core.record_runs import UnreadRecord
from headrace.kafka.ports import DeadLetter, DeadLetterError

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.progress import Outstanding
    from headrace.channel.settings import LiveSettings
    from headrace.config import ChannelConfig
    from headrace.core.clock import Clock
    from headrace.core.letter_headers import LetterNames
    from headrace.core.records import Record
    from headrace.kafka.ports import DeadLetterStore, RecordReader, TopicCatalog
    from headrace.telemetry.metrics import Metrics


log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to take a record. A worker waits for it, so other partitions
#: may have to wait as long; the batch comes again after a back-off.
STORE_TIMEOUT = 5.0

#: Seconds in which the brokers have to say whether the topic exists.
CHECK_TIMEOUT = 15.0


class DeadLetters:
    """The dead-letter topic of a channel, as the workers and the channel's start use it.

    ``code`` is the processor, whose name is said to whom Kafka Connect's names are for.
    """

    def __init__(
        self,
        settings: LiveSettings,
        *,
        store: DeadLetterStore,
        reader: RecordReader,
        catalog: TopicCatalog,
        metrics: Metrics,
        channel: str,
        code: object,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._catalog = catalog
        self._metrics = metrics
        self._channel = channel
        self._code = code
        self._clock = clock

    def check(self, config: ChannelConfig, deadline: Deadline) -> None:
        """See whether the topic that ``config`` names exists, if it names one. Blocks.

        Raises:
            UnknownTopicError: it does not.
            KafkaUnavailableError: no broker answered in time.
        """
        wanted = config.on_error.dead_letter
        if wanted is None:
            return
        look_deadline = Deadline.after(deadline.at_most(CHECK_TIMEOUT), self._clock)
        if wanted.topic not in self._catalog.describe([wanted.topic], look_deadline):
            raise UnknownTopicError(
                f"channel {self._channel}: no dead-letter topic {wanted.topic} on the broker; "
                f"create it, or correct channels.{self._channel}.on_error.dead_letter.topic"
            )

    def recheck(self, config: ChannelConfig, deadline: Deadline) -> None:
        """See whether the topic exists if ``config`` names another one than holds now. Blocks.

        Raises as ``check`` does.
        """
        now, wanted = (c.on_error.dead_letter for c in (self._settings.config, config))
        if wanted is not None and (now is None or now.topic != wanted.topic):
            self.check(config, deadline)

    def send(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> None:
        """Put the one record of a failed batch into the topic; return when it is there. Blocks.

        Raises:
            DeadLetterLimitError: that would be one too many; nothing was sent.
            DeadLetterError: it is not known to be there.
        """
        limits = self._settings.config.on_error.dead_letter
        assert limits is not None, "the configuration demands a topic"
        excess = owned.letters.excess(item.cut, item.batch.first_offset, limits)
        if excess is not None:
            raise DeadLetterLimitError(
                f"{owned.partition}: {excess} would go to the dead-letter topic {limits.topic}; "
                f"the next is at offset {item.batch.first_offset}, and failed with "
                f"{type(error).__name__}: {error}; fix what is wrong, or raise the limit"
            )
        deadline = Deadline.after(STORE_TIMEOUT, self._clock)
        record = self._record(owned, item, deadline)
        letter = self._letter(owned, item, error, record, limits.headers)
        self._store.store(limits.topic, letter, deadline)
        topic = owned.partition.topic
        self._metrics.dead_lettered.labels(self._channel, topic).inc()
        log.error(
            "record_dead_lettered",
            **owned.log_fields,
            offset=item.batch.first_offset,
            target=limits.topic,
            attempts=item.batch.attempt,
            error=f"{type(error).__name__}: {error}",
        )

    def _record(self, owned: OwnedPartition, item: Outstanding, deadline: Deadline) -> Record:
        """Return the batch's one record; where it is known by reference only, read it."""
        record = item.batch.records[0]
        if not isinstance(record, UnreadRecord):
            return record
        try:
            found = self._reader.read(owned.partition, record.at, deadline)
        except KafkaUnavailableError as silence:
            raise DeadLetterError(str(silence)) from silence
        if found is None:
            raise DeadLetterError(f"{owned.partition}: there is no record at {record.at} any more")
        return found

    def _letter(
        self,
        owned: OwnedPartition,
        item: Outstanding,
        error: BaseException,
        record: Record,
        names: LetterNames,
    ) -> DeadLetter:
        said = {
            "group": self._settings.config.group,
            "topic": owned.partition.topic,
            "topic_id": owned.life.topic_id or "",
            "partition": str(owned.partition.partition),
            "offset": str(record.offset()),
            "timestamp": str(record.timestamp()[1]),
            "error": type(error).__name__,
            "message": shortened(str(error)),
            "attempt": str(item.batch.attempt),
        }
        failure = Failure(str(error), error, code=self._code)
        ours = LetterHeaders(names, self._settings.config.group).of(said, failure)
        traced = item.batch.span.headers()
        return DeadLetter(record.key(), record.value(), [*(record.headers() or ()), *traced, *ours])

    def close(self) -> None:
        """Release the client."""
        self._store.close()

"""Dead letters: the way of a record to the dead-letter topic, and the limits of how many."""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, cast

import structlog

from headrace.config import LimitedRejects
from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError, RetryableError, UndecodableRecordError
from headrace.core.letter_headers import (
    Failure,
    LetterHeaders,
    Stage,
    code_of,
    our_header,
    our_headers,
    shortened,
)
from headrace.core.record_runs import UnreadRecord
from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.kafka.catalog import meant
from headrace.kafka.errors import KafkaUnavailableError, ProduceError, UnknownTopicError
from headrace.kafka.ports import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.progress import Outstanding
    from headrace.channel.settings import LiveSettings
    from headrace.config import ChannelConfig
    from headrace.core.clock import Clock
    from headrace.core.header_columns import AddedHeader
    from headrace.core.records import Batch, Record
    from headrace.core.undecodable import UndecodableRecords
    from headrace.kafka.ports import DeadLetterStore, RecordReader, TopicCatalog
    from headrace.telemetry.metrics import Metrics


log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to take a record. A worker waits for it, so other partitions
#: may have to wait as long; the batch is retried after a back-off.
STORE_TIMEOUT = 5.0

#: Seconds in which the brokers have to say whether the topic exists.
CHECK_TIMEOUT = 15.0


class _LetterWriter:
    """Makes the letters of one batch; what they all say is looked up, and encoded, once.

    ``headers`` are the channel's, ``code`` is the processor.
    """

    def __init__(self, batch: Batch, headers: LetterHeaders, code: object) -> None:
        self._headers = headers
        self._code = code
        self._partition = batch.partition
        self._traced = batch.span.headers()
        owned = cast("OwnedPartition", batch.assignment)
        self._place = {
            "group": headers.group,
            "topic": self._partition.topic,
            "topic_id": owned.life.topic_id or "",
            "partition": str(self._partition.partition),
        }
        self._attempt = {"attempt": str(batch.attempt)}

    def failed(self, record: Record, error: BaseException) -> DeadLetter:
        """Return the letter of a record that cannot be processed."""
        said = {
            **self._place,
            "offset": str(offset_of(record)),
            "timestamp": str(record.timestamp()[1]),
            "error": type(error).__name__,
            "message": shortened(str(error)),
            **self._attempt,
        }
        failure = Failure(str(error), error, Stage.PROCESS, self._code)
        added = self._headers.of(said, failure)
        headers = [*(record.headers() or ()), *self._traced, *added]
        return DeadLetter(record.key(), record.value(), headers)

    def added_headers(self, records: UndecodableRecords) -> Sequence[AddedHeader]:
        """Return the headers that letters of undecodable records have after the records' own."""
        if self._headers.are_ours:
            return [*self._traced, *self._ours(records)]
        return [*self._traced, *self._connects(records)]

    def _ours(self, records: UndecodableRecords) -> Iterator[AddedHeader]:
        kind, where = UndecodableRecordError, self._partition
        # to make an error for each takes longer than all the rest
        messages = map(kind.text, repeat(where), records.offsets, records.reasons)
        yield from our_headers(self._place)
        yield our_header("offset", map(str, records.offsets))
        yield our_header("timestamp", map(str, records.timestamps()))
        yield from our_headers({"error": kind.__name__})
        yield our_header("message", map(shortened, messages))
        yield from our_headers(self._attempt)

    def _connects(self, records: UndecodableRecords) -> Iterator[AddedHeader]:
        each = []
        for offset, reason in zip(records.offsets, records.reasons, strict=True):
            error = UndecodableRecordError(self._partition, offset, reason)
            failure = Failure(str(error), error, Stage.VALUE, self._code)
            each.append(self._headers.of({**self._place, "offset": str(offset)}, failure))
        # they have the same names, as they failed alike
        for column in zip(*each, strict=True):
            yield column[0][0], [value for _, value in column]


class DeadLetters:
    """The dead-letter topic of a channel, as the workers and the channel's start use it.

    ``code`` is the processor, whose name is said to whom Kafka Connect's names are for. ``fail``
    ends the channel.
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
        fail: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._catalog = catalog
        self._metrics = metrics
        self._channel = channel
        self._code = code
        self._clock = clock
        self._fail = fail

    def check(self, config: ChannelConfig, deadline: Deadline) -> None:
        """Check that the topic that ``config`` names exists, if it names one. Blocks.

        Raises:
            UnknownTopicError: it does not.
            KafkaUnavailableError: no broker answered in time.
        """
        wanted = config.rejects.topic
        if wanted is None:
            return
        look_deadline = Deadline.after(deadline.at_most(CHECK_TIMEOUT), self._clock)
        if wanted not in self._catalog.describe([wanted], look_deadline):
            near = meant(self._catalog, [wanted], look_deadline)
            raise UnknownTopicError(
                f"channel {self._channel}: no dead-letter topic {wanted} on the broker"
                f"{near}; create it, or correct channels.{self._channel}.rejects.topic"
            )

    def recheck(self, config: ChannelConfig, deadline: Deadline) -> None:
        """Check that the topic exists if ``config`` names another one than before. Blocks.

        Raises as ``check`` does.
        """
        if config.rejects.topic != self._settings.config.rejects.topic:
            self.check(config, deadline)

    def send(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> None:
        """Put the one record of a failed batch into the topic; return when it is there. Blocks.

        Raises:
            ChannelFailedError: that would be one too many; nothing was sent.
            ProduceError: it is not known to be there.
        """
        limits = self._settings.config.rejects
        assert isinstance(limits, LimitedRejects), "others part with no record of a batch"
        assert limits.topic is not None, "the configuration demands a topic"
        excess = owned.letters.excess(item.cut, item.batch.first_offset, limits)
        if excess is not None:
            raise ChannelFailedError(
                f"{owned.partition}: {excess} would go to the dead-letter topic {limits.topic}; "
                f"the next is at offset {item.batch.first_offset}, and failed with "
                f"{describe_error(error)}; fix what is wrong, or raise the limit"
            )
        record = self._record(owned, item, Deadline.after(STORE_TIMEOUT, self._clock))
        letter = self._writer(item.batch, limits).failed(record, error)
        self._store.store(limits.topic, letter, STORE_TIMEOUT)
        topic = owned.partition.topic
        self._metrics.dead_lettered.labels(self._channel, topic).inc()
        log.error(
            "record_dead_lettered",
            **owned.life.log_fields,
            offset=item.batch.first_offset,
            target=limits.topic,
            attempts=item.batch.attempt,
            error=describe_error(error),
        )

    def send_undecodable(self, found: Sequence[tuple[Batch, UndecodableRecords]]) -> None:
        """Put the undecodable records of a micro-batch's batches into the topic, all in one go.

        Return when they are there, before their micro-batch is committed. On the thread that
        commits; blocks.

        Raises:
            RetryableError: not all are known to be there. Where that would be too many none was
                sent, and the channel ends with a ChannelFailedError.
        """
        section = self._settings.config.rejects
        if not isinstance(section, LimitedRejects) or section.topic is None:
            raise RetryableError(
                f"channel {self._channel}: undecodable records have no dead-letter topic any more; "
                "name one in rejects.topic"
            )
        for batch, records in found:
            self._require_room(batch, records, section)
        from headrace.core.undecodable import letters_of  # noqa: PLC0415 - needs Arrow

        added = [
            (records, self._writer(batch, section).added_headers(records))
            for batch, records in found
        ]
        letters = letters_of(section.topic, added)
        try:
            self._store.store_all(letters, STORE_TIMEOUT)
        except ProduceError as failure:
            log.warning("dead_letter_failed", channel=self._channel, error=str(failure))
            raise RetryableError(str(failure)) from failure
        for batch, records in found:
            cast("OwnedPartition", batch.assignment).undecodable.note(batch, records.offsets)
            topic = batch.partition.topic
            self._metrics.dead_lettered.labels(self._channel, topic).inc(len(records))
        self._log_sent(section.topic, found)

    def _require_room(
        self,
        batch: Batch,
        records: UndecodableRecords,
        section: LimitedRejects,
    ) -> None:
        """Return if all may be sent; else end the channel."""
        limits = cast("OwnedPartition", batch.assignment).undecodable
        excess = limits.excess(batch, records.offsets, section)
        if excess is None:
            return
        offset, which = excess
        reason = records.reasons[records.offsets.index(offset)]
        error = ChannelFailedError(
            f"{batch.partition}: {which} would go to the dead-letter topic {section.topic}; "
            f"the next is at offset {offset}, and is undecodable: {reason}; fix what is wrong, or "
            "raise the limit"
        )
        self._fail(error)
        raise RetryableError(str(error)) from error

    def _log_sent(self, target: str, found: Sequence[tuple[Batch, UndecodableRecords]]) -> None:
        """Log one line for a micro-batch: how many of which kind, and the first of a partition."""
        codes = Counter(
            code_of(reason) or "DECODER" for _, records in found for reason in records.reasons
        )
        batch, records = found[0]
        log.warning(
            "undecodable_records_dead_lettered",
            channel=self._channel,
            target=target,
            records=codes.total(),
            reasons=dict(codes.most_common()),
            first=f"{batch.partition}@{records.offsets[0]}",
            error=records.reasons[0],
        )

    def _record(self, owned: OwnedPartition, item: Outstanding, deadline: Deadline) -> Record:
        """Return the batch's one record; where it is known by reference only, read it."""
        record = item.batch.records[0]
        if not isinstance(record, UnreadRecord):
            return record
        try:
            found = self._reader.read(owned.partition, record.at, deadline)
        except KafkaUnavailableError as silence:
            raise ProduceError(str(silence)) from silence
        if found is None:
            raise ProduceError(f"{owned.partition}: there is no record at {record.at} any more")
        return found

    def _writer(self, batch: Batch, section: LimitedRejects) -> _LetterWriter:
        headers = LetterHeaders(section.headers, self._settings.config.group)
        return _LetterWriter(batch, headers, self._code)

    def close(self) -> None:
        """Release the client."""
        self._store.close()

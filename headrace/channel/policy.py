"""What the channel does with a failed batch when the processor leaves it to the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.channel.answers import Effect
from headrace.channel.blame import Blame, blame_of
from headrace.channel.suspects import divided, names_one_of
from headrace.errors import DeadLetterLimitError, FencedError, SinkConflictError
from headrace.kafka.ports import DeadLetterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.callbacks import Callbacks
    from headrace.channel.dead_letters import DeadLetters
    from headrace.channel.partition import Outstanding, OwnedPartition
    from headrace.channel.settings import LiveSettings
    from headrace.metrics import Metrics

log = structlog.get_logger(__name__)


class FailurePolicy:
    """The channel's ``on_error`` section. Called by the thread that holds the partition."""

    def __init__(
        self,
        settings: LiveSettings,
        *,
        callbacks: Callbacks,
        dead_letters: DeadLetters,
        fail: Callable[[BaseException], None],
        metrics: Metrics,
        channel: str,
    ) -> None:
        self._settings = settings
        self._callbacks = callbacks
        self._dead_letters = dead_letters
        self._fail = fail
        self._metrics = metrics
        self._channel = channel

    def decide(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
        """Return what follows: the same batch again, its parts, the batch behind it, or a stop.

        Raises:
            SinkConflictError: the batch was to be given up, and the sink stands elsewhere.
            FencedError: the batch was to be given up, and the sink refuses this member.
        """
        policy = self._settings.config.on_error.policy
        if policy == "stop" and self._tried_enough(owned):
            self._fail(error)
        if policy in {"retry", "stop"} or blame_of(error) is Blame.ELSEWHERE:
            return self._again(owned, item)
        named = names_one_of(item.batch.records, error)
        if named and len(item.batch) > 1:
            return self._divide(owned, item, error)
        given_up = named or self._tried_enough(owned)
        if policy == "skip" and given_up:
            return self._skip(owned, item, error)
        if policy == "dead_letter" and (
            given_up or self._is_suspect(owned, item) or self._is_one_of_many(owned, item)
        ):
            return self._isolate(owned, item, error)
        return self._again(owned, item)

    def _tried_enough(self, owned: OwnedPartition) -> bool:
        most = self._settings.config.on_error.max_attempts
        return most is not None and owned.attempts >= most

    @staticmethod
    def _is_suspect(owned: OwnedPartition, item: Outstanding) -> bool:
        """Whether it is a part of a batch that was tried often enough as a whole."""
        alone = len(item.batch) == 1
        return item.cut.failures > 0 and not (alone and owned.letters.in_doubt(item.cut))

    def _is_one_of_many(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Whether so many records fail that the limit is soon reached, tried again or not."""
        limits = self._settings.config.on_error.dead_letter
        return limits is not None and owned.letters.heads_for(item.cut, limits)

    def _again(self, owned: OwnedPartition, item: Outstanding) -> Effect:
        wait = self._settings.now.backoff.seconds(owned.attempts)
        return Effect(None, item.cut.start, wait, None, None)

    def passed_over(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Have a sink with offsets of its own move behind the batch; False if it could not.

        Raises:
            SinkConflictError: the sink does not stand where the batch begins.
            FencedError: the sink refuses this member.
        """
        processor = self._callbacks.processor
        try:
            self._callbacks.call(owned, lambda: processor.pass_over(item.batch))
        except (SinkConflictError, FencedError):
            raise
        except Exception as error:
            log.exception("pass_over_failed", channel=self._channel, error=str(error))
            return False
        return True

    def _skip(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
        if not self.passed_over(owned, item):
            return self._again(owned, item)
        topic, number = owned.partition
        self._metrics.skipped.labels(self._channel, topic, "failed").inc(len(item.batch))
        log.error(
            "batch_skipped",
            channel=self._channel,
            topic=topic,
            partition=number,
            first_offset=item.batch.first_offset,
            next_offset=item.batch.next_offset,
            records=len(item.batch),
            attempts=owned.attempts,
            error=str(error),
        )
        return self._behind(owned, item)

    def _isolate(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
        """Divide the batch, or part with the one record that it is."""
        if len(item.batch) > 1:
            return self._divide(owned, item, error)
        try:
            self._dead_letters.send(owned, item, error)
        except DeadLetterLimitError as limit:
            self._fail(limit)
            return self._again(owned, item)
        except DeadLetterError as failure:
            owned.last_error = str(failure)
            log.warning(
                "dead_letter_failed",
                channel=self._channel,
                topic=owned.partition.topic,
                partition=owned.partition.partition,
                offset=item.batch.first_offset,
                error=str(failure),
            )
            return self._again(owned, item)
        if not self.passed_over(owned, item):
            return self._again(owned, item)
        owned.letters.note(item.cut, item.batch.first_offset)
        return self._behind(owned, item)

    def _divide(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
        batch = item.batch
        parts = divided(item.cut, batch.records, error, batch.attempt)
        topic, number = owned.partition
        self._metrics.bisections.labels(self._channel, topic).inc()
        log.warning(
            "batch_divided",
            channel=self._channel,
            topic=topic,
            partition=number,
            first_offset=batch.first_offset,
            next_offset=batch.next_offset,
            records=len(batch),
            parts=len(parts),
            error=f"{type(error).__name__}: {error}",
        )
        owned.letters.divide(item.cut)
        owned.attempts = 0
        return Effect(None, item.cut.start, 0.0, None, None, parts)

    @staticmethod
    def _behind(owned: OwnedPartition, item: Outstanding) -> Effect:
        owned.attempts = 0
        return Effect(item.batch.next_offset, None, 0.0, None, None)

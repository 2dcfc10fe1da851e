"""What the channel does with a failed batch when the processor leaves it to the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.channel.answers import Effect
from headrace.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.callbacks import Callbacks
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
        fail: Callable[[BaseException], None],
        metrics: Metrics,
        channel: str,
    ) -> None:
        self._settings = settings
        self._callbacks = callbacks
        self._fail = fail
        self._metrics = metrics
        self._channel = channel

    def decide(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
        """Return what follows: the same batch again, the batch behind it, or again and stop.

        Raises:
            SinkConflictError: the batch was to be skipped, and the sink stands elsewhere.
        """
        settings = self._settings.now
        config, wait = settings.config.on_error, settings.backoff.seconds(owned.attempts)
        again = Effect(None, item.cut.start, wait, None, None)
        most = config.max_attempts
        if most is None or owned.attempts < most:
            return again
        if config.policy == "skip":
            return self._skip(owned, item, error) if self.passed_over(owned, item) else again
        if config.policy == "stop":
            self._fail(error)
        return again

    def passed_over(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Have a sink with offsets of its own move behind the batch; False if it could not.

        Raises:
            SinkConflictError: the sink does not stand where the batch begins.
        """
        processor = self._callbacks.processor
        try:
            self._callbacks.call(owned, lambda: processor.pass_over(item.batch))
        except SinkConflictError:
            raise
        except Exception as error:
            log.exception("pass_over_failed", channel=self._channel, error=str(error))
            return False
        return True

    def _skip(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> Effect:
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
        owned.attempts = 0
        return Effect(item.batch.next_offset, None, 0.0, None, None)

"""The reset of a position that the broker does not have: ask, then the channel's policy."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.channel.events import LogTruncated
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, LogTruncatedError, OffsetOutOfRangeError
from headrace.processors import BatchResponse

if TYPE_CHECKING:
    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.events import OffsetOutOfRange
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.topics import KnownTopics
    from headrace.kafka.ports import TopicCatalog

log = structlog.get_logger(__name__)

#: Seconds to wait for a partition's leader to say what it has.
WATERMARK_TIMEOUT = 5.0


class OffsetReset:
    """Finds a position that the broker has. Called by the thread that holds the partition."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        callbacks: Callbacks,
        catalog: TopicCatalog,
        committer: Committer,
        fetcher: Fetcher,
        topics: KnownTopics,
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._catalog = catalog
        self._committer = committer
        self._fetcher = fetcher
        self._topics = topics
        self._replaced: set[OwnedPartition] = set()

    def restart_topic(self, owned: OwnedPartition) -> None:
        """Restart at the beginning of a log that replaced the one that was read.

        Where it does not begin at 0 any more, what follows is what follows a deleted position.
        The claim ends once that is committed: a sink knows the new log by another name.
        """
        self._fetcher.unassign(owned)
        self._go_back(owned, 0)
        self._committer.flush()
        self._replaced.add(owned)

    def has_restarted(self, owned: OwnedPartition) -> bool:
        """Return whether a partition was sent to the beginning of another log, and that is
        committed.
        """
        if owned not in self._replaced or owned.pending_commits.has_pending_commit:
            return False
        self._replaced.remove(owned)
        return True

    def hold(self, owned: OwnedPartition, doubt: OffsetOutOfRange | LogTruncated) -> None:
        """Fetch and deliver no more until what is in doubt of the log is settled."""
        is_of_now = doubt.generation == owned.progress.buffer.generation
        if is_of_now and not owned.log_doubt.halted and owned.log_doubt.doubt is None:
            self._fetcher.unassign(owned)
            owned.log_doubt.begin(doubt)

    def settle(self, owned: OwnedPartition, doubt: OffsetOutOfRange | LogTruncated) -> None:
        """Ask what is left of the log, and continue from there; without an answer, retry later.

        It may grow past the position meanwhile, so that the client would find nothing amiss.
        """
        if not owned.log_doubt.is_ask_due(self._environment.clock.monotonic()):
            return
        owned.log_doubt.settle()
        try:
            if isinstance(doubt, LogTruncated):
                self._truncated(owned, doubt.end)
            else:
                self._reset(owned)
        except HeadraceError as silence:
            log.warning("watermarks_unknown", **owned.life.log_fields, error=str(silence))
            owned.retries.note_error(str(silence))
            asks_at = self._environment.clock.monotonic() + self._environment.backoff.seconds(1)
            owned.log_doubt.begin(doubt, asks_at)

    def _reset(self, owned: OwnedPartition) -> None:
        """Move the position into range, and say which offsets are passed over."""
        deadline = Deadline.after(WATERMARK_TIMEOUT, self._environment.clock)
        low, high = self._catalog.watermarks(owned.partition, deadline)
        is_same = self._is_same_log(owned, deadline) if owned.position > high else False
        asked, epoch = owned.progress.buffer.fetch_offset, owned.progress.buffer.leader_epoch
        if epoch is not None and asked > low and (owned.position <= high or is_same):
            # a client that has known the leader takes a position as it is
            is_truncated, end = self._catalog.truncated_at(owned.partition, asked, epoch, deadline)
            if is_truncated:
                self._truncated(owned, end)
                return
        if asked > high and low <= owned.position <= high:
            # the log was cut short below what was read ahead
            owned.progress.discard()
            asked = owned.position
        if low <= asked <= high:
            self._fetcher.assign(owned)
            return
        if is_same:
            self._halt(owned, LogTruncatedError(owned.partition, asked, low, high, None))
            return
        error = OffsetOutOfRangeError(owned.partition, asked, low, high)
        response = self._callbacks.exception(owned, error, None)
        target = self._target(response, low, high)
        if target is None:
            self._environment.fail(error)
            return
        self._move_position(owned, target, asked)
        if isinstance(response, BatchResponse):
            owned.progress.next_batch.wish(response.max_records, response.max_bytes)
            owned.retries.hold_until(self._environment.clock.monotonic() + response.wait)

    def _truncated(self, owned: OwnedPartition, end: int | None) -> None:
        """Drop what was read ahead; where that is not enough, have the partition rest.

        ``end`` is where the log ends that was read. From there to the position may be nothing but
        markers of transactions, of a later leader than the records: then nothing is missed. And
        where the log begins only after what was read, the log lacks those leaders.
        """
        fetcher, asked = self._fetcher, owned.position
        if end is not None and asked <= end:
            owned.progress.discard()
            fetcher.assign(owned)
            return
        deadline = Deadline.after(WATERMARK_TIMEOUT, self._environment.clock)
        catalog = self._catalog
        low, high = catalog.watermarks(owned.partition, deadline)
        if asked <= low:
            # records that wait for a retry are nowhere else any more
            owned.progress.discard_read_ahead()
            fetcher.assign(owned)
            return
        is_whole = (
            end is not None
            and asked <= high
            and not catalog.has_records(owned.partition, max(low, end), asked, deadline)
        )
        if is_whole or not self._is_same_log(owned, deadline):
            # of another topic of the same name nothing is known: its range says what follows
            owned.progress.discard(leader_is_known=False)
            fetcher.assign(owned)
        else:
            self._halt(owned, LogTruncatedError(owned.partition, asked, low, high, end))

    def _is_same_log(self, owned: OwnedPartition, deadline: Deadline) -> bool:
        """Return whether the topic is still the one that was read; if not, it is checked soon."""
        topic = owned.partition.topic
        found = self._catalog.describe([topic], deadline).get(topic)
        if found is not None and found.topic_id == owned.life.topic_id:
            return True
        self._topics.request_check()
        return False

    def _halt(self, owned: OwnedPartition, error: LogTruncatedError) -> None:
        """Halt the partition, unless the processor answers with an offset to continue at."""
        topic = owned.partition.topic
        self._environment.metrics.truncations.labels(self._environment.name, topic).inc()
        log.error(
            "log_truncated",
            **owned.life.log_fields,
            position=error.position,
            first_offset=error.low,
            end=error.high,
            former_end=error.end,
        )
        response = self._callbacks.exception(owned, error, None)
        chosen = _chosen_offset(response, error.low, error.high)
        if chosen is not None:
            self._go_back(owned, chosen)
            self._fetcher.assign(owned)
            return
        is_bounded = owned.progress.buffer.bound < inf
        if is_bounded or self._environment.config.offset_out_of_range == "stop":
            # a bounded run would wait for the partition without end
            self._environment.fail(error)
            return
        owned.retries.note_error(str(error))
        owned.log_doubt.halt()

    def _target(self, response: object | None, low: int, high: int) -> int | None:
        """Return where to go on: the processor's offset if the broker has it, else the policy's."""
        chosen = _chosen_offset(response, low, high)
        if chosen is not None:
            return chosen
        policy = self._environment.config.offset_out_of_range
        if policy == "stop":
            return None
        return low if policy == "earliest" else high

    def _move_position(self, owned: OwnedPartition, target: int, asked: int) -> None:
        lost = max(0, target - asked)
        topic = owned.partition.topic
        self._environment.metrics.skipped.labels(self._environment.name, topic, "out_of_range").inc(
            lost
        )
        log.error(
            "offset_out_of_range",
            **owned.life.log_fields,
            position=asked,
            target=target,
            lost_records=lost,
        )
        if target > asked:
            # what was fetched before the gap is delivered first
            gap = owned.progress.buffer.pass_gap(owned.progress.buffer.generation, target)
            if gap is not None:
                owned.progress.note_gap(gap, owned.progress.buffer.generation)
        else:
            self._go_back(owned, target)
        self._fetcher.assign(owned)

    def _go_back(self, owned: OwnedPartition, target: int) -> None:
        owned.restart_at(target)
        self._committer.enqueue(owned, target)


def _chosen_offset(response: object | None, low: int, high: int) -> int | None:
    """Return the offset that a processor's answer names, None if the log has none such."""
    offset = response.offset if isinstance(response, BatchResponse) else None
    return offset if offset is not None and low <= offset <= high else None

"""The positions at which claimed partitions begin, read for all that are starting at once."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

import structlog

from headrace.channel.events import LogChecked, LogReplaced, LogTruncated
from headrace.channel.offset_stores import Fencing
from headrace.channel.states import PartitionState
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.user_text import describe_error
from headrace.kafka.errors import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.lasting_failures import LastingFailures
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.partition_manager import PartitionManager
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.topics import KnownTopics
    from headrace.coordinators.coordinator import Coordinator
    from headrace.kafka.ports import LogLook, OffsetStore, StoredOffset, TopicCatalog


class StartOffsets:
    """Reads the group's offsets, after former owners are shut out. Any worker thread.

    A partition's offset is read after its claim, because before that another owner may move it.
    So what is read for one partition is read for all others that were claimed meanwhile: a
    request for each would cost more than all else in a large rebalance. It is kept for the very
    claim it was read for: after ZooKeeper lost its data, a later one may have the same epochs.

    A partition that failed is read by itself from then on, and delays no other: one that cannot be
    read, because a transaction has its offset in doubt, fails all that are asked for with it.
    """

    def __init__(
        self, store: OffsetStore, fencing: Fencing, held: Callable[[], Iterable[OwnedPartition]]
    ) -> None:
        self._store = store
        self._fencing = fencing
        self._held = held
        self._lock = Lock()
        self._found: dict[OwnedPartition, StoredOffset | None] = {}
        self._answered: WeakSet[OwnedPartition] = WeakSet()

    def read(self, owned: OwnedPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset, None if there is none; each call looks again. Blocks.

        Raises:
            OffsetStoreError: no answer, or a former owner may still commit.
        """
        owned.life.renew_claim(self._fencing.fence(owned.life.claim, deadline))
        if owned.retries.attempts > 1:
            return self._store.find([owned.partition], deadline).get(owned.partition)
        with self._lock:
            if owned not in self._found:
                starting = {other for other in self._held() if self._awaits(other)} | {owned}
                found = self._store.find([other.partition for other in starting], deadline)
                self._found = {other: found.get(other.partition) for other in starting}
            self._answered.add(owned)
            return self._found.pop(owned)

    def _awaits(self, owned: OwnedPartition) -> bool:
        """Return whether its offset will be asked for, and no former owner can move it any more."""
        return (
            owned not in self._answered
            and owned.retries.attempts <= 1
            and owned.life.state is PartitionState.STARTING
            and owned.pending_commits.staged == 0
            and not owned.life.awaits_predecessor
            and self._fencing.are_fenced(owned.life.claim)
        )


log = structlog.get_logger(__name__)

#: Seconds to wait for the group's offset or the watermarks of one partition.
READ_TIMEOUT = 5.0

#: Attempts after which a time-out may be due to a transaction that none ends: with their waits
#: they take longer than a transaction that goes on (``TRANSACTION_TIMEOUT_MS``).
DOUBT_EVERY = 4

#: Seconds after which a start is looked for again that waits for a look at its log: longer than the
#: look itself may take.
LOOK_TIMEOUT = 60.0

#: Seconds in which brokers that answer say so.
_ANSWER_TIMEOUT = 2.0


class PartitionStart:
    """A worker's steps with a partition in STARTING. Called by the thread that holds it."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        callbacks: Callbacks,
        catalog: TopicCatalog,
        committer: Committer,
        coordinator: Coordinator,
        fetcher: Fetcher,
        manager: PartitionManager,
        lasting: LastingFailures,
        scheduler: Scheduler,
        store: OffsetStore,
        topics: KnownTopics,
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._catalog = catalog
        self._committer = committer
        self._coordinator = coordinator
        self._fetcher = fetcher
        self._lasting = lasting
        self._scheduler = scheduler
        self._store = store
        self._topics = topics
        self._fencing = Fencing(store)
        self._offsets = StartOffsets(store, self._fencing, manager.all)

    def run_once(self, owned: OwnedPartition) -> None:
        """Run the next step towards the first delivery; retry after errors with back-off."""
        owned.retries.begin_attempt()
        self._attempt(owned, lambda: self._resolve(owned))

    def _attempt(self, owned: OwnedPartition, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - sinks raise what they like; nothing is lost by waiting
            wait = self._environment.backoff.seconds(owned.retries.attempts)
            owned.retries.hold_until(self._environment.clock.monotonic() + wait)
            owned.retries.note_error(str(error))
            log.warning(
                "start_position_unknown",
                **owned.life.log_fields,
                error=describe_error(error),
                retry_in=round(wait, 1),
            )
            self._lasting.note_retry(owned, error)
            timed_out = isinstance(error, OffsetStoreError) and error.timed_out
            if timed_out and owned.retries.attempts % DOUBT_EVERY == 0:
                self._refence(owned)

    def _refence(self, owned: OwnedPartition) -> None:
        """Fence former producers once more, if only an open transaction blocks the start."""
        if not self._store.answers(
            owned.partition, Deadline.after(_ANSWER_TIMEOUT, self._environment.clock)
        ):
            return
        owned.life.renew_claim(self._fencing.refence(owned.life.claim))
        log.warning(
            "start_offset_in_doubt",
            **owned.life.log_fields,
            transactional_ids=list(owned.life.claim.unfenced),
        )

    def _resolve(self, owned: OwnedPartition) -> None:
        deadline = Deadline.after(READ_TIMEOUT, self._environment.clock)
        self._take_note_of_topic(owned)
        group = self._offsets.read(owned, deadline)
        if group is not None and group.epoch >= owned.epoch:
            # The epoch node was wiped or is behind: without this our commits would look stale.
            owned.retries.await_event()
            self._coordinator.raise_epoch(owned.life.claim, group.epoch + 1)
            return
        usable = self._usable_offset(owned, group, deadline)
        processor = self._callbacks.processor
        stored = self._callbacks.require(owned, lambda: processor.stored_offset(owned))
        start = stored if stored is not None else usable
        if start is None:
            start = self._initial(owned, deadline, former=group is not None)
        self._report(owned, start, stored, usable)
        epoch = self._leader_epoch(owned, stored, group if usable is not None else None)
        if epoch is None:
            self._stage(owned, start, None)
        else:
            self._check_log(owned, start, epoch)

    def _check_log(self, owned: OwnedPartition, start: int, epoch: int) -> None:
        """Ask whether the log leads to ``start`` as under ``epoch``: no worker waits for it."""

        def post(look: Future[LogLook]) -> None:
            owned.post(LogChecked(start, epoch, look))
            self._scheduler.touch(owned)

        until = self._environment.clock.monotonic() + LOOK_TIMEOUT
        look = self._catalog.look_at_log(owned.partition, start, epoch)
        owned.log_doubt.await_look(look)
        owned.retries.hold_until(until)
        look.add_done_callback(post)

    def checked(self, owned: OwnedPartition, looked: LogChecked) -> None:
        """Continue the start with the answer of the log check that it waits for."""
        if owned.life.is_to_start and owned.log_doubt.take_look(looked.look):
            self._attempt(owned, partial(self._start_checked, owned, looked))

    def _start_checked(self, owned: OwnedPartition, looked: LogChecked) -> None:
        """Start at the position that was checked, once it is known whether the log leads there.

        Where it does not any more the epoch stays that of before, which the next owner has to know
        as well; what follows is for when the processor knows the partition.
        """
        look = looked.look.result()
        keeps = look.is_truncated or look.leader_epoch is None
        self._stage(owned, looked.start, looked.epoch if keeps else look.leader_epoch)
        if look.is_truncated:
            owned.log_doubt.begin(LogTruncated(owned.progress.buffer.generation, look.end))

    def _stage(self, owned: OwnedPartition, start: int, epoch: int | None) -> None:
        """Set the position to ``start``, and stage it for commit."""
        owned.restart_at(start, leader_epoch=epoch)
        owned.retries.await_event()
        self._committer.enqueue(owned, start)
        self._committer.flush()

    def _take_note_of_topic(self, owned: OwnedPartition) -> None:
        """Bind the partition to the topic as it is known now: no callback has it yet."""
        topics = self._topics
        # in this order: where the topic changes in between, the event finds the older id
        topic_id = topics.topic_id(owned.partition)
        owned.life.bind_topic(
            topic_id, topics.identity(owned.partition, self._environment.config.group)
        )

    def _usable_offset(
        self, owned: OwnedPartition, group: StoredOffset | None, deadline: Deadline
    ) -> int | None:
        """Return the group's offset unless it is of a former topic; None if there is none.

        Raises:
            HeadraceError: the topic is not the one we know any more, so that nothing is certain.
        """
        if group is None:
            return None
        if not group.is_of_another(owned.life.topic_id):
            return group.offset
        topic = owned.partition.topic
        found = self._catalog.describe([topic], deadline).get(topic)
        if found is None or found.topic_id != owned.life.topic_id:
            self._topics.request_check()
            raise HeadraceError(
                f"topic {topic} was deleted or created again since it was last looked at; it is "
                "looked at now"
            )
        log.warning(
            "offset_of_deleted_topic",
            **owned.life.log_fields,
            offset=group.offset,
            before=group.topic_id,
            topic_id=owned.life.topic_id,
        )
        return None

    def _leader_epoch(
        self, owned: OwnedPartition, stored: int | None, group: StoredOffset | None
    ) -> int | None:
        """Return a leader epoch under which the log led to the start position, if one is known.

        The sink's does not count beside an offset of the group without one: each owner stores its
        start there, and one of an earlier version no epoch, while it moves the sink's offset alone.
        Where the group has no offset that counts, the sink's is all that is known of the log.
        """
        if group is not None and (group.leader_epoch is None or stored in {None, group.offset}):
            return group.leader_epoch
        if stored is None:
            return None
        processor = self._callbacks.processor
        return self._callbacks.require(owned, lambda: processor.stored_leader_epoch(owned))

    def _initial(self, owned: OwnedPartition, deadline: Deadline, *, former: bool) -> int:
        """Return where a partition without a usable offset begins, after a ``former`` topic's."""
        low, high = self._catalog.watermarks(owned.partition, deadline)
        if former or self._topics.appeared_later(owned.partition):
            return low
        return high if self._environment.config.initial_offset == "latest" else low

    def _report(
        self, owned: OwnedPartition, start: int, stored: int | None, group: int | None
    ) -> None:
        source = (
            "sink" if stored is not None else "group" if group is not None else "initial_offset"
        )
        log.info(
            "start_position_found",
            **owned.life.log_fields,
            position=start,
            source=source,
            sink_offset=stored,
            group_offset=group,
        )

    def begin(self, owned: OwnedPartition) -> None:
        """Notify the processor and start fetching, after the start position is stored."""
        processor = self._callbacks.processor
        self._callbacks.ask(owned, lambda: processor.on_assigned(owned))
        owned.begin(self._environment.clock.monotonic())
        if owned.log_doubt.doubt is None:
            self._fetcher.assign(owned)
        if owned.life.topic_id != self._topics.topic_id(owned.partition):
            owned.post(LogReplaced())

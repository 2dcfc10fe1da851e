"""The topics of a state: nothing is delivered while they are not what they were."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, RetryableError, StartError
from headrace.core.records import TopicPartition, identity_of
from headrace.extensions.keyed.topics import (
    check_changelog,
    gone_changelog,
    open_changelog,
    require_state,
    split_keys,
)
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from headrace.core.records import Assignment
    from headrace.extensions.keyed.runtime.current import CurrentChannel
    from headrace.extensions.keyed.sink import KeyedSink
    from headrace.extensions.keyed.topics import Changelog
    from headrace.kafka import KafkaTopicCatalog
    from headrace.kafka.ports import ChangelogMark, TopicInfo
    from headrace.processors.contract import ChannelContext

log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to say what the changelog is, at the start.
START_TIMEOUT = 30.0

#: Seconds in which the brokers have to say which topics there are, before a commit.
LOOK_TIMEOUT = 5.0

#: Looks in a row in which a topic has to be missing, as of a channel's topics.
LOOKS = 2


class StateTopics:
    """Input and changelog of a channel, and which partitions rest because rows are missing there.

    Any thread; what asks the brokers blocks.
    """

    def __init__(
        self,
        current: CurrentChannel,
        catalog: KafkaTopicCatalog,
        changelog: Changelog,
        context: ChannelContext,
    ) -> None:
        self.changelog = changelog
        self._current = current
        self._catalog = catalog
        self._context = context
        self._guard = threading.Lock()
        self._blocked: str | None = None
        self._stranded: dict[int, str] = {}
        self._misses = 0

    @classmethod
    def open(
        cls,
        current: CurrentChannel,
        catalog: KafkaTopicCatalog,
        sink: KeyedSink,
        context: ChannelContext,
    ) -> StateTopics:
        """Return the topics of a channel that starts; the changelog is created where it may be.

        Raises:
            StartError: they are not those of the state that was committed, or no broker answered.
        """
        internal = current.settings.internal
        changelog = open_changelog(
            catalog,
            current.group,
            current.topic,
            Deadline.after(START_TIMEOUT, context.clock),
            create=internal.create,
            replication_factor=internal.replication_factor,
            max_row=current.settings.state.max_row,
            grows=current.settings.has_fixed_keys,
            step=current.settings.split_step(current.channel),
        )
        topics = cls(current, catalog, changelog, context)
        topics._require_same(sink, Deadline.after(START_TIMEOUT, context.clock))
        return topics

    def _require_same(self, sink: KeyedSink, deadline: Deadline) -> None:
        """Return if key and number of partitions are those of when state was first committed.

        Raises:
            StartError: they are not, or no broker answered.
        """
        found = self._catalog.describe(self._current.topics, deadline)
        cluster = self._catalog.cluster_id(deadline)
        group, channel = self._current.group, self._current.channel
        chosen = self._current.settings
        for topic, info in found.items():
            numbers = range(info.partitions)
            names = [identity_of(cluster, group, info.topic_id, n) for n in numbers]
            stored = sink.last_stored(names, deadline)
            marks = [each.changelog for each in stored.values() if each.changelog is not None]
            require_state(marks, lambda former: chosen.refuse_state(former, channel))
            others = {each.partitions for each in marks} - {info.partitions}
            if others and not chosen.has_fixed_keys:
                raise StartError(
                    split_keys(
                        topic,
                        info.partitions,
                        min(others),
                        self.changelog.topic,
                        chosen.split_step(self._current.channel),
                    )
                )

    # --- while it runs ----------------------------------------------------------------------

    @property
    def blocked(self) -> str | None:
        """Return why nothing may be delivered, None where it may."""
        return self._blocked

    def require(self) -> None:
        """Return if the state's topics are what they were when it was last committed.

        Asked before each commit, after its records were read: so none is committed that a producer
        put where its key belongs by another number of partitions.

        Raises:
            RetryableError: they are not; nothing more is delivered.
            KafkaUnavailableError: the brokers did not answer.
        """
        self.check_topics(Deadline.after(LOOK_TIMEOUT, self._context.clock))
        if self._blocked is not None:
            raise RetryableError(self._blocked)

    def check_topics(self, deadline: Deadline, *, closely: bool = False) -> None:
        """Pause all while the state's topics are not what they were; ``closely``: settings too.

        What a setting would have deleted is there again once it is as it was.

        Raises:
            KafkaUnavailableError: the brokers did not answer, or one of them knows less.
        """
        changelog, group, topics = self.changelog, self._current.group, self._current.topics
        found = self._catalog.describe([*topics, changelog.topic], deadline)
        there = found.get(changelog.topic)
        inputs = [found[topic] for topic in topics if topic in found]
        other = next((each for each in inputs if each.partitions != changelog.partitions), None)
        reason = None
        if there is None:
            # one broker may know less than the others
            self._misses += 1
            if self._misses < LOOKS:
                raise KafkaUnavailableError(f"topic {changelog.topic} was not found; looking again")
            reason = gone_changelog(changelog)
        else:
            self._misses = 0
            if there.topic_id != changelog.topic_id:
                reason = gone_changelog(changelog, there.topic_id)
            elif self._current.settings.has_fixed_keys:
                if closely and other is not None:
                    self._grow(there, other, deadline)
            elif other is not None:
                reason = split_keys(
                    other.name,
                    other.partitions,
                    changelog.partitions,
                    changelog.topic,
                    self._current.settings.split_step(self._current.channel),
                )
            elif closely or self._blocked is not None:
                try:
                    settings = self._catalog.settings(changelog.topic, deadline)
                    check_changelog(changelog.topic, group, settings)
                except KafkaUnavailableError:
                    raise
                except StartError as error:
                    reason = str(error)
        self._block(reason)

    def _grow(self, there: TopicInfo, read: TopicInfo, deadline: Deadline) -> None:
        """Add partitions to a changelog whose keys follow the input's, as many as that has."""
        create = self._current.settings.internal.create
        if there.partitions >= read.partitions or not create:
            return
        try:
            self._catalog.grow(there.name, read.partitions, deadline)
        except HeadraceError as error:
            log.warning("topic_not_grown", topic=there.name, error=str(error))
        else:
            log.info("topic_grown", topic=there.name, partitions=read.partitions)

    def truncated_at(self, number: int, mark: ChangelogMark | None) -> int | None:
        """Return where rows ended that a changelog does not lead to any more, None where it does.

        By the offset alone, without a store.

        Raises:
            KafkaUnavailableError: the brokers did not answer.
        """
        if mark is None or mark.end is None or mark.leader_epoch is None:
            return None
        deadline = Deadline.after(LOOK_TIMEOUT, self._context.clock)
        at = TopicPartition(self.changelog.topic, number), mark.end, mark.leader_epoch
        return mark.end if self._catalog.truncated_at(*at, deadline)[0] else None

    # --- what rests -------------------------------------------------------------------------

    def _block(self, reason: str | None) -> None:
        """Pause all partitions for a reason; None resumes them."""
        with self._guard:
            if self._blocked == reason:
                return
            self._blocked = reason
        if reason is None:
            self._context.stranded.resume()
            return
        self._report(None, reason)
        self._context.stranded.pause(reason)

    def strand(self, assignment: Assignment, reason: str | None) -> None:
        """Pause one partition until an operator acts; None resumes it."""
        number = assignment.partition.partition
        with self._guard:
            if self._stranded.get(number) == reason:
                return
            if reason is None:
                del self._stranded[number]
            else:
                self._stranded[number] = reason
        if reason is None:
            self._context.stranded.resume(partition=assignment.partition)
            return
        self._report(number, reason)
        self._context.stranded.pause(reason, partition=assignment.partition)

    def _report(self, number: int | None, reason: str) -> None:
        log.error(
            "state_at_risk",
            channel=self._context.channel,
            topic=self._current.topic,
            partition=number,
            reason=reason,
        )

    def forget(self, number: int) -> None:
        """Clear the reason why a partition is halted: it is no longer ours."""
        with self._guard:
            self._stranded.pop(number, None)

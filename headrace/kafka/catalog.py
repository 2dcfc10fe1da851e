"""The catalog of the brokers: topics with their ids, partitions, watermarks, and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, and not said to be
    AdminClient,
    ConfigResource,
    NewPartitions,
)
from confluent_kafka.admin import NewTopic as ClientTopic  # type: ignore[attr-defined]  # public, and not said to be

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, StartError
from headrace.core.hints import did_you_mean
from headrace.core.records import kafkas_topic_id, offset_of
from headrace.kafka import clients
from headrace.kafka.clients import is_denied
from headrace.kafka.errors import KafkaAccessError, KafkaUnavailableError
from headrace.kafka.ports import LogLook, TopicInfo
from headrace.kafka.source import KafkaRecordReader
from headrace.kafka.truncation import LATEST, LogLooks, truncated_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Future

    from headrace.config.subscription import Subscription
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import TopicCatalog


def matching(
    catalog: TopicCatalog, subscription: Subscription, deadline: Deadline
) -> Mapping[str, TopicInfo]:
    """Return the topics that a pattern matches, those for internal use left out. Blocks.

    The brokers are asked only where there are patterns. They name those topics that this user may
    describe.

    Raises:
        KafkaUnavailableError: no broker answered by the deadline.
    """
    if not subscription.patterns:
        return {}
    found = sorted(name for name in catalog.names(deadline) if subscription.matches(name))
    described = catalog.describe(found, deadline)
    return {name: info for name, info in described.items() if not info.internal}


def meant(catalog: TopicCatalog, missing: Collection[str], deadline: Deadline) -> str:
    """Return which topics may have been meant by names of none, to follow a sentence. Blocks.

    That is "" where nothing is near, or the brokers do not answer: it is a hint only.
    """
    try:
        return did_you_mean(missing, sorted(catalog.names(deadline)))
    except HeadraceError:
        return ""


def subscribers(
    client_properties: Mapping[str, Any], group: str, deadline: Deadline
) -> tuple[str, ...]:
    """Return the subscribed consumers of a group as ``client id at host``. Blocks.

    They commit offsets of their own; while there are any, the coordinator takes no others.

    Raises:
        KafkaUnavailableError: the group's coordinator did not answer.
    """
    admin = AdminClient(clients.silent(client_properties))
    asked = admin.describe_consumer_groups([group], request_timeout=deadline.left)
    try:
        found = clients.answer(asked[group], deadline)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return ()
        raise KafkaUnavailableError(
            f"group {group} cannot be described: {error.args[0].str()}; are the brokers running, "
            "and may this user describe the group?"
        ) from error
    return tuple(f"{member.client_id} at {member.host.lstrip('/')}" for member in found.members)


T = TypeVar("T")

_MISSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's public name for it
)
_MISSING_PARTITION = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client's public name for it
)


#: What a broker says that no longer leads a partition, or does so since a moment ago: a new leader
#: knows no end until its followers have caught up (KIP-207).
_MOVING_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
)

#: Seconds in which a partition has to have its next leader, and between two looks.
_LEADER_PATIENCE, _LEADER_RETRY = 3.0, 0.1

#: Seconds in which one broker has to answer before others are looked for.
_BROKER_PATIENCE = 2.0

#: What the client says where no broker answers.
_SILENT = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)  # noqa: SLF001 - the client's public name for it


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created. ``replication_factor`` None: the brokers' default."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int | None = None


class _RefusedLogins:
    """Notes why brokers, or those that issue tokens, did not let a client in. Any thread.

    The client says it when it is polled, and to who asks the brokers that there was no answer.
    """

    #: Of a password or a token that is not taken, and of certificates.
    _CODES = (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001 - public names of the client's

    def __init__(self) -> None:
        self._last: str | None = None

    def note(self, error: KafkaError) -> None:
        """Keep an error that says that the client was not let in."""
        if error.code() in self._CODES:
            self._last = error.str()

    def forget(self, client: AdminClient) -> None:
        """Drop what was said: the brokers answered. It is said once, and not at each question."""
        client.poll(0)
        self._last = None

    def last(self, client: AdminClient) -> str | None:
        """Return the last reason since brokers answered, None where there is none."""
        client.poll(0)
        return self._last


class KafkaTopicCatalog:
    """A ``TopicCatalog`` on librdkafka clients."""

    def __init__(self, client_properties: Mapping[str, Any], group: str) -> None:
        self._servers = str(client_properties.get("bootstrap.servers", ""))
        self._logins = _RefusedLogins()
        properties = {**clients.silent(client_properties), "error_cb": self._logins.note}
        self._admin = AdminClient(properties)
        self._properties, self._group = dict(client_properties), group
        self._looks = LogLooks(client_properties, group, self._admin)
        self._reader = KafkaRecordReader(client_properties, group)
        self._consumer = Consumer(clients.consumer(clients.silent(client_properties), group))

    def cluster_id(self, deadline: Deadline) -> str:
        asked = self._admin.describe_cluster(request_timeout=deadline.left)
        try:
            found = str(clients.answer(asked, deadline).cluster_id)
        except KafkaException as error:
            raise self._unavailable(error) from error
        self._logins.forget(self._admin)
        return found

    def names(self, deadline: Deadline) -> Collection[str]:
        try:
            found = set(self._admin.list_topics(timeout=deadline.left).topics)
        except KafkaException as error:
            raise self._unavailable(error) from error
        self._logins.forget(self._admin)
        return found

    def describe(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        if not topics:
            return {}
        until = Deadline.after(deadline.remaining)
        while True:
            try:
                found = self._described(topics, Deadline.after(until.at_most(_BROKER_PATIENCE)))
            except KafkaAccessError:
                raise
            except KafkaUnavailableError:
                if until.expired:
                    raise
            else:
                self._logins.forget(self._admin)
                return found
            self._look_for_brokers(Deadline.after(until.at_most(_BROKER_PATIENCE)))

    def _look_for_brokers(self, deadline: Deadline) -> None:
        """Ask which brokers there are, if one says it by the deadline.

        The client asks a broker that it was told to once, and waits for that one to come back: it
        looks for another by itself every five minutes.
        """
        try:
            self._admin.list_topics(timeout=deadline.left)
        except KafkaException:
            # what is asked after this says whether any broker answers
            Event().wait(deadline.at_most(_LEADER_RETRY))

    def _described(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=deadline.left
        )
        found = {}
        for name, future in asked.items():
            try:
                topic = clients.answer(future, deadline)
            except KafkaException as error:
                if error.args[0].code() in _MISSING:
                    continue
                if is_denied(error.args[0]):
                    raise KafkaAccessError(
                        f"topic {name}: the brokers do not let this user see it; give it the "
                        "operation Describe on the topic, or Read or Write, which bring that"
                    ) from error
                raise self._unavailable(error) from error
            found[name] = TopicInfo(
                name,
                kafkas_topic_id(str(topic.topic_id)),
                len(topic.partitions),
                internal=topic.is_internal,
                replicas=min((len(each.replicas) for each in topic.partitions), default=None),
            )
        return found

    def create(self, topic: NewTopic, deadline: Deadline) -> bool:
        """Create a topic; False where it exists already. Blocks.

        Raises:
            StartError: the brokers will not create it, now or later.
            KafkaUnavailableError: no broker answered by the deadline.
        """
        factor = topic.replication_factor or -1
        wanted = ClientTopic(topic.name, topic.partitions, factor, config=dict(topic.settings))
        (asked,) = self._admin.create_topics([wanted], request_timeout=deadline.left).values()
        try:
            clients.answer(asked, deadline)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            if error.args[0].retriable() or error.args[0].code() in _SILENT:
                raise self._unavailable(error) from error
            raise StartError(
                f"topic {topic.name} cannot be created: {error.args[0].str()}"
            ) from error
        return True

    def grow(self, topic: str, partitions: int, deadline: Deadline) -> None:
        """Raise a topic's number of partitions, if it has fewer. Blocks until they are known.

        Raises:
            StartError: the brokers will not, now or later.
            KafkaUnavailableError: no broker answered by the deadline.
        """
        wanted = NewPartitions(topic, partitions)
        (asked,) = self._admin.create_partitions([wanted], request_timeout=deadline.left).values()
        try:
            clients.answer(asked, deadline)
        except KafkaException as error:
            found = self.describe([topic], deadline).get(topic)
            if found is not None and found.partitions >= partitions:
                return
            if error.args[0].retriable() or error.args[0].code() in _SILENT:
                raise self._unavailable(error) from error
            raise StartError(
                f"topic {topic} cannot be given {partitions} partitions: {error.args[0].str()}"
            ) from error
        until = Deadline.after(deadline.remaining)
        while (found := self.describe([topic], until).get(topic)) is None or (
            found.partitions < partitions
        ):
            if until.expired:
                raise self._unavailable(
                    KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the client's public name for it
                )
            Event().wait(until.at_most(_LEADER_RETRY))

    def delete_before(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Delete the records of partitions before an offset of each. Blocks.

        Raises:
            KafkaUnavailableError: a leader did not answer by the deadline, or this user may not.
        """
        wanted = [ClientPartition(*partition, offset) for partition, offset in offsets.items()]
        asked = self._admin.delete_records(wanted, request_timeout=deadline.left)
        try:
            for each in asked.values():
                clients.answer(each, deadline)
        except KafkaException as error:
            raise self._unavailable(error) from error

    def settings(self, topic: str, deadline: Deadline) -> Mapping[str, str]:
        """Return a topic's settings by name, the brokers' defaults among them. Blocks.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline, or this user may not ask.
        """
        wanted = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (asked,) = self._admin.describe_configs([wanted], request_timeout=deadline.left).values()
        try:
            found = clients.answer(asked, deadline)
        except KafkaException as error:
            raise self._unavailable(error) from error
        return {name: entry.value for name, entry in found.items()}

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        wanted = ClientPartition(partition.topic, partition.partition)
        low, high = self._ask_leader(
            partition,
            deadline,
            lambda: self._consumer.get_watermark_offsets(wanted, timeout=deadline.left),
        )
        return low, high

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the leader epoch of a partition's end, None where it is not known. Blocks.

        Raises:
            KafkaUnavailableError: the leader did not answer by the deadline.
        """
        wanted = ClientPartition(*partition)
        (asked,) = self._admin.list_offsets(
            {wanted: LATEST}, request_timeout=deadline.left
        ).values()
        try:
            epoch = clients.answer(asked, deadline).leader_epoch
        except KafkaException as error:
            raise self._unavailable(error) from error
        return epoch if epoch is not None and epoch >= 0 else None

    def look_at_log(self, partition: TopicPartition, position: int, epoch: int) -> Future[LogLook]:
        return self._looks.ask(partition, position, epoch)

    def truncated_at(
        self, partition: TopicPartition, position: int, epoch: int, deadline: Deadline
    ) -> tuple[bool, int | None]:
        where = partition, position, epoch
        return truncated_at(self._properties, self._group, where, deadline)

    def has_records(
        self, partition: TopicPartition, start: int, end: int, deadline: Deadline
    ) -> bool:
        found = self._reader.first(partition, start, deadline)
        return found is not None and offset_of(found) < end

    def offset_at(
        self, partition: TopicPartition, timestamp: int, deadline: Deadline
    ) -> int | None:
        wanted = ClientPartition(partition.topic, partition.partition, timestamp)
        (found,) = self._ask_leader(
            partition,
            deadline,
            lambda: self._consumer.offsets_for_times([wanted], timeout=deadline.left),
        )
        if found.error is not None:
            raise self._unavailable(KafkaException(found.error))
        return found.offset if found.offset >= 0 else None

    def _ask_leader(
        self, partition: TopicPartition, deadline: Deadline, ask: Callable[[], T | None]
    ) -> T:
        until = Deadline.after(deadline.at_most(_LEADER_PATIENCE))
        while True:
            try:
                answer = ask()
                break
            except KafkaException as error:
                if not self._comes_soon(partition, error, deadline):
                    raise self._unavailable(error) from error
                Event().wait(until.at_most(_LEADER_RETRY))
                if until.expired:
                    raise self._unavailable(error) from error
        if answer is None:
            raise KafkaUnavailableError(
                f"the leader of {partition} did not answer; look at the broker's log"
            )
        return answer

    def _comes_soon(
        self, partition: TopicPartition, error: KafkaException, deadline: Deadline
    ) -> bool:
        """Return whether the partition is there, and only its leader does not know it yet.

        Has the client look who leads: it may know the topic from before the partition was added.
        """
        code = error.args[0].code()
        if code not in _MOVING_LEADER + _MISSING_PARTITION:
            return False
        try:
            found = self._consumer.list_topics(partition.topic, timeout=deadline.left)
        except KafkaException as silence:
            raise self._unavailable(silence) from silence
        topic = found.topics.get(partition.topic)
        is_there = topic is not None and partition.partition in topic.partitions
        return is_there or code in _MOVING_LEADER

    def close(self) -> None:
        """Release the clients. Nothing may be asked any more."""
        self._looks.close()
        self._consumer.close()
        # this one has no other end than its last reference's, which must not wait for a collection
        del self._admin

    def _unavailable(self, error: KafkaException) -> KafkaUnavailableError:
        if is_denied(error.args[0]):
            return KafkaAccessError(
                f"Kafka at {self._servers} does not let this user do that: {error.args[0].str()}; "
                "headrace doctor names the permissions that it needs"
            )
        # what was under way when the catalog was closed fails after that
        client = getattr(self, "_admin", None)
        refusal = None if client is None else self._logins.last(client)
        if refusal is not None:
            return KafkaUnavailableError(
                f"Kafka at {self._servers} does not answer: {error.args[0].str()}. A login was "
                f"refused before that: {refusal}; correct kafka.sasl, kafka.oauth or kafka.tls, or "
                "the user's secret on the server"
            )
        return KafkaUnavailableError(
            f"Kafka at {self._servers} does not answer: {error.args[0].str()}; is it running, and "
            "are kafka.bootstrap_servers and the security settings right?"
        )

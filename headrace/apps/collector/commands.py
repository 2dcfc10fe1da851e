"""The collector's commands: produce events to its topic, and read outcomes there."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError

from headrace.apps.collector.events import CREATE, DONE, FAILURE, SUCCESS
from headrace.config.models.kafka import KafkaConfig
from headrace.config.models.root import LoggingConfig
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.codecs import to_json
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog, clients
from headrace.kafka.errors import UnknownTopicError
from headrace.kafka.topic_producer import TopicProducer
from headrace.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Seconds in which the brokers have to take an event, or to answer.
_ANSWER_TIMEOUT = 30.0

#: Seconds of one wait for records, after which the end of the wait is looked at.
_FETCH_TIMEOUT = 0.2

#: Bytes that the client may prefetch.
_PREFETCH = 4 << 20

#: No offset is committed for it, and no membership kept.
_GROUP = "headrace-collector-watch"

#: Seconds between two lines that say how far a topic has been read.
_PROGRESS_INTERVAL = 5.0

_NO_OUTCOME = 4


def client(brokers: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of librdkafka for brokers, with those of the command line.

    From here on the clients' warnings go to standard error.

    Raises:
        ValueError: an address or a property cannot be used.
    """
    try:
        config = KafkaConfig.model_validate(
            {"bootstrap_servers": brokers, "properties": properties}
        )
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name, sentence in clients.refusals(config):
        raise ValueError(f"{name}: {sentence}")
    configure_logging(LoggingConfig(level="warning"))
    return clients.client_properties(config)


def create_event(group: str, expected: Sequence[str], **members: Any) -> dict[str, Any]:
    """Return the event that creates a group, without those of ``members`` that are None."""
    event = {"type": CREATE, "id": group, "expected": [*expected]}
    return event | {name: value for name, value in members.items() if value is not None}


def done_event(group: str, entity: str, *, result: Any, error: str | None) -> dict[str, Any]:
    """Return the event of an entity that is done, failed if it has an error."""
    event = {"type": DONE, "id": entity, "group": group, "result": result}
    return event if error is None else event | {"error": error}


def send(client: Mapping[str, Any], topic: str, group: str, event: Mapping[str, Any]) -> int:
    """Produce an event under its group's key, print it, and return the exit code. Blocks."""
    value = to_json(event)
    try:
        with _catalog(client) as catalog:
            _partitions(catalog, topic, "--event-topic")
        producer = TopicProducer(client, topic)
        producer.send([(group.encode(), value)], Deadline.after(_ANSWER_TIMEOUT))
        producer.flush(Deadline.after(_ANSWER_TIMEOUT))
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return 1
    typer.echo(value.decode())
    return 0


def watch(
    client: Mapping[str, Any],
    topic: str,
    group: str | None,
    *,
    wait: float | None,
    only_new: bool,
) -> int:
    """Print outcomes, all or until that of a group, and return the exit code. Blocks.

    How far it has read goes to standard error.
    """
    deadline = Deadline.after(float("inf") if wait is None else wait)
    progress = ReadProgress(topic, group)
    try:
        return follow(_values(client, topic, deadline, progress, only_new=only_new), group)
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        return 0 if group is None else _NO_OUTCOME


def follow(values: Iterable[bytes | None], group: str | None) -> int:
    """Print the outcomes among a topic's values; return the exit code, at that of ``group``."""
    for value in values:
        event = outcome_in(value)
        if event is None or group not in {None, event.get("id")}:
            continue
        typer.echo(value)
        if group is not None:
            return 0 if event["type"] == SUCCESS else 1
    return 0 if group is None else _NO_OUTCOME


def outcome_in(value: bytes | None) -> dict[str, Any] | None:
    """Return the outcome that a record's value is, None for all others."""
    try:
        event = json.loads(value or b"null")
    except ValueError:
        return None
    is_one = isinstance(event, dict) and event.get("type") in {SUCCESS, FAILURE}
    return event if is_one else None


class ReadProgress:
    """Says on standard error how far a topic has been read, until its end is reached once."""

    def __init__(self, topic: str, group: str | None) -> None:
        self._topic = topic
        self._awaited = "more" if group is None else f"that of group {group!r}"
        self._read = self._total = 0
        self._before_end: set[TopicPartition] = set()
        self._due = Deadline.after(_PROGRESS_INTERVAL)

    def begin(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Start the progress of partitions, with the offsets to read from and, at first, up to."""
        self._before_end = set(ranges)
        self._total = sum(end - start for start, end in ranges.values())

    def took(self, records: int, ends: Iterable[TopicPartition]) -> None:
        """Count records that were read, and partitions whose end was reached."""
        if not self._before_end:
            return
        self._read += records
        self._before_end.difference_update(ends)
        if not self._before_end:
            typer.echo(f"{self._topic} was read to its end; waiting for {self._awaited}", err=True)
        elif self._due.expired:
            self._due = Deadline.after(_PROGRESS_INTERVAL)
            typer.echo(f"{self._topic}: {self._read} of {self._total} records read", err=True)


@contextmanager
def _catalog(client: Mapping[str, Any]) -> Iterator[KafkaTopicCatalog]:
    catalog = KafkaTopicCatalog(client, _GROUP)
    try:
        yield catalog
    finally:
        catalog.close()


def _partitions(catalog: KafkaTopicCatalog, topic: str, option: str) -> list[TopicPartition]:
    """Return a topic's partitions. Blocks.

    Raises:
        UnknownTopicError: there is no such topic; the message names the option that says it.
    """
    info = catalog.describe([topic], Deadline.after(_ANSWER_TIMEOUT)).get(topic)
    if info is None:
        raise UnknownTopicError(
            f"there is no topic {topic!r}; name another with {option}, or have it created by "
            "headrace collector run --create"
        )
    return [TopicPartition(topic, number) for number in range(info.partitions)]


def _values(
    client: Mapping[str, Any],
    topic: str,
    deadline: Deadline,
    progress: ReadProgress,
    *,
    only_new: bool,
) -> Iterator[bytes | None]:
    """Yield the values of a topic's records until the deadline.

    Raises:
        UnknownTopicError, KafkaUnavailableError: it is not there, or the brokers do not answer.
        ConfigError: the client refuses a property.
    """
    with ExitStack() as stack:
        catalog = stack.enter_context(_catalog(client))
        answer = Deadline.after(_ANSWER_TIMEOUT)
        partitions = _partitions(catalog, topic, "--outcome-topic")
        source = KafkaRecordSource(client, _GROUP, _PREFETCH)
        stack.callback(source.close)
        marks = {each: catalog.watermarks(each, answer) for each in partitions}
        starts = {each: marks[each][only_new] for each in partitions}
        source.assign(starts)
        progress.begin({each: (start, marks[each][1]) for each, start in starts.items()})
        said: set[str] = set()
        while not deadline.expired:
            fetched = source.fetch(deadline.at_most(_FETCH_TIMEOUT))
            for error in set(fetched.errors) - said:
                typer.echo(error, err=True)
            said.update(fetched.errors)
            for _, records in fetched.chunks:
                yield from (record.value() for record in records)
            read = sum(len(records) for _, records in fetched.chunks)
            progress.took(read, (partition for partition, _ in fetched.ends))

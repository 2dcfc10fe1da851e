"""Starting instances, waiting for their outcomes, and listening to what becomes of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from headrace.apps.workflow.messages import EVENT_RESULT, start_message
from headrace.apps.workflow.topics import (
    ANSWER_TIMEOUT,
    FETCH_TIMEOUT,
    PARTITIONER,
    TopicReader,
    Topics,
    client_of,
    document_of,
)
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.kafka.topic_producer import TopicProducer
from headrace.keyed.codecs import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from headrace.apps.workflow.definitions import Workflows

log = structlog.get_logger(__name__)

#: Seconds that a thread has to end.
_CLOSE_TIMEOUT = 10.0


class WorkflowFailedError(HeadraceError):
    """An instance has failed. ``outcome`` is its record, with all errors of its calls."""

    def __init__(self, outcome: Mapping[str, Any]) -> None:
        super().__init__(
            f"instance {outcome.get('instance')} of {outcome.get('definition')} failed at "
            f"{outcome.get('ref')}: {outcome.get('msg')}"
        )
        self.outcome = outcome


class NoOutcomeError(HeadraceError, TimeoutError):
    """An instance had no outcome by the deadline; it may have one later."""


class ResultsListener:
    """Hands every event of every instance to ``handler``, on a thread of its own. Context manager.

    It has no group: each listener gets each event, from the beginning of the topic, or from its
    end as it is when this is made. An error of the handler ends it, and is raised by ``close``.

    Raises:
        UnknownTopicError, KafkaUnavailableError: the topic is not there, or no broker answers.
    """

    def __init__(
        self,
        handler: Callable[[dict[str, Any]], object],
        brokers: str | Sequence[str],
        *,
        topic: str = Topics().results,
        from_beginning: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._handler = handler
        self._reader = TopicReader(
            client_of(brokers, properties), topic, from_beginning=from_beginning
        )
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"listen-{topic}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._reader:
                while not self._stopping.is_set():
                    for record in self._reader.fetch(FETCH_TIMEOUT):
                        document = document_of(record)
                        if document is not None:
                            self._handler(document)
        except BaseException as error:  # noqa: BLE001 - raised by close
            self._error = error
            log.error("listener_failed", error=f"{type(error).__name__}: {error}")  # noqa: TRY400 - as above

    @property
    def error(self) -> BaseException | None:
        """What ended it, None while it goes on."""
        return self._error

    def close(self) -> None:
        """End it; raise what the handler raised. Blocks."""
        self._stopping.set()
        self._thread.join(_CLOSE_TIMEOUT)
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Executor:
    """Starts instances and waits for their outcomes. Any thread; a context manager.

    An outcome is found however late one asks: the topic keeps one record for each instance.

    Raises:
        DefinitionError: a workflow cannot be started.
        UnknownTopicError, KafkaUnavailableError: a topic is not there, or no broker answers.
    """

    def __init__(
        self,
        workflows: Workflows,
        brokers: str | Sequence[str],
        *,
        topics: Topics | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        workflows.check()
        self._workflows = workflows
        self._topics = topics or Topics()
        self._client = client_of(brokers, properties)
        self._changed = threading.Condition()
        self._outcomes: dict[str, dict[str, Any] | None] = {}
        self._named_here: set[str] = set()
        # what is named from here on ends after the end of the topic as it is now
        self._listener = ResultsListener(
            self._ended, brokers, topic=self._topics.outcomes, properties=properties
        )
        self._producing = threading.Lock()
        self._producer: TopicProducer | None = None

    def start(
        self, definition: str, args: Mapping[str, Any] | None = None, *, instance: str | None = None
    ) -> str:
        """Start an instance of ``name``, its latest version, or ``name@version``; return its id.

        With an ``instance`` of one's own, starting it twice starts it once. Blocks until the
        brokers have it.

        Raises:
            DefinitionError: there is no such workflow, or these are not its arguments.
            ProduceError: the brokers did not take it, or not for certain.
        """
        name = uuid4().hex if instance is None else instance
        if instance is None:
            self._named_here.add(name)
        self.start_all(definition, [(name, args or {})])
        return name

    def start_all(
        self, definition: str, instances: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> list[str]:
        """Start instances with their arguments together, which takes less time; as ``start``."""
        compiled = self._workflows.compiled(definition)
        records = []
        for instance, args in instances:
            compiled.require(args)
            message = start_message(instance, compiled.id, dict(args))
            records.append((instance, to_json(message)))
        with self._changed:
            for instance, _ in records:
                self._outcomes.setdefault(instance, None)
        deadline = Deadline.after(ANSWER_TIMEOUT)
        with self._producing:
            if self._producer is None:
                self._producer = TopicProducer(
                    {"linger.ms": 1, **self._client, **PARTITIONER}, self._topics.events
                )
            try:
                self._producer.send(((key.encode(), value) for key, value in records), deadline)
                self._producer.flush(deadline)
            except HeadraceError:
                self._producer = None
                raise
        return [instance for instance, _ in records]

    def result(self, instance: str, timeout: float) -> Any:
        """Return an instance's result. Blocks for ``timeout`` seconds.

        What is there already is read however short the time, which may take 30 s more.

        Raises:
            WorkflowFailedError: it has failed.
            NoOutcomeError: it had no outcome in time.
            ReadRefusedError: this user may not read the outcomes.
            KafkaUnavailableError: the outcomes could not be read to their end.
        """
        return result_of(self.outcome(instance, timeout))

    def outcome(self, instance: str, timeout: float) -> dict[str, Any]:
        """Return the record of an instance's outcome, of whoever started it; as ``result``."""
        deadline = Deadline.after(timeout)
        with self._changed:
            if instance in self._named_here:
                while self._outcomes[instance] is None and not deadline.expired:
                    if self._listener.error is not None:
                        raise self._listener.error
                    self._changed.wait(deadline.at_most(FETCH_TIMEOUT))
            found = self._outcomes.get(instance)
        if found is not None:
            return found
        if instance in self._named_here:
            raise _no_outcome(instance, timeout)
        return find_outcome(self._client, self._topics, instance, timeout)

    def _ended(self, outcome: dict[str, Any]) -> None:
        """Take an outcome; on the listener's thread."""
        with self._changed:
            if outcome.get("instance") in self._outcomes:
                self._outcomes[outcome["instance"]] = outcome
                self._changed.notify_all()

    def close(self) -> None:
        """Release the clients. Blocks."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def result_of(outcome: Mapping[str, Any]) -> Any:
    """Return the result that an outcome has.

    Raises:
        WorkflowFailedError: the instance has failed.
    """
    if outcome["type"] != EVENT_RESULT:
        raise WorkflowFailedError(outcome)
    return outcome["result"]


def find_outcome(
    client: Mapping[str, Any], topics: Topics, instance: str, timeout: float
) -> dict[str, Any]:
    """Return the record of an instance's outcome, from the topic's beginning on. Blocks.

    Raises:
        NoOutcomeError: there was none in time.
        UnknownTopicError, ReadRefusedError: the topic is not there, or this user may not read it.
        KafkaUnavailableError: it was not read to its end in ``timeout`` and 30 seconds.
    """
    deadline = Deadline.after(timeout)
    last = Deadline.after(timeout + ANSWER_TIMEOUT)
    key = instance.encode()
    with TopicReader(client, topics.outcomes, from_beginning=True, key=key) as reader:
        while True:
            for record in reader.fetch(deadline.at_most(FETCH_TIMEOUT)):
                if record.key() == key:
                    document = document_of(record)
                    if document is not None:
                        return document
            # what is there already is found however short the time
            if deadline.expired and reader.is_at_end:
                raise _no_outcome(instance, timeout)
            if last.expired:
                raise reader.unread(timeout + ANSWER_TIMEOUT)


def _no_outcome(instance: str, timeout: float) -> NoOutcomeError:
    return NoOutcomeError(
        f"instance {instance} has no outcome after {timeout:g} s; ask again, or look at it with "
        f"headrace workflow show {instance}"
    )

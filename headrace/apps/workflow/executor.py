"""Starting instances, waiting for their outcomes, and listening to what becomes of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from headrace.apps.workflow.definitions import require_id
from headrace.apps.workflow.errors import NoOutcomeError, WorkflowFailedError
from headrace.apps.workflow.event_producer import EventProducer
from headrace.apps.workflow.instances import Selection, select_instances, unfinished
from headrace.apps.workflow.messages import EVENT_RESULT, start_message
from headrace.apps.workflow.topics import (
    ANSWER_TIMEOUT,
    FETCH_TIMEOUT,
    TopicReader,
    Topics,
    client_of,
    document_of,
)
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.processes import who
from headrace.core.user_text import describe_error
from headrace.kafka.errors import ProduceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from headrace.apps.workflow.definitions import Workflows

log = structlog.get_logger(__name__)

#: Seconds that a thread has to end.
_CLOSE_TIMEOUT = 10.0

#: Instances whose outcomes an executor keeps for those who ask: one takes 1 to 2 KB.
_MOST_STARTED = 100_000

#: Seconds for which a reducer remembers an instance unless it is told otherwise.
_KEEP = 600.0


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
            log.error("listener_failed", error=describe_error(error))  # noqa: TRY400 - raised by close

    @property
    def error(self) -> BaseException | None:
        """Return what ended it, None while it goes on."""
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


@dataclass(slots=True, eq=False)
class _Started:
    """An instance that was started here, ``at`` in ms, and its outcome once there is one."""

    at: int
    is_named_here: bool
    outcome: dict[str, Any] | None = None


class Executor:
    """Starts instances and waits for their outcomes. Any thread; a context manager.

    An outcome is found however late one asks: the topic keeps one record for each instance.
    ``keep`` is the reducer's, in seconds: an id that is started again later than that after the
    instance's end is another instance, whose outcome the former one's is not.

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
        keep: float = _KEEP,
    ) -> None:
        workflows.check()
        self._keep = round(keep * 1000)
        self._workflows = workflows
        self._topics = topics or Topics()
        self._client = client_of(brokers, properties)
        self._changed = threading.Condition()
        # those that were started last and that were not asked for, the oldest first
        self._started: OrderedDict[str, _Started] = OrderedDict()
        # what is named from here on ends after the end of the topic as it is now
        self._listener = ResultsListener(
            self._handle_outcome, brokers, topic=self._topics.outcomes, properties=properties
        )
        self._events = EventProducer(self._client, self._topics)

    def start(
        self, definition: str, args: Mapping[str, Any] | None = None, *, instance: str | None = None
    ) -> str:
        """Start an instance of ``name``, its latest version, or ``name@version``; return its id.

        With a custom ``instance``, a text of 1 to 500 bytes, starting it twice starts it once.
        Blocks until the brokers have it.

        Raises:
            DefinitionError: there is no such workflow, these are not its arguments, or ``instance``
                cannot be an id. Nothing was sent.
            ProduceError: the brokers did not take it, or not for certain.
        """
        name = uuid4().hex if instance is None else instance
        try:
            self._start(definition, [(name, args or {})], is_named_here=instance is None)
        except ProduceError as error:
            raise ProduceError(
                f"instance {name} may not have started: {error}; starting it again with this id "
                "starts it once"
            ) from error
        return name

    def start_all(
        self, definition: str, instances: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> list[str]:
        """Start instances with their arguments together, which takes less time; as ``start``.

        All are checked before any is sent.
        """
        return self._start(definition, instances, is_named_here=False)

    def _start(
        self,
        definition: str,
        instances: Iterable[tuple[str, Mapping[str, Any]]],
        *,
        is_named_here: bool,
    ) -> list[str]:
        compiled = self._workflows.compiled(definition)
        events = []
        for instance, args in instances:
            compiled.require(args)
            events.append((instance, start_message(require_id(instance), compiled.id, dict(args))))
        now = int(SYSTEM_CLOCK.time() * 1000)
        with self._changed:
            for instance, _ in events:
                self._started[instance] = _Started(now, is_named_here)
                self._started.move_to_end(instance)
            while len(self._started) > _MOST_STARTED:
                self._started.popitem(last=False)
        self._events.send(events)
        return [instance for instance, _ in events]

    def cancel(self, instance: str, reason: str, *, by: str | None = None) -> None:
        """Cancel an instance: its open calls are cancelled, and no others are made.

        Its outcome then says by whom, ``user@host`` where nothing is said, and why; one that has
        an outcome keeps it. Blocks until the brokers have it.

        Raises:
            DefinitionError: this is no id of an instance.
            ProduceError: the brokers did not take it, or not for certain: cancel again.
        """
        self._events.cancel([instance], reason, by or who())

    def cancel_all(
        self, selection: Selection, reason: str, *, by: str | None = None, timeout: float = 60.0
    ) -> list[str]:
        """Cancel all instances of a selection that have no outcome yet; return their ids.

        They are those of the last committed states, which are read from the beginning. Blocks.

        Raises:
            NoOutcomeError: not all states were read in ``timeout`` seconds. Nothing was sent.
            UnknownTopicError, KafkaUnavailableError: no reducer has run, or no broker answers.
            ProduceError: the brokers did not take it, or not for certain: cancel again.
        """
        found = select_instances(
            self._client, self._topics, selection, SYSTEM_CLOCK.time(), timeout
        )
        return self._events.cancel(unfinished(found), reason, by or who())

    def result(self, instance: str, timeout: float) -> Any:
        """Return an instance's result. Blocks for ``timeout`` seconds.

        Existing records are read however short the time, which may take 30 s more.

        Raises:
            WorkflowFailedError: it has failed.
            NoOutcomeError: it had no outcome in time.
            KafkaAccessError: this user may not read the outcomes.
            KafkaUnavailableError: the outcomes could not be read to their end.
        """
        return result_of(self.outcome(instance, timeout))

    def outcome(self, instance: str, timeout: float) -> dict[str, Any]:
        """Return the record of an instance's outcome, from any start of it; as ``result``."""
        deadline = Deadline.after(timeout)
        with self._changed:
            started = self._started.get(instance)
            if started is not None and started.is_named_here:
                self._wait(instance, started, deadline)
                if started.outcome is None and self._started.get(instance) is started:
                    raise _no_outcome(instance, timeout)
            found = None if started is None else started.outcome
        if found is None:
            found = find_outcome(
                self._client,
                self._topics,
                instance,
                deadline.remaining,
                lambda outcome: started is None or self._is_of(outcome, started),
            )
        with self._changed:
            if self._started.get(instance) is started:
                self._started.pop(instance, None)
        return found

    def _wait(self, instance: str, started: _Started, deadline: Deadline) -> None:
        """Wait for an outcome that comes after this was made; under the lock."""
        while started.outcome is None and not deadline.expired:
            if self._listener.error is not None:
                raise self._listener.error
            if self._started.get(instance) is not started:  # so many were started since
                return
            self._changed.wait(deadline.at_most(FETCH_TIMEOUT))

    def _handle_outcome(self, outcome: dict[str, Any]) -> None:
        """Handle an outcome; on the listener's thread."""
        with self._changed:
            started = self._started.get(str(outcome.get("instance")))
            if started is not None and self._is_of(outcome, started):
                started.outcome = outcome
                self._changed.notify_all()

    def _is_of(self, outcome: Mapping[str, Any], started: _Started) -> bool:
        """Return whether an outcome is what a start has led to; it may have found the instance
        there.
        """
        if outcome.get("started", started.at) >= started.at:
            return True
        return bool(started.at < outcome.get("ended", started.at) + self._keep)

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
    client: Mapping[str, Any],
    topics: Topics,
    instance: str,
    timeout: float,
    accepts: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the record of an instance's outcome, from the topic's beginning on. Blocks.

    An id that was used again has several, of which it is the last one that is accepted.

    Raises:
        NoOutcomeError: there was none in time.
        UnknownTopicError, KafkaAccessError: the topic is not there, or this user may not read it.
        KafkaUnavailableError: it was not read to its end in ``timeout`` and 30 seconds.
    """
    deadline = Deadline.after(timeout)
    last = Deadline.after(timeout + ANSWER_TIMEOUT)
    key, found = instance.encode(), None
    with TopicReader(client, topics.outcomes, from_beginning=True, key=key) as reader:
        while True:
            for record in reader.fetch(deadline.at_most(FETCH_TIMEOUT)):
                if record.key() == key:
                    document = document_of(record)
                    if document is not None and accepts(document):
                        found = document
            if found is not None and reader.is_at_end:
                return found
            # existing records are found however short the time
            if deadline.expired and reader.is_at_end:
                raise _no_outcome(instance, timeout)
            if last.expired:
                raise reader.unread(timeout + ANSWER_TIMEOUT)


def _no_outcome(instance: str, timeout: float) -> NoOutcomeError:
    return NoOutcomeError(
        f"instance {instance} has no outcome after {timeout:.3g} s; ask again, or look at it with "
        f"headrace workflow show {instance}"
    )

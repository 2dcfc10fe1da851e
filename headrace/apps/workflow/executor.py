"""Starting instances, waiting for their outcomes, and listening to what becomes of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from typing_extensions import override

from headrace.apps.workflow.base_executor import BaseExecutor, result_of
from headrace.apps.workflow.errors import NoOutcomeError
from headrace.apps.workflow.event_producer import EventProducer
from headrace.apps.workflow.instances import select_unfinished
from headrace.apps.workflow.messages import NO_SUCH_INSTANCE, TERMINAL
from headrace.apps.workflow.topics import (
    ANSWER_TIMEOUT,
    FETCH_TIMEOUT,
    TopicReader,
    Topics,
    document_of,
)
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.user_text import describe_error
from headrace.kafka.clients import properties_of
from headrace.kafka.errors import ProduceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from headrace.apps.workflow.base_executor import EventOrEnd, Events, InstanceFuture
    from headrace.apps.workflow.definitions import Workflows
    from headrace.apps.workflow.selection import Selection

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
    ``ended`` is called as it ends, with the error, or None once it is closed.

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
        ended: Callable[[BaseException | None], object] | None = None,
    ) -> None:
        self._handler = handler
        self._ended = ended
        self._reader = TopicReader(
            properties_of(brokers, properties), topic, from_beginning=from_beginning
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
        finally:
            if self._ended is not None:
                self._ended(self._error)

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


class Executor(BaseExecutor):
    """Starts instances that reducers and workers run, and waits for their outcomes.

    An outcome is found however late one asks: the topic keeps one record for each instance.
    ``keep`` is the reducer's, in seconds: an id that is started again later than that after the
    instance's end is another instance, whose outcome the former one's is not. Any thread; a context
    manager.

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
        super().__init__(workflows)
        self._keep = round(keep * 1000)
        self._topics = topics or Topics()
        self._client = properties_of(brokers, properties)
        self._changed = threading.Condition()
        # those that were started last and that were not asked for, the oldest first
        self._started: OrderedDict[str, _Started] = OrderedDict()
        self._awaited: dict[str, list[tuple[_Started, InstanceFuture]]] = {}
        # what is named from here on ends after the end of the topic as it is now
        self._listener = ResultsListener(
            self._handle_outcome,
            brokers,
            topic=self._topics.outcomes,
            properties=properties,
            ended=self._end_awaited,
        )
        self._producer = EventProducer(self._client, self._topics)

    @override
    def _start(self, events: Events, *, is_named_here: bool) -> list[str]:
        now = int(SYSTEM_CLOCK.time() * 1000)
        with self._changed:
            for instance, _ in events:
                self._started[instance] = _Started(now, is_named_here)
                self._started.move_to_end(instance)
            while len(self._started) > _MOST_STARTED:
                self._started.popitem(last=False)
        try:
            self._send(events)
        except ProduceError as error:
            names = f"instance {events[0][0]}" if len(events) == 1 else f"{len(events)} instances"
            raise ProduceError(
                f"{names} may not have started: {error}; starting again with the same id starts "
                "each once"
            ) from error
        return [instance for instance, _ in events]

    @override
    def _send(self, events: Events) -> None:
        self._producer.send(events)

    @override
    def _select(self, selection: Selection, timeout: float) -> list[str]:
        now = SYSTEM_CLOCK.time()
        return select_unfinished(self._client, self._topics, selection, now, timeout)

    @override
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

    @override
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

    # --- outcomes that are awaited ----------------------------------------------------------

    @override
    def _await_outcome(self, future: InstanceFuture, *, is_named_here: bool) -> None:
        started = _Started(int(SYSTEM_CLOCK.time() * 1000), is_named_here)
        with self._changed:
            if self._listener.error is not None:
                raise self._listener.error
            self._awaited.setdefault(future.instance, []).append((started, future))
        future.add_done_callback(lambda _: self._forget(started, future))
        if not is_named_here:  # it may have been started, and have ended, before this was made
            name = f"outcome-of-{future.instance[:20]}"
            arguments = (started, future)
            threading.Thread(target=self._look_up, args=arguments, name=name, daemon=True).start()

    def _look_up(self, started: _Started, future: InstanceFuture) -> None:
        """End a future whose outcome was there before the listener. On a thread of its own."""
        try:
            future.end(
                find_outcome(
                    self._client,
                    self._topics,
                    future.instance,
                    0,
                    lambda outcome: self._is_of(outcome, started),
                )
            )
        except NoOutcomeError:
            return  # the listener has it once it is there
        except HeadraceError as error:
            future.end(error)

    def _forget(self, started: _Started, future: InstanceFuture) -> None:
        with self._changed:
            left = self._awaited.get(future.instance, [])
            if (started, future) in left:
                left.remove((started, future))
            if not left:
                self._awaited.pop(future.instance, None)

    def _handle_outcome(self, outcome: dict[str, Any]) -> None:
        """Handle an outcome; on the listener's thread."""
        instance = str(outcome.get("instance"))
        with self._changed:
            started = self._started.get(instance)
            if started is not None and self._is_of(outcome, started):
                started.outcome = outcome
                self._changed.notify_all()
            awaited = [
                future
                for start, future in self._awaited.get(instance, [])
                if self._is_of(outcome, start)
            ]
        for future in awaited:  # without the lock: its callbacks are users'
            future.end(outcome)

    def _end_awaited(self, error: BaseException | None) -> None:
        """End all futures, as no outcome comes any more; on the listener's thread."""
        with self._changed:
            awaited = [future for each in self._awaited.values() for _, future in each]
        closed = NoOutcomeError("the executor was closed before the instance had an outcome")
        for future in awaited:
            future.end(error or closed)

    def _is_of(self, outcome: Mapping[str, Any], started: _Started) -> bool:
        """Return whether an outcome is what a start has led to; it may have found the instance
        there.
        """
        if outcome.get("started", started.at) >= started.at:
            return True
        return bool(started.at < outcome.get("ended", started.at) + self._keep)

    # --- events -----------------------------------------------------------------------------

    @override
    def _listen(
        self, instance: str, listener: Callable[[EventOrEnd], object]
    ) -> Callable[[], object]:
        stopping = threading.Event()
        arguments = (instance, listener, stopping)
        name = f"events-of-{instance[:20]}"
        threading.Thread(target=self._read_events, args=arguments, name=name, daemon=True).start()
        return stopping.set

    def _read_events(
        self, instance: str, listener: Callable[[EventOrEnd], object], stopping: threading.Event
    ) -> None:
        """Read an instance's events, to the last end that there is. On a thread of its own."""
        key, is_over = instance.encode(), False
        try:
            with TopicReader(
                self._client, self._topics.results, from_beginning=True, key=key
            ) as reader:
                while not stopping.is_set() and not (is_over and reader.is_at_end):
                    for record in reader.fetch(FETCH_TIMEOUT):
                        document = document_of(record) if record.key() == key else None
                        if document is not None:
                            listener(document)
                            kind = document.get("type")
                            if kind != NO_SUCH_INSTANCE:  # what comes late may be of none any more
                                is_over = kind in TERMINAL
        except Exception as error:  # noqa: BLE001 - raised by who listens
            listener(error)
        else:
            listener(None)

    @override
    def close(self) -> None:
        """Release the clients; futures without an outcome end with NoOutcomeError. Blocks."""
        self._listener.close()


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

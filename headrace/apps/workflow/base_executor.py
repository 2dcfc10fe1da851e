"""Starting instances and waiting for their outcomes: what all executors have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.apps.workflow.definitions import require_id, require_signal, require_text
from headrace.apps.workflow.errors import NoOutcomeError, WorkflowFailedError
from headrace.apps.workflow.messages import (
    EVENT_RESULT,
    cancel_message,
    signal_message,
    start_message,
)
from headrace.core.processes import who

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self, TypeAlias

    from headrace.apps.workflow.definitions import Workflows
    from headrace.apps.workflow.selection import Selection

    #: An event of an instance, the error that ended listening, or None after the last event.
    EventOrEnd: TypeAlias = dict[str, Any] | BaseException | None

    #: What is sent to instances: each event with its instance.
    Events: TypeAlias = list[tuple[str, dict[str, Any]]]


class InstanceFuture(Future[Any]):
    """The result that an instance, whose id is ``instance``, is to have.

    It cannot be cancelled, as that would leave the instance as it is: an executor cancels that.
    """

    def __init__(self, instance: str) -> None:
        super().__init__()
        self.instance = instance
        self.set_running_or_notify_cancel()

    def end(self, outcome: Mapping[str, Any] | BaseException) -> None:
        """Set the result, or the error, unless one is set. Any thread."""
        with suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            elif outcome["type"] == EVENT_RESULT:
                self.set_result(outcome["result"])
            else:
                self.set_exception(WorkflowFailedError(outcome))


class BaseExecutor(ABC):
    """Starts instances and waits for their outcomes. Any thread; a context manager.

    Raises:
        DefinitionError: a workflow cannot be started.
    """

    def __init__(self, workflows: Workflows) -> None:
        workflows.check()
        self._workflows = workflows

    # --- starts -----------------------------------------------------------------------------

    def start(
        self, definition: str, args: Mapping[str, Any] | None = None, *, instance: str | None = None
    ) -> str:
        """Start an instance of ``name``, its latest version, or ``name@version``; return its id.

        With a custom ``instance``, a text of 1 to 500 bytes, starting it twice starts it once.
        Blocks until it is stored.

        Raises:
            DefinitionError: there is no such workflow, these are not its arguments, or ``instance``
                cannot be an id. Nothing was sent.
            ProduceError: the brokers did not take it, or not for certain. The text has the id, with
                which to start it again.
        """
        name = uuid4().hex if instance is None else instance
        self._start(self._starts(definition, [(name, args or {})]), is_named_here=instance is None)
        return name

    def start_many(self, definition: str, args: Iterable[Mapping[str, Any]]) -> list[str]:
        """Start an instance for each arguments together, which takes less time; return their ids.

        All are checked before any is sent. Blocks; raises as :meth:`start`.
        """
        instances = [(uuid4().hex, each) for each in args]
        return self._start(self._starts(definition, instances), is_named_here=True)

    def start_all(
        self, definition: str, instances: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> list[str]:
        """Start instances with ids of your own together; otherwise as :meth:`start_many`."""
        return self._start(self._starts(definition, instances), is_named_here=False)

    def _starts(
        self, definition: str, instances: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> Events:
        """Return what starts instances, once all is checked."""
        compiled = self._workflows.compiled(definition)
        events = []
        for instance, args in instances:
            compiled.require(args)
            events.append((instance, start_message(require_id(instance), compiled.id, dict(args))))
        return events

    def submit(
        self, definition: str, args: Mapping[str, Any] | None = None, *, instance: str | None = None
    ) -> InstanceFuture:
        """Start an instance, and return the future of its result. Blocks as :meth:`start`.

        The future raises WorkflowFailedError where the instance fails, and NoOutcomeError where
        this executor is closed before. Its callbacks hold up other outcomes: keep them short.
        """
        name = uuid4().hex if instance is None else instance
        events = self._starts(definition, [(name, args or {})])
        future = InstanceFuture(name)
        self._await_outcome(future, is_named_here=instance is None)
        try:
            self._start(events, is_named_here=instance is None)
        except BaseException as error:
            future.end(error)
            raise
        return future

    def execute(
        self,
        definition: str,
        args: Mapping[str, Any] | None = None,
        *,
        instance: str | None = None,
        timeout: float = 60.0,
    ) -> Any:
        """Start an instance, and return its result. Blocks for ``timeout`` seconds.

        Raises:
            WorkflowFailedError: it has failed.
            NoOutcomeError: it had no outcome in time.
            DefinitionError, ProduceError: as :meth:`start`.
        """
        future = self.submit(definition, args, instance=instance)
        try:
            return future.result(timeout)
        except NoOutcomeError:  # this executor was closed
            raise
        except TimeoutError:
            raise NoOutcomeError(
                f"instance {future.instance} has no outcome after {timeout:.3g} s; ask again"
            ) from None

    async def run(
        self, definition: str, args: Mapping[str, Any] | None = None, *, instance: str | None = None
    ) -> Any:
        """Start an instance, and return its result, as :meth:`submit`; for asyncio.

        A task that is cancelled stops waiting; its instance goes on.
        """
        future = await asyncio.to_thread(self.submit, definition, args, instance=instance)
        return await asyncio.wrap_future(future)

    # --- what becomes of them ---------------------------------------------------------------

    def result(self, instance: str, timeout: float) -> Any:
        """Return an instance's result. Blocks for ``timeout`` seconds.

        Raises:
            WorkflowFailedError: it has failed.
            NoOutcomeError: it had no outcome in time.
        """
        return result_of(self.outcome(instance, timeout))

    @abstractmethod
    def outcome(self, instance: str, timeout: float) -> dict[str, Any]:
        """Return the record of an instance's outcome, from any start of it; as ``result``."""

    async def events(self, instance: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield an instance's events, from its start to its end; for asyncio.

        Raises:
            DefinitionError: this is no id of an instance.
            NoOutcomeError: a LocalExecutor has no such instance, or not any more. With Kafka it may
                be about to be started elsewhere, and is waited for.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[EventOrEnd] = asyncio.Queue()

        def listener(event: EventOrEnd) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(queue.put_nowait, event)

        stop = self._listen(require_id(instance), listener)
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            stop()

    # --- signals ----------------------------------------------------------------------------

    def signal(
        self, instance: str, name: str, value: Any = None, *, signal_id: str | None = None
    ) -> None:
        """Send a signal to an instance: a Wait for this name takes it, now or once it comes there.

        With a custom ``signal_id``, signalling twice counts once. Blocks until it is stored.

        Raises:
            DefinitionError: this is no id of an instance, the name is none, the value is nothing
                that JSON knows, or ``signal_id`` is no text.
            ProduceError: the brokers did not take it, or not for certain.
        """
        self._send(signal_events(instance, name, value, signal_id))

    # --- ends before their time -------------------------------------------------------------

    def cancel(self, instance: str, reason: str, *, by: str | None = None) -> None:
        """Cancel an instance: its open calls are cancelled, and no others are made.

        What was done is undone then, where the definition says how. Its outcome says by whom,
        ``user@host`` where nothing is said, and why; one that has an outcome keeps it. Blocks until
        it is stored.

        Raises:
            DefinitionError: this is no id of an instance, or reason or by are no texts.
            ProduceError: the brokers did not take it, or not for certain: cancel again.
        """
        self._cancel([instance], reason, by)

    def terminate(self, instance: str, reason: str, *, by: str | None = None) -> None:
        """End an instance without undoing anything, also one that is being undone.

        Otherwise as :meth:`cancel`.
        """
        self._send(cancel_events([instance], reason, by or who(), terminate=True))

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
        return self._cancel(self._select(selection, timeout), reason, by)

    def _cancel(self, instances: Iterable[str], reason: str, by: str | None) -> list[str]:
        events = cancel_events(instances, reason, by or who())
        self._send(events)
        return [instance for instance, _ in events]

    # --- how ---------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, events: Events, *, is_named_here: bool) -> list[str]:
        """Send what starts instances; return their ids."""

    @abstractmethod
    def _send(self, events: Events) -> None:
        """Send events to instances."""

    @abstractmethod
    def _await_outcome(self, future: InstanceFuture, *, is_named_here: bool) -> None:
        """End a future once its instance, which is about to be started, has an outcome."""

    @abstractmethod
    def _listen(
        self, instance: str, listener: Callable[[EventOrEnd], object]
    ) -> Callable[[], object]:
        """Call ``listener`` with an instance's events and what ends them; return what stops it.

        It is called on another thread. Stopping does not block.
        """

    @abstractmethod
    def _select(self, selection: Selection, timeout: float) -> list[str]:
        """Return the ids of a selection's instances that have no outcome."""

    @abstractmethod
    def close(self) -> None:
        """Release what it has. Blocks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def signal_events(instance: str, name: str, value: Any, signal_id: str | None) -> Events:
    """Return what tells an instance something.

    Raises:
        DefinitionError: this is no id of an instance, or name, value or id are none of a signal.
    """
    require_signal(name, value)
    own = uuid4().hex if signal_id is None else signal_id
    require_text("signal_id", own)
    return [(require_id(instance), signal_message(instance, name, value, own))]


def cancel_events(
    instances: Iterable[str], reason: str, by: str, *, terminate: bool = False
) -> Events:
    """Return what cancels instances.

    Raises:
        DefinitionError: an id is none, or reason or by are no texts.
    """
    require_text("reason", reason)
    require_text("by", by)
    return [
        (require_id(each), cancel_message(each, reason, by, terminate=terminate))
        for each in instances
    ]


def result_of(outcome: Mapping[str, Any]) -> Any:
    """Return the result that an outcome has.

    Raises:
        WorkflowFailedError: the instance has failed.
    """
    if outcome["type"] != EVENT_RESULT:
        raise WorkflowFailedError(outcome)
    return outcome["result"]

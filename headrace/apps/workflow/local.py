"""Instances in this process, without Kafka: the same reducer, whose calls are made by threads."""

from __future__ import annotations

import heapq
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog
from typing_extensions import override

from headrace.apps.workflow.base_executor import BaseExecutor
from headrace.apps.workflow.calls import make_call
from headrace.apps.workflow.errors import NoOutcomeError
from headrace.apps.workflow.instance import ASSIGNMENTS, OUTCOMES, RESULTS
from headrace.apps.workflow.messages import CANCEL, START, TERMINAL, Assignment
from headrace.apps.workflow.reducer import WorkflowReducer
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.codecs import to_json
from headrace.keyed import Event, Fired

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.apps.workflow.base_executor import EventOrEnd, Events, InstanceFuture
    from headrace.apps.workflow.definitions import Workflows
    from headrace.apps.workflow.selection import Selection
    from headrace.core.clock import Clock
    from headrace.keyed import Output, Timer

log = structlog.get_logger(__name__)

#: Where events are said to come from.
_SOURCE = "local"

#: Seconds that the thread has to end.
_CLOSE_TIMEOUT = 10.0

#: Seconds of one wait: a clock that is set meanwhile is looked at again.
_LOOK = 1.0

#: Events of an instance that are kept for who listens later; the latest ones.
_MOST_EVENTS = 10_000

_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Instance:
    """An instance as the reducer has left it, and who waits for what becomes of it."""

    state: dict[str, Any] | None = None
    timers: dict[str, Timer] = field(default_factory=dict)
    outcome: dict[str, Any] | None = None
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    futures: list[InstanceFuture] = field(default_factory=list)
    listeners: list[Callable[[EventOrEnd], object]] = field(default_factory=list)


class LocalExecutor(BaseExecutor):
    """Runs instances in this process, for trying workflows out and for tests of them.

    What it has not: an instance ends with the process, and nothing is stored. All else is as with
    Kafka: the reducer is the same, and arguments and results are given on as JSON gives them back.
    ``threads`` calls are made at once. A call whose time is over is left to its thread, and its
    place is free. ``keep`` are the seconds for which a closed instance is remembered. Any thread;
    a context manager, which ends all instances when it is closed.

    Raises:
        DefinitionError: a workflow cannot be started.
        ValueError: ``threads`` is no number above 0.
    """

    def __init__(
        self,
        workflows: Workflows,
        *,
        threads: int = 4,
        keep: float = 600.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(workflows)
        given: object = threads
        if not isinstance(given, int) or given < 1:
            raise ValueError(f"threads is {threads!r}; it has to be a whole number from 1 on")
        self._reducer = WorkflowReducer(workflows.check(), keep=round(keep * 1000))
        self._threads = threads
        self._clock = clock
        self._offsets = count()
        self._changed = threading.Condition()
        self._instances: dict[str, _Instance] = {}
        self._due: list[tuple[int, str, str]] = []
        self._inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self._waiting: dict[_Key, Assignment] = {}
        self._running: dict[_Key, Assignment] = {}
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="local-workflows", daemon=True)
        self._thread.start()

    # --- what it is asked for ---------------------------------------------------------------

    @override
    def _start(self, events: Events, *, is_named_here: bool) -> list[str]:
        self._send(events)
        return [instance for instance, _ in events]

    @override
    def _send(self, events: Events) -> None:
        found = [(instance, json.loads(to_json(message))) for instance, message in events]
        with self._changed:
            self._require_open()
            self._inbox += found
            self._changed.notify_all()

    def _require_open(self) -> None:
        """Check that instances go on; under the lock."""
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise NoOutcomeError("the executor is closed, and its instances ended; make another")

    @override
    def _await_outcome(self, future: InstanceFuture, *, is_named_here: bool) -> None:
        with self._changed:
            self._require_open()
            known = self._instances.setdefault(future.instance, _Instance())
            if known.outcome is None:
                known.futures.append(future)
                return
        future.end(known.outcome)

    @override
    def outcome(self, instance: str, timeout: float) -> dict[str, Any]:
        deadline = Deadline.after(timeout)
        with self._changed:
            while True:
                known = self._instances.get(instance)
                if known is not None and known.outcome is not None:
                    return known.outcome
                self._require_open()
                if deadline.expired:
                    raise NoOutcomeError(
                        f"instance {instance} has no outcome after {timeout:.3g} s; ask again"
                    )
                self._changed.wait(deadline.at_most(_LOOK))

    @override
    def _listen(
        self, instance: str, listener: Callable[[EventOrEnd], object]
    ) -> Callable[[], object]:
        with self._changed:
            self._require_open()
            starts = (name for name, message in self._inbox if message["type"] == START)
            if instance not in self._instances and instance not in starts:
                raise NoOutcomeError(f"there is no instance {instance}, or not any more: start it")
            known = self._instances.setdefault(instance, _Instance())
            for event in known.events:
                listener(event)
            if known.outcome is None:
                known.listeners.append(listener)
            else:
                listener(None)

        def stop() -> None:
            with self._changed:
                if listener in known.listeners:
                    known.listeners.remove(listener)

        return stop

    @override
    def _select(self, selection: Selection, timeout: float) -> list[str]:
        deadline = Deadline.after(timeout)
        with self._changed:
            self._require_open()
            # one that was started before the call is of the selection, too
            while any(message["type"] == START for _, message in self._inbox):
                if deadline.expired:
                    raise NoOutcomeError(
                        f"not all instances were begun after {timeout:.3g} s; ask again"
                    )
                self._changed.wait(deadline.at_most(_LOOK))
                self._require_open()
            states = {
                name: each.state for name, each in self._instances.items() if each.state is not None
            }
            return selection.unfinished(states, self._clock.time())

    @override
    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_TIMEOUT)

    # --- instances, on the thread that has them ---------------------------------------------

    def _work(self) -> None:
        """Apply events and timers as they come, until it is closed."""
        try:
            while self._next():
                pass
            ended: BaseException = NoOutcomeError(
                "the executor was closed before the instance had an outcome; start it again"
            )
        except BaseException as error:  # noqa: BLE001 - raised by who asks
            log.error("local_workflows_failed", error=describe_error(error))  # noqa: TRY400 - raised
            with self._changed:
                self._error = error
            ended = error
        self._end(ended)

    def _next(self) -> bool:
        """Apply one event, or one timer, or wait for it; return whether to go on."""
        with self._changed:
            if self._is_closed:
                return False
            now = self._now
            facts: tuple[str, Event[Any] | Fired] | None = None
            if self._inbox:
                instance, message = self._inbox.popleft()
                facts = instance, Event(message, now, _SOURCE, 0, next(self._offsets))
            elif self._due and self._due[0][0] <= now:
                due, instance, name = heapq.heappop(self._due)
                known = self._instances.get(instance)
                # a timer that was set again, or that is not set any more, is not this one
                if known is not None and name in known.timers and known.timers[name].due == due:
                    facts = instance, Fired(name, due)
            else:
                seconds = _LOOK if not self._due else (self._due[0][0] - now) / 1000
                self._changed.wait(min(max(seconds, 0.001), _LOOK))
            if facts is None:
                return True
            calls = self._apply(*facts, now)
            self._make_calls()
            self._changed.notify_all()
        for call in calls:  # without the lock: these are users'
            call()
        return True

    @property
    def _now(self) -> int:
        return int(self._clock.time() * 1000)

    def _apply(
        self, instance: str, fact: Event[Any] | Fired, now: int
    ) -> list[Callable[[], object]]:
        """Reduce one fact; return what is to be called. Under the lock."""
        known = self._instances.setdefault(instance, _Instance())
        if isinstance(fact, Fired):
            del known.timers[fact.name]
        try:
            known.state, outputs, timers = self._reducer(instance, known.state, [fact], now)
        except ValueError as error:  # of an event that is none, which the reducer leaves at once
            if isinstance(fact, Fired):
                raise
            text = describe_error(error)
            log.warning("local_workflow_event_refused", instance=instance, error=text)
            outputs, timers = [], known.timers
        for name, timer in timers.items():
            if known.timers.get(name) != timer:
                heapq.heappush(self._due, (timer.due, instance, name))
        known.timers = dict(timers)
        calls = [each for output in outputs for each in self._put(known, output)]
        if known.state is None and not known.futures and not known.listeners:
            del self._instances[instance]
        return calls

    def _put(self, known: _Instance, output: Output) -> list[Callable[[], object]]:
        """Handle what the reducer has written; return what is to be called. Under the lock."""
        value = json.loads(to_json(output.value))
        match output.to:
            case _ if output.to == ASSIGNMENTS:
                self._assign(value)
            case _ if output.to == RESULTS:
                known.events.append(value)
                listeners = list(known.listeners)
                calls: list[Callable[[], object]] = [_call_of(each, value) for each in listeners]
                if value["type"] in TERMINAL:
                    known.listeners.clear()
                    calls += [_call_of(each, None) for each in listeners]
                return calls
            case _ if output.to == OUTCOMES:
                known.outcome = value
                futures, known.futures = known.futures, []
                return [_call_of(each.end, value) for each in futures]
        return []

    def _end(self, error: BaseException) -> None:
        """End all that runs, and all that waits."""
        with self._changed:
            for call in self._running.values():
                call.cancelled.set()
            self._waiting.clear()
            instances, self._instances = self._instances, {}
            self._changed.notify_all()
        for each in instances.values():
            for future in each.futures:
                future.end(error)
            for listener in each.listeners:
                listener(error)

    # --- calls ------------------------------------------------------------------------------

    def _assign(self, message: dict[str, Any]) -> None:
        """Queue a call that is to be made, or that is not needed any more. Under the lock."""
        if message["type"] != CANCEL:
            call = Assignment.of(message)
            self._waiting[_key(call)] = call
            return
        key = message["instance"], message["ref"], message["attempt"]
        self._waiting.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            running.cancelled.set()

    def _make_calls(self) -> None:
        """Start threads for calls that wait, as many as there may be. Under the lock."""
        while self._waiting and len(self._running) < self._threads:
            key = next(iter(self._waiting))
            call = self._running[key] = self._waiting.pop(key)
            name = f"call-{call.process}"
            threading.Thread(target=self._call, args=(call,), name=name, daemon=True).start()

    def _call(self, call: Assignment) -> None:
        """Make a call, and answer it. On a thread of its own."""
        _, answer = make_call(self._workflows.processes, call)
        with self._changed:
            if self._running.get(_key(call)) is call:
                del self._running[_key(call)]
                self._inbox.append((call.instance, json.loads(answer)))
                self._make_calls()
                self._changed.notify_all()


def _call_of(listener: Callable[[Any], object], event: Any) -> Callable[[], object]:
    return lambda: listener(event)


def _key(call: Assignment) -> _Key:
    return call.instance, call.ref, call.attempt

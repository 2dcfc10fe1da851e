"""The way to a collector: a bounded queue, and a thread of its own that sends what is in it."""

from __future__ import annotations

import os
from collections import deque
from enum import Enum
from threading import Condition, Thread, get_ident
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.sdk.resources import Resource

from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.core.clock import Deadline

log = structlog.get_logger(__name__)

#: Items that wait at the most, and that are sent at a time: the defaults of OpenTelemetry's SDK.
MOST_WAITING, MOST_AT_ONCE = 2048, 512

#: Seconds that items wait for others.
SEND_INTERVAL = 1.0

#: Seconds that the last items have to be sent in, out of a stop's deadline.
CLOSE_TIMEOUT = 2.0


class Signal(Enum):
    """A kind of telemetry that is sent."""

    TRACES = "traces"
    """Spans."""

    METRICS = "metrics"
    """All metrics, as they are at one moment."""

    LOGS = "logs"
    """Lines of the log."""


class ExportQueue:
    """Sends what is put in, from a thread of its own; who puts it in never waits.

    ``send`` gets some items, blocks until the collector has them, and returns whether it has.
    ``collect``, if there is one, says each ``interval`` what is to be sent as well. What there is
    no room for, or what the collector does not take, is dropped and counted. In a forked child,
    which has no thread, nothing is sent.
    """

    def __init__(
        self,
        signal: Signal,
        send: Callable[[Sequence[Any]], bool],
        stop: Callable[[], object],
        *,
        interval: float = SEND_INTERVAL,
        collect: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        self.signal = signal
        self._send = send
        self._stop = stop
        self._interval = interval
        self._collect = collect
        self._process = os.getpid()
        # reentrant: what a finalizer logs may come in the middle of a line of the same thread's
        self._changed = Condition()
        self._waiting: deque[Any] = deque()
        self._asked = self._done = 0
        self._closed = False
        self._dropped = self._reported = 0
        self._on_drop: Callable[[int], None] = lambda _: None
        name = f"otlp-{signal.value}"
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Return how many items were dropped so far."""
        return self._dropped

    def on_drop(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with how many items are dropped, those so far included."""
        with self._changed:
            self._on_drop = callback
            if self._dropped:
                callback(self._dropped)

    def put(self, item: Any) -> None:
        """Queue an item. Any thread except the sending one, whose items are left out."""
        if os.getpid() != self._process or get_ident() == self._thread.ident:
            return
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                self._drop(1)
                return
            self._waiting.append(item)
            if len(self._waiting) >= MOST_AT_ONCE:
                self._changed.notify_all()

    def flush(self, deadline: Deadline) -> bool:
        """Wait until what was put in is sent or dropped; return whether the deadline was met."""
        if os.getpid() != self._process or get_ident() == self._thread.ident:
            return True
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: self._done >= asked or not self._thread.is_alive(), deadline.left
            )

    def close(self, deadline: Deadline) -> None:
        """Send what is left, until the deadline and for two seconds at most, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(deadline.at_most(CLOSE_TIMEOUT))
        # ends what still tries: the thread then finds nothing left
        with self._changed:
            self._drop(len(self._waiting))
            self._waiting.clear()
        self._stop()

    def _drop(self, count: int) -> None:
        if count:
            self._dropped += count
            self._on_drop(count)

    # --- its thread -------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(self._is_due, self._interval)
                is_last, asked = self._closed, self._asked
            self._send_all()
            with self._changed:
                self._done = asked
                self._changed.notify_all()

    def _is_due(self) -> bool:
        return self._closed or self._asked > self._done or len(self._waiting) >= MOST_AT_ONCE

    def _send_all(self) -> None:
        """Send all that waits, and say what was dropped."""
        if self._collect is not None:
            try:
                found = list(self._collect())
            except Exception as error:  # noqa: BLE001 - of a metric that cannot be read
                reason = f"{type(error).__name__}: {error}"
                log.warning("telemetry_not_read", signal=self.signal.value, error=reason)
            else:
                self._deliver(found)
        while True:
            with self._changed:
                count = min(MOST_AT_ONCE, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(count)]
            if not taken:
                break
            self._deliver(taken)
        dropped = self._dropped - self._reported
        if dropped:
            self._reported += dropped
            log.warning("telemetry_dropped", signal=self.signal.value, items=dropped)

    def _deliver(self, items: Sequence[Any]) -> None:
        try:
            has_taken = self._send(items)
        except Exception as error:  # noqa: BLE001 - of the client; what it was for is dropped
            has_taken = False
            reason = f"{type(error).__name__}: {error}"
            log.warning("telemetry_not_sent", signal=self.signal.value, error=reason)
        if not has_taken:
            with self._changed:
                self._drop(len(items))


def resource(service_name: str, instance: str) -> Resource:
    """Return what collectors know the process by."""
    return Resource.create(
        {
            "service.name": service_name,
            "service.version": VERSION,
            "service.instance.id": instance,
        }
    )

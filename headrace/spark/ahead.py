"""Records on their way to Spark while the job before them runs."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.clock import Deadline
    from headrace.spark.handover import HandOver

    #: Brings the records of prepared batches to Spark; blocks.
    Send = Callable[[HandOver, Sequence[Any]], Any]

log = structlog.get_logger(__name__)

#: Seconds that the thread waits for something to send before it looks whether it has to stop.
_IDLE_TURN = 5.0


@dataclass(eq=False, slots=True)
class _Parcel:
    """The records of one micro-batch, prepared, and what became of them in Spark."""

    prepared: Sequence[Any]
    hand_over: HandOver
    sent: Future[Any] = field(default_factory=Future)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody is sending it, or has."""
        return not self.sent.running() and not self.sent.done()

    def is_of(self, prepared: Sequence[Any], hand_over: HandOver) -> bool:
        """Whether it has the very same tables, for the same session."""
        if self.hand_over is not hand_over or len(self.prepared) != len(prepared):
            return False
        return all(one is other for one, other in zip(self.prepared, prepared, strict=True))


class Ahead:
    """Sends what the lane will take next, on a thread of its own, while the lane's job runs.

    It works on what is foretold, and a foretelling binds nobody: what the lane takes is compared
    with it, and where they differ, or sending failed, the lane sends by itself. At most one
    micro-batch is kept, until the lane takes any or another one is foretold. All methods may be
    called on any thread.
    """

    def __init__(self, name: str, send: Send) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._parcel: _Parcel | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread once it has sent what it is at; say whether it ended."""
        with self._changed:
            self._is_stopping, self._parcel = True, None
            self._changed.notify()
        return deadline.joined(self._thread)

    def foretell(self, prepared: Sequence[Any], hand_over: HandOver) -> None:
        """Have this sent, instead of what was foretold before; nothing, if it is empty.

        Does not block.
        """
        with self._changed:
            before = self._parcel
            if before is not None and before.is_of(prepared, hand_over):
                return
            self._parcel = _Parcel(prepared, hand_over) if prepared else None
            self._changed.notify()

    def take(self, prepared: Sequence[Any], hand_over: HandOver, seconds: float | None) -> Any:
        """Return what was sent of exactly this, None if it was not, or not in ``seconds``.

        Blocks while it is being sent. Nothing is kept any more.
        """
        with self._changed:
            parcel, self._parcel = self._parcel, None
        if parcel is None or not parcel.is_of(prepared, hand_over) or parcel.sent.cancel():
            return None
        try:
            return parcel.sent.result(seconds)
        except Exception as error:  # noqa: BLE001 - the lane sends it, and meets what there is
            log.debug("not_sent_ahead", error=f"{type(error).__name__}: {error}")
            return None

    def _run(self) -> None:
        while not self._is_stopping:
            self._turn()

    def _turn(self) -> None:
        """Send one parcel, or wait a little for one. No name keeps it any longer."""
        parcel = self._next()
        if parcel is not None and parcel.sent.set_running_or_notify_cancel():
            self._bring(parcel)

    def _next(self) -> _Parcel | None:
        with self._changed:
            has_work = self._changed.wait_for(self._has_work, _IDLE_TURN)
            return self._parcel if has_work else None

    def _has_work(self) -> bool:
        return self._is_stopping or (self._parcel is not None and self._parcel.is_untouched)

    def _bring(self, parcel: _Parcel) -> None:
        try:
            parcel.sent.set_result(self._send(parcel.hand_over, parcel.prepared))
        except Exception as error:  # noqa: BLE001 - the thread goes on for the next one
            parcel.sent.set_exception(error)

"""Signals to the daemon, which a thread of their own handles from the first moment on.

It needs the standard library and ``headrace.core.clock`` only, so that it is there before anything
else is imported.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager, suppress
from threading import Lock, Thread, local
from typing import TYPE_CHECKING

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import TypeAlias

    _Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

#: The first of these asks for a graceful stop, the second ends the process.
_ENDING = (signal.SIGTERM, signal.SIGINT)

#: What others may want to know of, by ``Signals.on``.
_CALLED = (signal.SIGHUP, signal.SIGUSR1)

#: Wakes the main thread, which may be waiting in a start. Sent by the process itself.
_WAKE = signal.SIGUSR2

#: Seconds beyond the deadline of a stop that the process may take to end: the admin API, the
#: interpreter and what libraries do at its end come after the stop.
ENDING_MARGIN = 15.0

#: Seconds that ``last_words`` may take before the process is ended all the same.
LAST_WORDS_TIMEOUT = 2.0

#: The exit code of a process whose stop did not end.
_OVERRAN = 5


class StoppedEarlyError(BaseException):
    """A signal came before the start was finished.

    Derives from BaseException, so that no handler of errors on the way takes it for one.
    """


class Signals:
    """SIGTERM and SIGINT: the first asks for a graceful stop, the second ends the process.

    What a signal does is done on the thread that ``listen`` starts. A handler in Python runs on the
    main thread, and so not at all while that is in a call that does not come back. Until ``serve``
    nothing is open, and the first one ends the process with 0. SIGHUP and SIGUSR1 are remembered
    until ``on`` says what they are to do.

    ``last_words`` is called, on another thread and for LAST_WORDS_TIMEOUT at most, before the
    process is ended here: with True where a stop did not end.

    A process that the user's code forks, for ``multiprocessing`` too, has none of this: signals do
    there what they did before ``listen``.
    """

    def __init__(
        self, end: Callable[[int], object] = os._exit, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.asked: str | None = None
        self.last_words: Callable[[bool], None] = lambda _: None
        self._end = end
        self._clock = clock
        self._lock = Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._remembered: set[int] = set()
        self._shutdown_timeout: Callable[[], float] | None = None
        self._received = False
        self._interrupts = False
        self._stop_by: Deadline | None = None
        self._ends: tuple[Deadline, int] | None = None
        self._reader = self._writer = -1
        self._former: dict[int, _Handler] = {}
        self._forking = local()

    # --- main thread ------------------------------------------------------------------------

    def listen(self) -> None:
        """Handle signals from now on, until the process ends; nothing where it does already."""
        if self._reader >= 0:
            return
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # the number of a signal is written for those only that have a handler
        for number in (*_ENDING, *_CALLED):
            self._former[number] = signal.signal(number, lambda *_: None)
        self._former[_WAKE] = signal.signal(_WAKE, lambda *_: self._interrupt())
        Thread(target=self._run, name="signals", daemon=True).start()

    def serve(self, shutdown_timeout: Callable[[], float]) -> None:
        """Request a stop at the first signal, which may take ``shutdown_timeout`` seconds."""
        self._shutdown_timeout = shutdown_timeout

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Interrupt the block at the first signal: it waits for others and cannot poll.

        Raises:
            StoppedEarlyError: a signal came, before the block or in it.
        """
        self._interrupts = True
        try:
            if self.asked is not None:
                raise StoppedEarlyError
            yield
        finally:
            self._interrupts = False

    def calm(self) -> None:
        """Interrupt nothing any more: what follows has to come to its end."""
        self._interrupts = False

    def _interrupt(self) -> None:
        if self.asked is not None and self._interrupts:
            self._interrupts = False
            raise StoppedEarlyError

    # --- a thread that forks ----------------------------------------------------------------

    def before_fork(self) -> None:
        """Keep signals from the child until its handlers are its own."""
        # one that comes too early would be written into the parent's pipe; _WAKE does nothing
        # there, and what it raises here would be lost
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDING, *_CALLED))

    def after_fork(self) -> None:
        """Unblock signals for the thread again."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def after_fork_in_child(self) -> None:
        """Leave the signals of a child to itself. Its only thread is its main thread."""
        if self._writer >= 0:
            signal.set_wakeup_fd(-1)
            for number, handler in self._former.items():
                # None is one that Python did not set
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1
            self._lock = Lock()
        self.after_fork()

    # --- any thread -------------------------------------------------------------------------

    def on(self, number: signal.Signals, callback: Callable[[], None]) -> None:
        """Call ``callback`` at a signal, and now if it came before. It must not block."""
        with self._lock:
            self._callbacks[number] = callback
            came = number in self._remembered
        if came:
            callback()

    def ask(self, who: str) -> None:
        """Ask for a graceful stop without a signal from outside.

        A signal after that is the first one, and does not end the process at once.
        """
        if self.asked is None:
            self.asked = who
        if self._shutdown_timeout is not None:
            self.end_by(Deadline.after(self._shutdown_timeout(), self._clock), _OVERRAN)
        if self._writer >= 0:
            os.kill(os.getpid(), _WAKE)

    def end_by(self, deadline: Deadline, code: int) -> Deadline:
        """End the process with ``code`` if it still runs ENDING_MARGIN after the deadline.

        Of several calls that with the earliest deadline counts, which is returned for the stop to
        keep to. It does not depend on the main thread, which a stop may hang.
        """
        with self._lock:
            if self._stop_by is None or deadline.at < self._stop_by.at:
                self._stop_by = deadline
                self._ends = Deadline(deadline.at + ENDING_MARGIN, self._clock), code
            earliest = self._stop_by
        if self._writer >= 0:
            os.write(self._writer, b"\0")
        return earliest

    # --- its thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            wait = None if self._ends is None else self._ends[0].remaining
            if select.select([self._reader], [], [], wait)[0]:
                for number in os.read(self._reader, select.PIPE_BUF):
                    self.handle(number)
            self.end_if_due()

    def handle(self, number: int) -> None:
        """Handle a signal."""
        if number in _ENDING:
            self._handle_end(number)
        elif number in _CALLED:
            with self._lock:
                callback = self._callbacks.get(number)
                if callback is None:
                    self._remembered.add(number)
            if callback is not None:
                callback()

    def _handle_end(self, number: int) -> None:
        if self._shutdown_timeout is None:
            self._end(0)
            return
        if self._received:
            self._leave(128 + number, hung=False)
            return
        self._received = True
        self.ask(signal.Signals(number).name)

    def end_if_due(self) -> None:
        """End the process if it should have ended."""
        if self._ends is not None and self._ends[0].expired:
            self._leave(self._ends[1], hung=True)

    def _leave(self, code: int, *, hung: bool) -> None:
        words = Thread(target=self.last_words, args=[hung], name="last-words", daemon=True)
        # a process that has no thread left has to end as well
        with suppress(RuntimeError):
            words.start()
            words.join(LAST_WORDS_TIMEOUT)
        self._end(code)


#: Those of this process.
SIGNALS = Signals()

os.register_at_fork(
    before=SIGNALS.before_fork,
    after_in_parent=SIGNALS.after_fork,
    after_in_child=SIGNALS.after_fork_in_child,
)

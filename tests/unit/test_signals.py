"""Signals to the daemon: what each does, and that it is heard at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.signals import ENDING_MARGIN, Signals, StoppedEarlyError
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds after which a test gives up.
PATIENCE = 60.0

#: The command line of a daemon whose imports do what ``{doing}`` says, until a signal ends it.
_IMPORTING = """
import hashlib, sys, time, types

def command_line():
    print("importing", flush=True)
    {doing}

sys.modules["headrace.cli"] = types.ModuleType("headrace.cli")
sys.modules["headrace.cli"].main = command_line
sys.argv = ["headrace", "run"]
from headrace.__main__ import main
main()
"""

#: One that signals interrupt, and a call in C that comes back in hours.
_WAITING = "time.sleep(600)"
_CALLING = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'


@contextmanager
def importing(doing: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program's start up to the imports."""
    command = [sys.executable, "-c", _IMPORTING.format(doing=doing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"importing\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("doing", [_WAITING, _CALLING], ids=["waiting", "calling"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_imports_ends_the_process(number: signal.Signals, doing: str) -> None:
    """The exit code is 0, also while the main thread is in a call into C."""
    with importing(doing) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0


def test_other_signals_during_the_imports_do_not_end_the_process() -> None:
    """SIGHUP, SIGUSR1 and SIGUSR2 are ignored, and SIGTERM ends the process."""
    with importing(_WAITING) as process:
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            process.send_signal(number)
        assert process.wait(PATIENCE) == 0


def test_closed_standard_streams_are_no_failure() -> None:
    """A process without standard streams ends as any other one, here by its missing file."""
    command = [sys.executable, "-m", "headrace", "run", "-c", "none"]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, timeout=PATIENCE, check=False).returncode == 2


#: A process that hears signals and starts a child as ``{forking}`` says, which gets ``{number}``.
_FORKING = """
import multiprocessing, os, signal, threading, time

early = None
os.register_at_fork(after_in_child=lambda: early and os.kill(os.getpid(), early))

from headrace.signals import SIGNALS

SIGNALS.listen()
SIGNALS.serve(lambda: {patience})

reader, writer = os.pipe()

def wait():
    signal.alarm(10)  # the end of a child that its own signals do not end
    os.write(writer, b".")
    while True:
        time.sleep(1)

def fork():
    global child
    child = os.fork()
    if child == 0:
        try:
            wait()
        except KeyboardInterrupt:
            os._exit(7)

def start():
    global child
    process = multiprocessing.get_context("fork").Process(target=wait)
    process.start()
    child = process.pid

{forking}
if early is None:
    os.read(reader, 1)
    os.kill(child, {number})
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), SIGNALS.asked, flush=True)
signal.raise_signal(signal.SIGTERM)
while SIGNALS.asked is None:
    time.sleep(0.01)
print(SIGNALS.asked, flush=True)
os._exit(0)
"""

_ELSEWHERE = "thread = threading.Thread(target=fork); thread.start(); thread.join()"


@pytest.mark.parametrize(
    ("forking", "number", "code"),
    [
        ("fork()", signal.SIGTERM, -signal.SIGTERM),
        ("fork()", signal.SIGINT, 7),
        ("fork()", signal.SIGHUP, -signal.SIGHUP),
        ("fork()", signal.SIGUSR1, -signal.SIGUSR1),
        ("fork()", signal.SIGUSR2, -signal.SIGUSR2),
        (_ELSEWHERE, signal.SIGTERM, -signal.SIGTERM),
        ("start()", signal.SIGTERM, -signal.SIGTERM),
        ("early = signal.SIGTERM; fork()", signal.SIGTERM, -signal.SIGTERM),
    ],
    ids=["TERM", "INT", "HUP", "USR1", "USR2", "of-a-thread", "multiprocessing", "at-the-fork"],
)
def test_a_signal_to_a_forked_child_is_the_child_s(forking: str, number: int, code: int) -> None:
    """It ends the child as it would without Headrace, and the parent hears its own ones only."""
    script = _FORKING.format(forking=forking, number=int(number), patience=PATIENCE)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=PATIENCE, check=False
    )
    assert done.stdout.decode().splitlines() == [f"{code} None", "SIGTERM"]
    assert done.returncode == 0


class Process:
    """Signals of a process with a clock of the test's, and the codes that it was ended with."""

    def __init__(self, shutdown_timeout: float | None = 20.0) -> None:
        self.clock = FakeClock()
        self.ended: list[int] = []
        self.words: list[bool] = []
        self.signals = Signals(self.ended.append, self.clock)
        self.signals.last_words = self.words.append
        if shutdown_timeout is not None:
            self.signals.serve(lambda: shutdown_timeout)


def test_the_first_signal_asks_and_the_second_ends() -> None:
    """The first one's name is kept; the second has the process end with its own number."""
    process = Process()
    process.signals.handle(signal.SIGTERM)
    assert (process.signals.asked, process.ended) == ("SIGTERM", [])
    process.signals.handle(signal.SIGINT)
    assert process.ended == [128 + signal.SIGINT]
    assert process.words == [False]


def test_a_signal_after_a_stop_asked_otherwise_is_the_first_one() -> None:
    """A stop through the API is no signal."""
    process = Process()
    process.signals.ask("the API")
    process.signals.handle(signal.SIGTERM)
    assert (process.signals.asked, process.ended) == ("the API", [])


def test_before_it_serves_a_signal_ends_the_process() -> None:
    """A process that does not serve yet ends at once."""
    process = Process(shutdown_timeout=None)
    process.signals.handle(signal.SIGINT)
    assert process.ended == [0]


@pytest.mark.parametrize("asks", [signal.SIGTERM, None])
def test_a_stop_that_does_not_end_is_ended(asks: signal.Signals | None) -> None:
    """The process ends once the stop's time and a margin are over, for any source of the stop."""
    process = Process()
    if asks is None:
        process.signals.ask("the API")
    else:
        process.signals.handle(asks)
    process.clock.advance(20.0 + ENDING_MARGIN - 0.1)
    process.signals.end_if_due()
    assert process.ended == []
    process.clock.advance(0.2)
    process.signals.end_if_due()
    assert process.ended == [5]
    assert process.words == [True]


def test_a_process_that_must_end_has_a_code_of_its_own() -> None:
    """A stop without a request is ended like any other one."""
    process = Process()
    process.signals.end_by(Deadline.after(6.0, process.clock), 70)
    process.signals.handle(signal.SIGTERM)
    process.clock.advance(6.0 + ENDING_MARGIN)
    process.signals.end_if_due()
    assert process.ended == [70]


def test_a_stop_keeps_to_the_time_that_its_signal_began() -> None:
    """The main thread may notice late; a stop with less time ends earlier."""
    process = Process()
    process.signals.handle(signal.SIGTERM)
    asked = Deadline.after(20.0, process.clock)
    process.clock.advance(15.0)
    assert process.signals.end_by(Deadline.after(20.0, process.clock), 5) == asked
    hurried = Deadline.after(3.0, process.clock)
    assert process.signals.end_by(hurried, 70) == hurried
    process.clock.advance(3.0 + ENDING_MARGIN)
    process.signals.end_if_due()
    assert process.ended == [70]


def test_a_signal_is_kept_until_its_handler_is_set() -> None:
    """SIGHUP before the daemon's handler is delivered once, then each time."""
    process, told = Process(shutdown_timeout=None), []
    process.signals.handle(signal.SIGHUP)
    process.signals.on(signal.SIGUSR1, lambda: told.append("SIGUSR1"))
    process.signals.on(signal.SIGHUP, lambda: told.append("SIGHUP"))
    assert told == ["SIGHUP"]
    process.signals.handle(signal.SIGHUP)
    assert told == ["SIGHUP", "SIGHUP"]
    assert process.ended == []


def test_a_signal_before_the_block_keeps_it_from_running() -> None:
    """A start that was stopped before does not begin."""
    process = Process()
    process.signals.handle(signal.SIGTERM)
    with pytest.raises(StoppedEarlyError), process.signals.interrupting():
        pytest.fail("it ran")

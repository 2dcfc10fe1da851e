from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import pytest
import structlog

from headrace.config import LoggingConfig
from headrace.telemetry.logs import Bound, bound_fields, configure_logging, flush
from headrace.telemetry.logs.levels import is_library
from tests.mute_errors import WAYS, Mute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Lines = Callable[[], list[dict[str, Any]]]


def _fail() -> None:
    password = "hunter2"
    raise ValueError(f"refused after {len(password)} letters")


@pytest.mark.parametrize("kind", ["console", "json"])
def test_a_logged_error_shows_no_local_variables(
    kind: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both formats have the traceback without the values of variables."""
    configure_logging(LoggingConfig(format=kind))
    try:
        _fail()
    except ValueError:
        structlog.get_logger("test").exception("failed")
    flush()
    written = capsys.readouterr().err
    assert "refused after 7 letters" in written
    assert "in _fail" in written
    assert "= 'hunter2'" not in written
    assert 'password = "hunter2"' not in written


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["console", "json"])
def test_an_error_that_cannot_be_shown_is_logged_with_its_frames(
    how: type[BaseException],
    kind: Literal["console", "json"],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given as it is, or as the one that is handled; the thread that logs it goes on."""
    configure_logging(LoggingConfig(format=kind))

    def fail() -> None:
        raise Mute(how)

    try:
        fail()
    except Mute as error:
        structlog.get_logger("test").error("given", exc_info=error)
        structlog.get_logger("test").exception("handled")
    flush()
    written = capsys.readouterr().err
    assert written.count("in fail") == 2
    assert written.count("its __str__ raises") >= 2


def test_events_are_json_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Each event is one JSON object with its level, logger and time."""
    configure_logging(LoggingConfig())
    structlog.get_logger("headrace.test").warning("partition_lost", partition=3)
    flush()
    event = json.loads(capsys.readouterr().err)
    assert event.pop("timestamp")
    assert event == {
        "event": "partition_lost",
        "partition": 3,
        "level": "warning",
        "logger": "headrace.test",
    }


def test_a_librarys_line_has_a_stable_name(lines: Lines) -> None:
    """A line of kazoo is one event, with kazoo's text as its detail."""
    configure_logging(LoggingConfig())
    logging.getLogger("kazoo.client").warning("Connection to %s dropped", "127.0.0.1")
    (line,) = lines()
    assert (line["event"], line["logger"]) == ("library_log", "kazoo.client")
    assert line["detail"] == "Connection to 127.0.0.1 dropped"


def test_the_lines_of_each_library_have_a_stable_name() -> None:
    """Each package among our dependencies that logs is known as a library."""
    ours = {_package(each) for each in metadata.requires("headrace") or []}
    modules = [
        module
        for module, packages in metadata.packages_distributions().items()
        if ours & set(map(_package, packages))
    ]
    assert {"kazoo", "psycopg", "sqlalchemy"} <= set(modules)

    logging_ones = set(filter(_logs, modules)) - {"structlog"}  # which logs in others' names

    assert {name for name in logging_ones if not is_library(name)} == set()


def _package(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def _logs(module: str) -> bool:
    spec = find_spec(module)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in Path(folder).rglob("*.py")]
    return any(b"getLogger(" in file.read_bytes() for file in files)


def test_a_users_line_keeps_its_text_and_its_fields(lines: Lines) -> None:
    """The standard library's logging in a processor gives events with text and extra fields."""
    configure_logging(LoggingConfig())
    logging.getLogger("orders.reducer").info("order %d is late", 7, extra={"customer": "x"})
    (line,) = lines()
    assert line["event"] == "order 7 is late"
    assert line["customer"] == "x"


def test_every_line_of_a_thread_has_its_bound_fields(lines: Lines) -> None:
    """Context is in events and in lines of the standard library's logging, inner over outer."""
    configure_logging(LoggingConfig())
    with Bound(channel="flights", partition=3), Bound(batch=100):
        with structlog.contextvars.bound_contextvars(order=7):
            structlog.get_logger("mine").info("row_refused")
        logging.getLogger("mine").warning("refused")
    structlog.get_logger("mine").info("row_taken")
    event, line, after = lines()
    for bound in (event, line):
        assert (bound["channel"], bound["partition"], bound["batch"]) == ("flights", 3, 100)
    assert event["order"] == 7
    assert "channel" not in after


def test_bound_fields_end_with_an_error(lines: Lines) -> None:
    """A block that raises leaves no field, and other threads have none of it."""
    configure_logging(LoggingConfig())

    def work() -> None:
        with Bound(channel="flights"):
            elsewhere = Thread(target=structlog.get_logger("mine").info, args=["elsewhere"])
            elsewhere.start()
            elsewhere.join()
            _fail()

    with pytest.raises(ValueError, match="7 letters"):
        work()
    assert bound_fields() == {}
    assert "channel" not in lines()[0]


def test_fields_of_an_event_win_over_bound_ones(lines: Lines) -> None:
    """An event about another partition than the thread's names that one."""
    configure_logging(LoggingConfig())
    with Bound(partition=3):
        structlog.get_logger("mine").info("claim_lost", partition=4)
    assert lines()[0]["partition"] == 4


def test_a_root_line_of_a_library_is_the_library_s(lines: Lines) -> None:
    """py4j writes to the root logger; its lines are known by the file they come from."""
    configure_logging(LoggingConfig())
    for level, text in ((logging.INFO, "Exception while sending command."), (30, "lost")):
        where = ("/usr/lib/python3/site-packages/py4j/java_gateway.py", 1038)
        logging.getLogger().handle(logging.LogRecord("root", level, *where, text, (), None))
    logging.getLogger().info("mine")
    lost, mine = lines()
    assert (lost["event"], lost["logger"], lost["detail"]) == ("library_log", "py4j", "lost")
    assert (mine["event"], mine["logger"]) == ("mine", "root")


def test_libraries_write_nothing_by_themselves(lines: Lines) -> None:
    """A handler that a library put on its logger is taken away, so that a line comes once."""
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler())
    logging.getLogger("uvicorn").propagate = False
    configure_logging(LoggingConfig())
    logging.getLogger("uvicorn.error").error("bind failed", extra={"color_message": "x"})
    (line,) = lines()
    assert line["detail"] == "bind failed"
    assert "color_message" not in line


#: Seconds after which a test gives up.
PATIENCE = 60.0


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Make a pipe without a reader and fill it; yield its ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"\n" * 1000)
        os.set_blocking(writer, True)
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def test_unread_lines_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging goes on, and a later reader gets the number of dropped lines."""
    count = 6000
    read: list[dict[str, Any]] = []
    with full_pipe() as (reader, writer), open(writer, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging(LoggingConfig())
        for number in range(count):
            structlog.get_logger("mine").info("said", number=number, text="x" * 1000)
        with open(reader, closefd=False) as lines:
            while not read or read[-1]["event"] != "log_lines_dropped":
                read += [json.loads(line) for line in (lines.readline(),) if line.strip()]
        *said, dropped = read
        assert [event["number"] for event in said] == list(range(len(said)))
        assert len(said) + dropped["lines"] == count
        assert dropped["lines"] > 0


def test_lines_that_cannot_be_written_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that is full for a while loses what came meanwhile, and nothing else."""
    configure_logging(LoggingConfig())
    (handler,) = logging.getLogger().handlers
    write = handler._write  # type: ignore[attr-defined]

    def refuse(_: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(handler, "_write", refuse)
    structlog.get_logger("mine").info("lost")
    flush()
    monkeypatch.setattr(handler, "_write", write)
    structlog.get_logger("mine").info("written")
    for _ in range(2):
        flush()
    written, dropped = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (written["event"], dropped["event"]) == ("written", "log_lines_dropped")
    assert dropped["lines"] == 1


def test_a_line_that_cannot_be_made_is_told(lines: Lines) -> None:
    """A text with arguments that do not fit it is an event with the logger's name."""
    configure_logging(LoggingConfig())
    logging.getLogger("mine").warning("%d", "one")
    (line,) = lines()
    assert (line["event"], line["source"]) == ("log_line_failed", "mine")
    assert "TypeError" in line["exception"]


_SCRIPT = """
import os
import structlog
from headrace.config import LoggingConfig
from headrace.telemetry.logs import configure_logging, flush

configure_logging(LoggingConfig())
for number in range(1000):
    structlog.get_logger("mine").info("said", number=number)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise KeyError", 1), ("flush(); os._exit(4)", 4)],
)
def test_the_last_lines_come_out(ending: str, code: int) -> None:
    """All lines are written for each end of a process but a kill."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(ending=ending)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code
    # an interpreter that dies of an error writes that itself, and between the log's thread's lines
    assert re.findall(r'"number": (\d+)', done.stderr) == [str(number) for number in range(1000)]


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("flush(); os._exit(4)", 4)])
def test_a_process_ends_without_a_reader_of_its_log(ending: str, code: int) -> None:
    """The last lines have a deadline."""
    with full_pipe() as (_, writer):
        command = [sys.executable, "-c", _SCRIPT.format(ending=ending)]
        done = subprocess.run(command, stderr=writer, timeout=PATIENCE, check=False)
    assert done.returncode == code


#: A process whose thread has ``{lock}`` while it starts a child, by ``{forking}``, that logs.
_FORKING = """
import logging, multiprocessing, os, signal, sys, threading
import structlog
from headrace.config import LoggingConfig
from headrace.telemetry.logs import configure_logging, flush, recent

configure_logging(LoggingConfig())
(handler,) = logging.getLogger().handlers
(repeats,) = handler.filters
log = structlog.get_logger("headrace.mine")
held, over = threading.Event(), threading.Event()

def hold(lock):
    with lock:
        held.set()
        over.wait()

def say():
    signal.alarm(10)  # the end of a child that waits for a lock
    for number in range(100):
        log.error("said_by_child", number=number)

def fork():
    pid = os.fork()
    if pid == 0:
        say()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def start():
    process = multiprocessing.get_context("fork").Process(target=say)
    process.start()
    process.join()
    return process.exitcode

log.warning("said_before")
flush()
threading.Thread(target=hold, args=[{lock}]).start()
held.wait()
code = {forking}
over.set()
log.warning("said_after")
flush()
print(code)
"""

#: From 3.12 on Python warns of a fork beside other threads, which is what is tried.
_QUIET = ("-W", "ignore:This process:DeprecationWarning")

_LOCKS = {
    "none": "threading.Lock()",
    "counting": "handler._counting",
    "repeats": "repeats._repeats._lock",
    "recent": "recent._RECENT._lock",
}


@pytest.mark.parametrize("lock", _LOCKS.values(), ids=_LOCKS)
@pytest.mark.parametrize("forking", ["fork()", "start()"], ids=["fork", "multiprocessing"])
def test_a_forked_child_logs_by_itself(forking: str, lock: str) -> None:
    """Each line comes out once, though the child has no thread for them and ends at once.

    What another thread held at the fork does not hold the child up.
    """
    done = subprocess.run(
        [sys.executable, *_QUIET, "-c", _FORKING.format(forking=forking, lock=lock)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "0\n"
    said = [json.loads(line) for line in done.stderr.splitlines()]
    by_child = [("said_by_child", number) for number in range(100)]
    assert [(event["event"], event.get("number")) for event in said] == [
        ("said_before", None),
        *by_child,
        ("said_after", None),
    ]

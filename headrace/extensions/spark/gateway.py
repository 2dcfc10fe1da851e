"""The JVM of pyspark: its process, out of reach of our signals, its output and log levels."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shlex
import subprocess
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, cast

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from headrace.core.errors import StartError
from headrace.telemetry.logs import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from py4j.clientserver import ClientServer


log = structlog.get_logger(__name__)

#: How a line of log4j begins (log4j2.properties); the others are written by whatever else runs.
_LOG4J = '{"log4j":'

#: The JVM says this at every start, because pyspark's launcher asks for the module.
_NOISE = ("WARNING: Using incubator modules",)

#: Characters of a line, and of a message or traceback in it, that are kept.
_LINE = 65536
_TEXT = 16384

#: Lines a second, and at once: a dump of threads or a few tracebacks pass whole, a reducer that
#: prints every row does not fill the log.
RATE, BURST = 20.0, 500

#: The latest lines held back that are written all the same once the JVM has ended: its last words.
LAST_WORDS = 50

_LEVELS = {"TRACE": 10, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 40}


class OutputPump:
    """Reads the pipe at the JVM's standard output and error until the last writer has ended.

    Always reads, so that a writer never waits for the log. ``start`` and ``finish`` are for the
    owner. The lines go to loggers under ``spark`` where log4j names one.
    """

    def __init__(self, descriptor: int, budget: Budget | None = None) -> None:
        self._descriptor = descriptor
        self._budget = budget or Budget(RATE, BURST)
        self._held_back: deque[str] = deque(maxlen=LAST_WORDS)
        self._suppressed = 0
        self._lock = Lock()
        self._thread = Thread(target=self._run, name="spark-log", daemon=True)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait for the end of the output, and write the last words. The JVM has ended.

        Its Python workers may live a little longer and keep the pipe open.
        """
        self._thread.join(seconds)
        with self._lock:
            lines, self._held_back = list(self._held_back), deque(maxlen=LAST_WORDS)
            suppressed, self._suppressed = self._suppressed - len(lines), 0
        for line in lines:
            _write(line, max(0, suppressed))
            suppressed = 0

    def _run(self) -> None:
        with os.fdopen(self._descriptor, encoding="utf-8", errors="replace") as stream:
            for line in _lines(stream):
                self._take_line(line)

    def _take_line(self, line: str) -> None:
        with self._lock:
            if not self._budget.admit():
                self._held_back.append(line)
                self._suppressed += 1
                return
            suppressed, self._suppressed = self._suppressed, 0
            self._held_back.clear()
        _write(line, suppressed)


def _lines(stream: Any) -> Iterator[str]:
    """Yield what there is to log; a line without an end comes in pieces."""
    while line := stream.readline(_LINE):
        text = line.rstrip()
        if text and not text.startswith(_NOISE):
            yield text


def _write(line: str, suppressed: int) -> None:
    counted = {"suppressed": suppressed} if suppressed else {}
    if line.startswith(_LOG4J):
        with suppress(ValueError, KeyError, TypeError):
            _write_log4j(json.loads(line), counted)
            return
    log.warning("spark_output", line=line[:_TEXT], **counted)


def _write_log4j(entry: dict[str, str], counted: dict[str, int]) -> None:
    log = structlog.get_logger("spark." + entry["logger"])
    traceback = entry["exception"].strip()[:_TEXT]
    exception = {"exception": traceback} if traceback else {}
    log.log(
        _LEVELS[entry["log4j"]],
        "spark_log",
        detail=entry["detail"][:_TEXT],
        java_thread=entry["thread"],
        **exception,
        **counted,
    )


_ROOT = "spark"

_NAMES = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
}


class JvmLevels:
    """Hands levels of loggers under ``spark`` on to log4j.

    ``jvm`` gives pyspark's view of the JVM, None while there is none. Called by the thread that
    sets a level; blocks for a few calls to the JVM.
    """

    def __init__(self, jvm: Callable[[], Any]) -> None:
        self._jvm = jvm
        self._chosen: dict[str, int] = {}

    def __call__(self, logger: str, level: int | None) -> None:
        """Set one logger's level; what cannot be set now is set when the JVM is built again."""
        if logger != _ROOT and not logger.startswith(f"{_ROOT}."):
            return
        self._chosen.pop(logger, None)
        if level is not None:
            self._chosen[logger] = level
        jvm = self._jvm()
        if jvm is None:
            return
        try:
            self._apply(jvm.org.apache.logging.log4j, {logger: level})
        except (Py4JError, OSError):
            log.warning("spark_log_level_not_set", of=logger, exc_info=True)

    def _apply(self, log4j: Any, changes: Mapping[str, int | None]) -> None:
        """Set levels; a default is what the file says, so it has to be read again."""
        configurator = log4j.core.config.Configurator
        if None in changes.values():
            configurator.reconfigure()
            changes = self._chosen
        for logger, number in changes.items():
            assert number is not None
            level, name = log4j.Level.toLevel(_NAMES[number]), logger.partition(".")[2]
            if name:
                configurator.setLevel(name, level)
            else:
                configurator.setRootLevel(level)


#: Where pyspark looks for spark-submit's arguments, and what it takes where there are none.
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_NO_ARGS = "pyspark-shell"

#: Held while pyspark is about to read the environment, never while a JVM starts.
_ENVIRONMENT = Lock()

#: The properties that spark-submit makes options of the JVM of.
_JVM_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")

#: JVM options that stay on the command line: the launcher refuses some of the first kind, and files
#: are not read from within files.
_SHOWN = ("-X", "@")

#: What is written as the numbers of its UTF-16 units in a file of properties.
_UNUSUAL = re.compile(r"[^A-Za-z0-9._/-]")


class Jvm:
    """One gateway process. It ends with us: it watches the pipe at its standard input.

    A process group and session of its own keep signals for our group, such as a terminal's Ctrl-C,
    from taking it before the micro-batch in it is finished. It ignores SIGTERM, which systemd's
    default sends to every process of a service. The properties, which may be secrets, are on no
    command line.

    Raises:
        PySparkRuntimeError: the process ended before it was ready, as without a Java.
        StartError: this process runs under spark-submit, whose JVM is not ours to replace, or the
            properties cannot be handed over.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            raise StartError("under spark-submit; start headrace by itself, and give it a master")
        self.conf = SparkConf(loadDefaults=False)
        for name, value in properties.items():
            self.conf.set(name, value)
        output, theirs = os.pipe()
        self._pump = OutputPump(output)
        self._pump.start()
        try:
            # a JVM that gives up says why on its standard output
            self.gateway = _launched(
                properties, {"start_new_session": True, "stdout": theirs, "stderr": theirs}
            )
        finally:
            os.close(theirs)
        self.process = cast("subprocess.Popen[bytes]", self.gateway.proc)
        signals = self.gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)

    @property
    def is_running(self) -> bool:
        """Return whether the process lives. Does not block."""
        return self.process.poll() is None

    def close(self, seconds: float) -> None:
        """End the process: by closing its standard input, by SIGKILL after ``seconds``."""
        with suppress(Exception):
            self.gateway.shutdown()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning("spark_killed", pid=self.process.pid, after=seconds)
            self.process.kill()
            self.process.wait()
        self._pump.finish(1)


def _launched(properties: Mapping[str, str], options: Mapping[str, Any]) -> ClientServer:
    """Start a JVM with the properties by spark-submit. Blocks until it is ready, or ends."""
    launch: Callable[..., ClientServer] = launch_gateway
    with _files(properties) as files, ExitStack() as resources:
        resources.enter_context(_submit_args(f"--properties-file {_path(files[1])}"))
        given = _PopenOptions({**options, "pass_fds": files}, resources.close)
        return launch(popen_kwargs=given)


class _PopenOptions(dict[str, Any]):
    """Options of a process. Calls ``read`` when pyspark has read the environment: it adds it.

    From then on pyspark waits for the JVM, for as long as that takes.
    """

    def __init__(self, options: Mapping[str, Any], read: Callable[[], None]) -> None:
        super().__init__(options)
        self._read = read

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "env":
            self._read()


@contextmanager
def _submit_args(ours: str) -> Iterator[None]:
    """Set pyspark's arguments for spark-submit, before those of the environment.

    For one thread at a time, since there is one environment.
    """
    with _ENVIRONMENT:
        theirs = os.environ.get(_SUBMIT_ARGS)
        if theirs is not None and "--properties-file" in theirs:
            raise StartError(
                f"{_SUBMIT_ARGS} has --properties-file, which is how the properties of this "
                "process are handed over; name those of the file in spark.properties"
            )
        after = _NO_ARGS if theirs is None else theirs
        os.environ[_SUBMIT_ARGS] = f"{ours} --load-spark-defaults {after}"
        try:
            yield
        finally:
            if theirs is None:
                os.environ.pop(_SUBMIT_ARGS, None)
            else:
                os.environ[_SUBMIT_ARGS] = theirs


@contextmanager
def _files(properties: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Write the JVM's options and the properties to files for spark-submit, for the block.

    They are in memory and have no name; only this user may open them, through ``/proc``. After the
    block they are empty, also for a JVM that still has them open.
    """
    shown, hidden = _jvm_options(properties)
    options, submitted = os.memfd_create("java-options"), os.memfd_create("spark-properties")
    try:
        _fill(options, "\n".join(map(_java_argument, hidden)))
        given = {name: value for name, value in properties.items() if name not in _JVM_OPTIONS}
        given[_JVM_OPTIONS[1]] = shlex.join([*shown, f"@{_path(options)}"])
        _fill(submitted, "\n".join(f"{_escaped(n)}={_escaped(v)}" for n, v in given.items()))
        yield options, submitted
    finally:
        for file in (options, submitted):
            os.ftruncate(file, 0)
            os.close(file)


def _jvm_options(properties: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the options that the command line may show, and the others."""
    options: list[str] = []
    for name in _JVM_OPTIONS:
        try:
            options += shlex.split(properties.get(name, ""))
        except ValueError as error:
            raise StartError(
                f"{name} cannot be divided into options: {error}; close the quotation mark"
            ) from error
    shown = [option for option in options if option.startswith(_SHOWN)]
    return shown, [option for option in options if not option.startswith(_SHOWN)]


def _java_argument(option: str) -> str:
    """Return the option as a line of a file of the ``java`` command's arguments."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return '"{}"'.format(escaped.replace("\n", "\\n").replace("\r", "\\r"))


def _escaped(text: str) -> str:
    """Return a property's name or value as it stands in a file of properties."""
    return _UNUSUAL.sub(_units, text)


def _units(character: re.Match[str]) -> str:
    encoded = character[0].encode("utf-16-be")
    return "".join(f"\\u{encoded[n : n + 2].hex()}" for n in range(0, len(encoded), 2))


def _fill(file: int, text: str) -> None:
    os.fchmod(file, 0o600)
    with os.fdopen(file, "w", encoding="utf-8", closefd=False) as stream:
        stream.write(text)


def _path(file: int) -> str:
    """Return the path at which a child that inherits the file opens it."""
    return f"/proc/self/fd/{file}"


def forget_session() -> None:
    """Make pyspark forget a dead JVM, so that the next session can be built in this process.

    pyspark keeps gateway, context and session in class attributes, and every UDF keeps its
    counterpart in the JVM: those must go too, or a reducer's module would call into the old one.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 - no public way
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
    for function in gc.get_objects():
        if type(function) is UserDefinedFunction:  # isinstance would wake up lazy proxies
            function._judf_placeholder = None  # noqa: SLF001

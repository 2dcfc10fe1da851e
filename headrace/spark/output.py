"""What the JVM and its Python workers write, as log events: log4j's lines, and all others."""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import structlog

from headrace.logs import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._left_out = 0
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
            left_out, self._left_out = self._left_out - len(lines), 0
        for line in lines:
            _write(line, max(0, left_out))
            left_out = 0

    def _run(self) -> None:
        with os.fdopen(self._descriptor, encoding="utf-8", errors="replace") as stream:
            for line in _lines(stream):
                self._take(line)

    def _take(self, line: str) -> None:
        with self._lock:
            if not self._budget.admit():
                self._held_back.append(line)
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._held_back.clear()
        _write(line, left_out)


def _lines(stream: Any) -> Iterator[str]:
    """Yield what there is to log; a line without an end comes in pieces."""
    while line := stream.readline(_LINE):
        text = line.rstrip()
        if text and not text.startswith(_NOISE):
            yield text


def _write(line: str, left_out: int) -> None:
    counted = {"left_out": left_out} if left_out else {}
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

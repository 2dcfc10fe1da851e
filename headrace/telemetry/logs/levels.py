"""The least severity that is logged, by logger, while the process runs."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


#: Loggers of the libraries in the process, and the least level of those that say too much at the
#: one that suits our own events. Under ``spark`` are those of Spark's JVM, which warns at every
#: start of what is as it should be, and logs an error for what it also raises.
LIBRARIES = {
    "anyio": logging.NOTSET,
    "asyncio": logging.NOTSET,
    "concurrent": logging.NOTSET,
    "confluent_kafka": logging.NOTSET,
    "deltalake": logging.NOTSET,
    "fastapi": logging.NOTSET,
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "kazoo": logging.WARNING,
    "opentelemetry": logging.WARNING,
    "psycopg": logging.NOTSET,
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "rich": logging.NOTSET,
    "spark": logging.ERROR,
    "sqlalchemy": logging.NOTSET,
    "urllib3": logging.WARNING,
    "uvicorn": logging.WARNING,
    "watchfiles": logging.WARNING,
}

QUIET = {name: least for name, least in LIBRARIES.items() if least != logging.NOTSET}


def is_library(logger: str) -> bool:
    """Return whether a logger is one of the libraries'."""
    return logger.partition(".")[0] in LIBRARIES


def claim(record: logging.LogRecord) -> None:
    """Assign a line that a library logged to the root logger, as py4j does, to its own."""
    if record.name == "root":
        library = next((part for part in Path(record.pathname).parts if part in LIBRARIES), None)
        record.name = library or record.name


def take_over() -> None:
    """Route what libraries' loggers would write by themselves to the root logger."""
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


#: The severities by name, the least first.
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_lock = Lock()
_chosen: dict[str, int] = {}
_listeners: list[Callable[[str, int | None], None]] = []


def set_level(level: str | None, logger: str | None = None) -> None:
    """Log from ``level`` (debug, info, warning, error) on, of one logger or of the whole process.

    A logger's level counts for those below it (``headrace`` for ``headrace.channel``, ``kazoo``,
    ``spark`` for Spark's JVM, ``spark.org.apache.spark.sql``) and wins over that of the process.
    With None for its level a logger goes by the process again; libraries are then kept to what
    matters, whatever the level of the process is. Any thread; with Spark it may block for a call
    to the JVM.

    Raises:
        ValueError: there is no such level, or no logger is named whose level is to be forgotten.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"{level!r} is no log level; take one of {', '.join(LEVELS)}")
    if level is None and not logger:
        raise ValueError("the process has to have a log level; name a logger")
    number = None if level is None else LEVELS[level]
    with _lock:
        if logger:
            _choose(logger, number)
        else:
            assert number is not None
            logging.getLogger().setLevel(number)
        for name, least in QUIET.items():
            if name not in _chosen:
                logging.getLogger(name).setLevel(max(logging.getLogger().level, least))
        listeners = tuple(_listeners)
    for listener in listeners if logger else ():
        listener(logger or "", number)


def _choose(logger: str, number: int | None) -> None:
    if number is None:
        _chosen.pop(logger, None)
    else:
        _chosen[logger] = number
    logging.getLogger(logger).setLevel(logging.NOTSET if number is None else number)


def levels() -> dict[str, str]:
    """Return the level of the process, under "", and those that loggers were given. Any thread."""
    names = {number: name for name, number in LEVELS.items()}
    with _lock:
        found = {"": logging.getLogger().level, **_chosen}
    return {logger: names.get(number, str(number)) for logger, number in found.items()}


def listen(callback: Callable[[str, int | None], None]) -> None:
    """Call ``callback`` with each logger's level, now with those set before.

    For logs that are written elsewhere, such as in Spark's JVM. It is called on the thread that
    sets the level, with the logger and the level's number, or None for the logger's default.
    """
    with _lock:
        _listeners.append(callback)
        chosen = dict(_chosen)
    for logger, number in chosen.items():
        callback(logger, number)


def unlisten(callback: Callable[[str, int | None], None]) -> None:
    """Remove ``callback``."""
    with _lock:
        if callback in _listeners:
            _listeners.remove(callback)


def forget_levels() -> None:
    """Reset every logger to the process's level, as at the start."""
    with _lock:
        for logger in tuple(_chosen):
            _choose(logger, None)

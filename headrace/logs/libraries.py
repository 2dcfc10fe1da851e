"""The libraries whose log lines come through our pipe, and how loud they may be."""

from __future__ import annotations

import logging
from pathlib import Path

#: Loggers of the libraries in the process. Under ``spark`` are those of Spark's JVM.
LIBRARIES = (
    "anyio",
    "asyncio",
    "concurrent",
    "confluent_kafka",
    "deltalake",
    "fastapi",
    "httpcore",
    "httpx",
    "kazoo",
    "opentelemetry",
    "psycopg",
    "py4j",
    "pyspark",
    "rich",
    "spark",
    "sqlalchemy",
    "urllib3",
    "uvicorn",
    "watchfiles",
)

#: Those that say too much at the level that suits our own events. Spark's JVM warns at every
#: start of what is as it should be, and logs an error for what it also raises.
QUIET = {
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "kazoo": logging.WARNING,
    "opentelemetry": logging.WARNING,
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "spark": logging.ERROR,
    "urllib3": logging.WARNING,
    "uvicorn": logging.WARNING,
    "watchfiles": logging.WARNING,
}


def is_library(logger: str) -> bool:
    """Whether a logger is one of the libraries'."""
    return logger.partition(".")[0] in LIBRARIES


def claim(record: logging.LogRecord) -> None:
    """Give a line that a library wrote to the root logger, as py4j does, to the library's own."""
    if record.name == "root":
        library = next((part for part in Path(record.pathname).parts if part in LIBRARIES), None)
        record.name = library or record.name


def take_over() -> None:
    """Have the libraries' loggers hand on to the root what they would write by themselves."""
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True

"""Logging of the process: one pipe for our own events and those of the libraries."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor

    from headrace.config import LoggingConfig

#: Libraries that say too much at the level that suits our own events.
_QUIET = {"kazoo": logging.WARNING, "py4j": logging.WARNING, "pyspark": logging.WARNING}


def configure_logging(config: LoggingConfig) -> None:
    """Send everything to standard error as JSON lines, or in columns for people.

    Called once, before the first event; libraries that log through ``logging`` take the same way.
    """
    level = _level(config)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(config),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, least))


def _level(config: LoggingConfig) -> int:
    levels = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
    return levels[config.level]


def _renderers(config: LoggingConfig) -> list[Processor]:
    for_people = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    if for_people:
        # the renderer's own tracebacks show local variables, and with them what is secret
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]

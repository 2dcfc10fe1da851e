"""The pipe: from whoever says something to standard error."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

from headrace.logs.context import merge_bound
from headrace.logs.levels import forget_levels, set_level
from headrace.logs.libraries import is_library, take_over
from headrace.logs.limit import RepeatFilter
from headrace.logs.recent import keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

    from headrace.config import LoggingConfig


def configure_logging(config: LoggingConfig) -> None:
    """Send everything to standard error as JSON lines, or in columns for people.

    Called once, before the first event; libraries and the user's code that log through
    ``logging`` take the same way. What a worker works for, and fields that the user's code binds
    with ``structlog.contextvars``, are in every line that the thread logs.
    """
    shared: list[Processor] = [
        merge_bound,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            keep,
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.getLogger().handlers[:] = [_handler(config, shared)]
    take_over()
    forget_levels()
    set_level(config.level)


def _handler(config: LoggingConfig, shared: Sequence[Processor]) -> logging.Handler:
    """Return what writes the lines; ``shared`` is done to those of libraries too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _name_library_lines, *shared],
            processors=[
                _add_repeated,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(config),
            ],
        )
    )
    return handler


def _name_library_lines(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Give a library's line, which is any text, a stable name and keep the text as detail."""
    event.pop("color_message", None)  # uvicorn's text for terminals
    if is_library(event["_record"].name):
        event["detail"], event["event"] = event["event"], "library_log"
    return event


def _add_repeated(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Say how many lines like this one were held back before it."""
    repeated = getattr(event["_record"], "repeated", 0)
    if repeated:
        event["repeated"] = repeated
    return event


def _renderers(config: LoggingConfig) -> list[Processor]:
    for_people = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    if for_people:
        # the renderer's own tracebacks show local variables, and with them what is secret
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]

"""What Python itself would write to standard error, as events: warnings, and errors uncaught."""

from __future__ import annotations

import faulthandler
import sys
import threading
import warnings
from typing import TYPE_CHECKING, TextIO

import structlog

if TYPE_CHECKING:
    from types import TracebackType

log = structlog.get_logger(__name__)


def install_hooks() -> None:
    """Log warnings, and what ends a thread or is raised where nobody can catch it.

    For the daemon, once, after ``configure_logging``. A crash of the interpreter itself, as by a
    fault in a C library, has Python write the stacks of all threads to standard error.
    """
    faulthandler.enable()
    # a warnings filter of the user's (python -W, PYTHONWARNINGS) stands as it is
    warnings.showwarning = _on_warning
    threading.excepthook = _on_thread_error
    sys.excepthook = _on_error
    sys.unraisablehook = _on_unraisable


def _on_warning(  # noqa: PLR0917 - as Python calls it
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Log a warning; Python hands each on once for the line that gives it."""
    log.warning(
        "python_warning", detail=str(message), category=category.__name__, at=f"{filename}:{lineno}"
    )


def _on_thread_error(arguments: threading.ExceptHookArgs) -> None:
    """Log what ended a thread; SystemExit is a way to end one."""
    if issubclass(arguments.exc_type, SystemExit):
        return
    name = arguments.thread.name if arguments.thread else "unknown"
    log.error("thread_died", thread=name, exc_info=_info(arguments))


def _on_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Log what ends the main thread."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    log.error("main_thread_died", exc_info=(kind, error, traceback))


def _on_unraisable(arguments: sys.UnraisableHookArgs) -> None:
    """Log what was raised where there is no caller, as in a finalizer."""
    log.warning("unraisable_error", where=repr(arguments.object), exc_info=_info(arguments))


def _info(
    arguments: threading.ExceptHookArgs | sys.UnraisableHookArgs,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    error = arguments.exc_value or arguments.exc_type()
    return arguments.exc_type, error, arguments.exc_traceback

"""What the threads of the process are doing."""

from __future__ import annotations

import sys
import threading
import traceback

import structlog

log = structlog.get_logger(__name__)


def thread_stacks() -> dict[str, list[str]]:
    """Return by thread the calls it is in, the outermost first, each as ``file:line function``.

    Threads that Python knows no name of have their number for one, and so have, behind it, those
    whose name another one has too. Any thread; does not block.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks: dict[str, list[str]] = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented in the library reference
        name = names.get(ident, f"thread-{ident}")
        stacks[f"{name} {ident}" if name in stacks else name] = _calls(frame)
    return stacks


def log_stacks(because: str) -> None:
    """Log one event for each thread. Any thread; blocks for the log only."""
    stacks = thread_stacks()
    log.info("stack_dump", because=because, threads=len(stacks))
    for name, calls in sorted(stacks.items()):
        log.info("thread_stack", thread=name, calls=calls)


def stack_of(ident: int | None) -> list[str]:
    """Return the calls that one thread is in; none where it has ended."""
    frames = sys._current_frames()  # noqa: SLF001 - as above
    return _calls(frames[ident]) if ident in frames else []


def _calls(frame: object) -> list[str]:
    stack = traceback.extract_stack(frame)  # type: ignore[arg-type]  # a frame; the library has no name for it
    return [f"{call.filename}:{call.lineno} {call.name}" for call in stack]

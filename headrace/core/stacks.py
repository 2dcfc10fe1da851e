"""The stacks of the process's threads: what they are doing."""

from __future__ import annotations

import sys
import threading
import traceback

import structlog

log = structlog.get_logger(__name__)


def thread_stacks() -> dict[str, list[str]]:
    """Return by thread the calls it is in, the outermost first, each as ``file:line function``.

    Threads that Python knows no name of have their number for one, and so have, after it, those
    whose name another one has too. Any thread; does not block.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks: dict[str, list[str]] = {}
    for ident, calls in _all_calls().items():
        name = names.get(ident, f"thread-{ident}")
        stacks[f"{name} {ident}" if name in stacks else name] = calls
    return stacks


def log_stacks(reason: str) -> None:
    """Log one event for each thread. Any thread; blocks for the log only."""
    stacks = thread_stacks()
    log.info("stack_dump", reason=reason, threads=len(stacks))
    for name, calls in sorted(stacks.items()):
        log.info("thread_stack", thread=name, calls=calls)


def stack_of(ident: int | None) -> list[str]:
    """Return the calls that one thread is in; none where it has ended."""
    return [] if ident is None else _all_calls(ident).get(ident, [])


def _all_calls(only: int | None = None) -> dict[int, list[str]]:
    """Return the calls by the threads' numbers, of one thread or of all.

    The frame of this very call is among the frames. A reference to them that it kept would keep
    all frames alive, with what each thread has in hand, until the cyclic collector comes.
    """
    frames = sys._current_frames()  # noqa: SLF001 - documented in the library reference
    try:
        chosen = frames if only is None else frames.keys() & {only}
        return {
            ident: [
                f"{call.filename}:{call.lineno} {call.name}"
                for call in traceback.extract_stack(frames[ident])
            ]
            for ident in chosen
        }
    finally:
        frames.clear()

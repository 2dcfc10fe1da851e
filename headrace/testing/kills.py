"""Killing a process at every line that a sink runs, one process after the other."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from headrace.core.columns import load_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType, ModuleType
    from typing import Any


def killed_at_every_line(
    prepare: Callable[[int], Callable[[], object]],
    modules: Collection[ModuleType],
    *,
    first: int = 0,
    step: int = 1,
    passes: int | None = None,
) -> int:
    """Fork processes that do one piece of work, each killed ``step`` lines later than the last.

    ``prepare`` gets the number of the process, from ``first`` on, which is that of the line it is
    killed at, and returns its work. With a ``step`` several of these can share the lines. It is
    called in the new process, and is the place to look at what those before left behind: an
    exception in it, or in the work, ends the whole. Lines of ``modules`` count, on all threads
    that the work starts, and each of them no more than ``passes`` times where that is given, as
    for long loops. Return the number of the process that came to its end. Blocks; the
    calling process should have no other thread and no client, because neither goes through a fork,
    and should have imported what the work would import when it first needs it: each process would
    do that again. What Arrow needs so is loaded here.

    Raises:
        AssertionError: a process failed; its traceback is on standard error.
    """
    load_pandas()
    files = {module.__file__ for module in modules}
    number = first
    while True:
        pid = os.fork()
        if pid == 0:
            _work_until(prepare, _Killer(number, files, passes), number)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise AssertionError(f"process {number} failed")
            return number
        number += step


def _work_until(
    prepare: Callable[[int], Callable[[], object]], killer: _Killer, number: int
) -> None:
    try:
        work = prepare(number)
        with killer:
            work()
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it is
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class _Killer:
    """Counts lines, and kills the process at one of them. Any thread."""

    def __init__(self, left: int, files: Collection[str | None], passes: int | None) -> None:
        self._left = left
        self._files = files
        self._passes = passes
        self._passed: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        threading.settrace(self._called)
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        del event
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            with self._lock:
                if self._counts(frame.f_code.co_filename, frame.f_lineno):
                    if self._left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    self._left -= 1
        return self._line

    def _counts(self, file: str, line: int) -> bool:
        self._passed[file, line] += 1
        return self._passes is None or self._passed[file, line] <= self._passes

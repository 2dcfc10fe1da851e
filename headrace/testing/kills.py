"""Killing a process at every line or effect of its work, one process after the other."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from typing import TYPE_CHECKING

from headrace.core.columns import load_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import CodeType, FrameType, ModuleType
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
    files = {module.__file__ for module in modules}
    return _kill_one_after_another(prepare, partial(_LineKiller, files, passes), first, step)


def killed_at_every_effect(
    prepare: Callable[[int], Callable[[], object]],
    effects: Effects,
    *,
    first: int = 0,
    step: int = 1,
    passes: int | None = None,
) -> int:
    """Fork processes as :func:`killed_at_every_line` does, each killed at a later effect.

    Nothing between two effects can be seen by others, so this finds what a kill at any line would,
    with far fewer processes. Each effect counts twice: before it, and once it has come back.
    ``passes``: each place that has one counts no more often than that.

    Raises:
        AssertionError: a process failed; its traceback is on standard error.
    """
    return _kill_one_after_another(prepare, partial(_EffectKiller, effects, passes), first, step)


#: Methods of Kafka's clients that change something on the brokers, or may.
CHANGING = frozenset(
    {
        "abort_transaction",
        "alter_configs",
        "alter_consumer_group_offsets",
        "begin_transaction",
        "commit",
        "commit_transaction",
        "create_partitions",
        "create_topics",
        "delete_consumer_groups",
        "delete_records",
        "delete_topics",
        "flush",
        "incremental_alter_configs",
        "init_transactions",
        "produce",
        "send_offsets_to_transaction",
    }
)


@dataclass(frozen=True)
class Effects:
    """The effects of a process on others: calls of compiled clients, and of functions of ours.

    ``clients`` are the classes of compiled clients, and ``methods`` those of them that change
    something; ``functions`` are those of ours that change something on a server or a disk.
    """

    clients: tuple[type, ...] = ()
    functions: tuple[Callable[..., object], ...] = ()
    methods: frozenset[str] = CHANGING

    def codes(self) -> frozenset[CodeType]:
        """Return the code of the functions."""
        return frozenset(unwrap(each).__code__ for each in self.functions)


def _kill_one_after_another(
    prepare: Callable[[int], Callable[[], object]],
    killer: Callable[[int], _Killer],
    first: int,
    step: int,
) -> int:
    load_pandas()
    number = first
    while True:
        pid = os.fork()
        if pid == 0:
            _work_until(prepare, killer(number), number)
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
    """Counts places, and kills the process at one of them. Any thread."""

    def __init__(self, passes: int | None, left: int) -> None:
        self._left = left
        self._passes = passes
        self._passed: Counter[object] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError

    def _pass_place(self, place: object) -> None:
        """Count a place that was reached, or end there."""
        with self._lock:
            self._passed[place] += 1
            if self._passes is not None and self._passed[place] > self._passes:
                return
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


class _LineKiller(_Killer):
    """Counts lines of files."""

    def __init__(self, files: Collection[str | None], passes: int | None, left: int) -> None:
        super().__init__(passes, left)
        self._files = files

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
            self._pass_place((frame.f_code.co_filename, frame.f_lineno))
        return self._line


class _EffectKiller(_Killer):
    """Counts effects, before and after each."""

    def __init__(self, effects: Effects, passes: int | None, left: int) -> None:
        super().__init__(passes, left)
        self._effects = effects
        self._codes = effects.codes()

    def __enter__(self) -> None:
        threading.setprofile(self._noted)
        sys.setprofile(self._noted)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _noted(self, frame: FrameType, event: str, called: Any) -> None:
        if event in {"call", "return"}:
            if frame.f_code in self._codes:
                self._pass_place((event, frame.f_code))
            return
        named = called.__name__ in self._effects.methods
        if named and isinstance(called.__self__, self._effects.clients):
            self._pass_place((event, called.__name__, frame.f_code, frame.f_lineno))

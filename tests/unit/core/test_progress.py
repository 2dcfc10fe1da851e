"""Whether processes that are waited for still work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from headrace.core import progress
from headrace.core.clock import Deadline
from headrace.core.progress import Silence, own_processor_time, processor_time, signs_of_work
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE = 60.0


class _Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60))
def test_silence_is_over_only_after_its_limit_without_a_sign(
    looks: list[tuple[float, bool]],
) -> None:
    """Silence ends no sooner than its limit after the last sign."""
    clock, done = _Clock(), 0

    silence = Silence(lambda: done, 20.0, clock)
    since = 0.0
    for passed, worked in looks:
        clock.now += passed
        done += worked
        over = silence.is_over()
        since = clock.now if worked else since
        assert not over or clock.now - since >= 20.0


def test_silence_ends_where_nothing_moves() -> None:
    """Looked at each second, it is over after its limit, and not before."""
    clock = _Clock()
    silence = Silence(lambda: 0, 20.0, clock)
    seen = []
    for _ in range(20):
        clock.now += 1.0
        seen.append(silence.is_over())
    assert seen == [False] * 19 + [True]


def test_a_machine_that_stood_still_is_no_silence() -> None:
    """An hour between two looks, as of a laptop that slept, is not one in which others worked."""
    clock = _Clock()
    silence = Silence(lambda: 0, 20.0, clock)
    clock.now = 3600.0
    assert not silence.is_over()


def test_a_process_shows_its_work_and_that_of_its_children() -> None:
    """Computing in a grandchild counts as work, and waiting does not."""
    burn = "while True: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    with (
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as busy,
        subprocess.Popen(["sleep", "600"]) as idle,
    ):
        try:
            signs = signs_of_work([busy.pid])
            first = signs()
            assert wait_for(lambda: signs() != first, Deadline.after(PATIENCE))
            assert processor_time(busy.pid, itself=False) > 0
            assert processor_time(idle.pid) < progress._WORK_S
        finally:
            os.killpg(busy.pid, 9)
            idle.kill()


def test_a_written_file_is_a_sign_of_work(tmp_path: Path) -> None:
    """A growing file counts, and a new one below a folder; a missing one does not."""
    log, folder = tmp_path / "log", tmp_path / "folder"
    signs = signs_of_work(files=[log, folder])
    seen = [signs()]
    log.write_text("a line\n", encoding="utf-8")
    seen.append(signs())
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "part").write_bytes(b"12")
    seen.append(signs())
    assert seen == [(0, 0, 0), (7, 0, 0), (7, 2, 0)]


def test_a_process_that_is_gone_is_no_error() -> None:
    """It has no processor time."""
    with subprocess.Popen(["true"]) as done:
        done.wait()
    assert processor_time(done.pid) == 0.0


def test_another_thread_is_told_what_one_has_used() -> None:
    """The processor time is that of the thread alone, while it runs."""
    told: list[Callable[[], float]] = []
    has_worked, is_over = threading.Event(), threading.Event()

    def work() -> None:
        told.append(own_processor_time())
        while time.thread_time() < 0.2:
            pass
        has_worked.set()
        is_over.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_worked.wait(PATIENCE)
    assert told[0]() >= 0.2
    used, begin = told[0](), time.thread_time()
    while time.thread_time() < begin + 0.2:
        pass
    assert told[0]() < used + 0.1
    is_over.set()
    thread.join(PATIENCE)

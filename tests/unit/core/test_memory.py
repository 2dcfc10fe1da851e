"""How many arenas the C library has for the process's threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.memory import ARENAS

_ROOT = Path(__file__).parents[3]

#: Takes memory on eight threads that are all alive, and prints how many arenas there are and
#: whether anything was changed.
_SCRIPT = """
import ctypes, sys, threading
from headrace.core.memory import limit_arenas

changed = limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)

def take():
    together.wait(20)
    libc.malloc(1000)
    together.wait(20)

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(changed, flush=True)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)


def _run(**environment: str) -> tuple[str, int]:
    """Return what the script says was changed, and how many arenas it has."""
    kept = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**kept, "PYTHONPATH": str(_ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    changed, _, info = done.stdout.partition("\n")
    return changed, info.count("<heap nr=")


def test_threads_share_two_arenas() -> None:
    """Eight threads at once have no more arenas than were allowed."""
    assert _run() == ("True", ARENAS)


def test_the_users_own_number_stays() -> None:
    """A number in MALLOC_ARENA_MAX is left alone."""
    assert _run(MALLOC_ARENA_MAX="5") == ("False", 5)

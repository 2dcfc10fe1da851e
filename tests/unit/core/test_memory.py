"""Memory of the process that goes back to the system, or to its other threads."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from headrace.core import memory
from headrace.core.memory import ARENAS, GarbageCollector

_ROOT = Path(__file__).parents[3]

#: Takes memory on eight threads that are all alive, then a block of 1 MiB after a larger one was
#: freed, and prints the arenas, whether the block is mapped by itself, and Arrow's allocator.
_SCRIPT = """
import ctypes, json, os, sys, threading
import pyarrow
from headrace.core.memory import limit_memory

limit_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
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

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                 "uordblks", "fordblks", "keepcost")]

libc.mallinfo.restype = Usage
libc.free(libc.malloc(8 << 20))
before = libc.mallinfo().hblks
libc.malloc(1 << 20)
found = {"mapped": libc.mallinfo().hblks > before,
         "arrow": pyarrow.default_memory_pool().backend_name}
print(json.dumps(found), flush=True)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)


def _run(**environment: str) -> dict[str, Any]:
    """Return what the script prints, and how many arenas it has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    for name in ("ARROW_DEFAULT_MEMORY_POOL", "GLIBC_TUNABLES"):
        kept.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**kept, "PYTHONPATH": str(_ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found, _, info = done.stdout.partition("\n")
    return {**json.loads(found), "arenas": info.count("<heap nr=")}


def test_memory_that_is_freed_does_not_stay_with_threads() -> None:
    """Eight threads share two arenas, large blocks are mapped by themselves, and so is Arrow's."""
    assert _run() == {"arenas": ARENAS, "mapped": True, "arrow": "system"}


def test_limits_of_memory_that_the_environment_sets_are_kept() -> None:
    """Numbers and an allocator that the user chose are left alone."""
    found = _run(
        MALLOC_ARENA_MAX="5",
        MALLOC_MMAP_THRESHOLD_="33554432",
        ARROW_DEFAULT_MEMORY_POOL="mimalloc",
    )
    assert found == {"arenas": 5, "mapped": False, "arrow": "mimalloc"}


def test_limits_of_memory_that_tunables_of_glibc_set_are_kept() -> None:
    """Tunables are the other way to say the same numbers."""
    tunables = "glibc.malloc.arena_max=5:glibc.malloc.mmap_threshold=33554432"
    found = _run(GLIBC_TUNABLES=tunables)
    assert found == {"arenas": 5, "mapped": False, "arrow": "system"}


def test_free_memory_goes_back_while_no_claim_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that owns the same partitions for months returns what is free all the same."""
    returned = Event()
    monkeypatch.setattr(memory, "_GIVING_BACK", 0.001)
    monkeypatch.setattr(memory, "give_back", returned.set)
    with GarbageCollector(set).running():
        assert returned.wait(20)

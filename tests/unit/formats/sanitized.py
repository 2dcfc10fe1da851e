"""Programs that run with the part in C as the compiler's sanitizers watch it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.formats.native import library

_ROOT = Path(__file__).parents[3]
_OPTIONS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def require_clean(program: str, folder: Path, *arguments: str) -> None:
    """Run a program of Python with a sanitized library, and expect that it comes to its end.

    Its first argument is the library, which is made in ``folder``; then come the others. It prints
    ``done``. The test is skipped where the compiler has no sanitizers.
    """
    compiled = folder / "libsanitized.so"
    sources = sorted(library.PATH.parent.glob("*.c"))
    made = subprocess.run(
        ["cc", *_OPTIONS, "-shared", "-fPIC", "-o", compiled, *sources, "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"the compiler has no sanitizers: {made.stderr.strip()[-200:]}")
    sanitizers = [
        subprocess.check_output(["cc", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(sanitizers),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, compiled, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=_ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]

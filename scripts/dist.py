"""Make what is published: wheels for each platform, one without compiled parts, and an sdist.

    .venv/bin/python scripts/dist.py

The wheels are made of the sdist, in a folder of their own, so that what it lacks is seen. The part
in C is compiled for each platform by zig, whose package brings libraries of all: those of Linux are
of a glibc that is old enough for manylinux2014. The manual pages are written before, into ``man``.
auditwheel and twine say whether all is as it has to be. Exit code: 0 it is; 1 it is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import man

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

#: The platforms of a wheel's tag, to zig's target; None: without the part in C.
PLATFORMS = {
    "manylinux2014_x86_64.manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64.manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_10_15_x86_64": "x86_64-macos.10.15",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "any": None,
}


def main() -> int:
    """Make all of them in ``dist``, in place of what was there; return the exit code."""
    shutil.rmtree(DIST, ignore_errors=True)
    man.write(man.FOLDER)
    try:
        build("sdist", ROOT, {})
        (sdist,) = DIST.glob("*.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            (source,) = Path(folder).iterdir()
            for platform, target in PLATFORMS.items():
                build("wheel", source, environment(platform, target))
        files = sorted(DIST.iterdir())
        python("twine", "check", "--strict", *files)
        for wheel in files:
            if "manylinux" in wheel.name:
                python("auditwheel", "show", wheel)
    except subprocess.CalledProcessError as error:
        print(f"this failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.relative_to(ROOT)}")
    return 0


def environment(platform: str, target: str | None) -> dict[str, str]:
    """Return what tells the build for which platforms to compile, and with what."""
    if target is None:
        return {"HEADRACE_WHEEL_PLATFORM": platform}
    compiler = f"{sys.executable} -m ziglang cc -target {target} -g0"
    return {"HEADRACE_WHEEL_PLATFORM": platform, "CC": compiler}


def build(kind: str, source: Path, more: dict[str, str]) -> None:
    """Have hatchling make an sdist or a wheel of a folder, without fetching anything."""
    python("hatchling", "build", "--target", kind, "--directory", DIST, folder=source, more=more)


def python(
    module: str, *arguments: str | Path, folder: Path = ROOT, more: dict[str, str] | None = None
) -> None:
    """Run a module of this environment; raises CalledProcessError."""
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | (more or {}))


if __name__ == "__main__":
    sys.exit(main())

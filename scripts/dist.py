"""Make what is published: wheels for each platform, one without compiled parts, and an sdist.

    .venv/bin/python scripts/dist.py

The wheels are made of the sdist, in a folder of their own, so that what it lacks is seen. The parts
in C are compiled for each platform by zig, whose package brings libraries of all: those of Linux
are of a glibc that is old enough for manylinux2014. The manual pages are written before, into
``man``. twine says whether an index can show them. Of each wheel the parts in C have to be there
and of the platforms of its name, by its first bytes, and those of Linux of the promised glibc, as
auditwheel finds. Exit code: 0 all is so; 1 it is not.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import man

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

#: The platforms of a wheel's tag, to zig's target; None: without the parts in C.
PLATFORMS = {
    "manylinux2014_x86_64.manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64.manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_10_15_x86_64": "x86_64-macos.10.15",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "any": None,
}

#: How many parts are compiled, as in hatch_build.py.
PARTS = 2

#: What a library of macOS begins with, and the machines that follow, in the words of wheels.
MACH_O = 0xFEEDFACF
MACH_O_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}

#: The same for Linux, behind the first 18 bytes.
ELF_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}


#: What is said of an archive of our own; Python 3.11.3 and earlier have no such word.
_FILTERED: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def main() -> int:
    """Make all of them in ``dist``, in place of what was there; return the exit code."""
    shutil.rmtree(DIST, ignore_errors=True)
    man.write(man.FOLDER)
    try:
        build("sdist", ROOT, {})
        (sdist,) = DIST.glob("*.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, **_FILTERED)  # noqa: S202 - made a moment ago, here
            (source,) = Path(folder).iterdir()
            for platform, target in PLATFORMS.items():
                build("wheel", source, environment(platform, target))
        files = sorted(DIST.iterdir())
        python("twine", "check", "--strict", *files)
        faults = [fault for file in files if file.suffix == ".whl" for fault in wrong(file)]
    except subprocess.CalledProcessError as error:
        print(f"this failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.relative_to(ROOT)}")
    return 1 if faults else 0


def wrong(wheel: Path) -> Iterator[str]:
    """Yield what a wheel is not that its name says; raises CalledProcessError."""
    named = set(wheel.stem.rpartition("-")[2].split("."))
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    if len(libraries) != PARTS * (named != {"any"}):
        yield f"{wheel.name} has {len(libraries)} compiled parts"
        return
    for system, machine in sorted(set(map(compiled_for, libraries))):
        if not all(tag.startswith(system) and tag.endswith(f"_{machine}") for tag in named):
            yield f"{wheel.name} has a part that was compiled for {system}, {machine}"
        elif system == "manylinux":
            said = python("auditwheel", "show", wheel)
            (found,) = re.findall(r'platform\s+tag:\s+"([^"]+)"', said)
            if not any(is_as_old(found, tag) for tag in named):
                yield f"{wheel.name} is {found} to auditwheel: it takes a newer glibc, or more"


def compiled_for(library: bytes) -> tuple[str, str]:
    """Return the system and the machine of a library, in the words of wheels' names."""
    magic, machine = struct.unpack_from("<II", library)
    if magic == MACH_O:
        return "macosx", MACH_O_MACHINES.get(machine, hex(machine))
    if library.startswith(b"\x7fELF"):
        (machine,) = struct.unpack_from("<H", library, 18)
        return "manylinux", ELF_MACHINES.get(machine, hex(machine))
    return "nothing that is known", hex(magic)


def is_as_old(found: str, promised: str) -> bool:
    """Whether what runs where the platform ``found`` is runs where the promised one is."""
    form = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
    one, other = form.fullmatch(found), form.fullmatch(promised)
    if one is None or other is None or one[3] != other[3]:
        return False
    return (int(one[1]), int(one[2])) <= (int(other[1]), int(other[2]))


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
) -> str:
    """Run a module of this environment, and return what it printed; raises CalledProcessError."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env=os.environ | (more or {})
    ) as process:
        assert process.stdout is not None
        said = "".join(map(shown, process.stdout))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return said


def shown(line: str) -> str:
    """Print a line, and return it."""
    print(line, end="", flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())

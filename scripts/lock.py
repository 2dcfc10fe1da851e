"""Write the lock files in requirements/: exact versions with their hashes, for every platform.

    .venv/bin/python scripts/lock.py [--upgrade]

Without ``--upgrade`` what is locked stays as it is, as far as pyproject.toml allows. The files name
no index, so that any one can serve them, and the versions suit each supported Python.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: File to what goes into it. Later files agree with the earlier ones on what they share.
GROUPS = {
    "run": [
        "pyproject.toml",
        *(f"--extra={name}" for name in ("delta", "keyed", "local", "spark")),
        *("--group", "demo"),
    ],
    "build": ["--group", "build"],
    "test": ["--group", "test"],
    "test-all": ["--group", "test-all"],
    "bench": ["--group", "bench"],
    "dist": ["--group", "dist"],
    "docs": ["--group", "docs"],
    "check": ["--group", "check"],
    # what the images have, with Spark and without
    "image": [
        "pyproject.toml",
        *(f"--extra={name}" for name in ("delta", "keyed", "mysql", "sketches", "spark")),
        *(f"--extra={name}" for name in ("protobuf", "sql", "tracing")),
    ],
    "slim": ["pyproject.toml", "--extra", "keyed"],
}

#: The peers of a benchmark, each with an environment of its own: NAME.in to NAME.lock.
PEERS = Path("benchmarks", "peers", "locks")

OPTIONS = [
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--custom-compile-command=make lock",
    "--quiet",
]


def main(arguments: list[str]) -> None:
    """Write all lock files."""
    uv = Path(sys.executable).parent / "uv"
    earlier: list[str] = []
    command = [str(uv), "pip", "compile", *OPTIONS, *arguments]
    for name, sources in GROUPS.items():
        target = f"requirements/{name}.lock"
        compile_lock([*command, *sources, *earlier], target)
        earlier += ["--constraint", target]
    for source in sorted(ROOT.joinpath(PEERS).glob("*.in")):
        place = PEERS / source.name
        compile_lock([*command, str(place)], str(place.with_suffix(".lock")))


def compile_lock(command: list[str], target: str) -> None:
    """Write one lock file."""
    subprocess.run([*command, "--output-file", target], check=True, cwd=ROOT)
    print(target)


if __name__ == "__main__":
    main(sys.argv[1:])

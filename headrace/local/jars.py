"""Kafka's jars: fetched once per user, checked against the pinned sums at every start."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.local.errors import JarsError
from headrace.local.ivy import Coordinate, fetch
from headrace.local.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KAFKA = Coordinate("org.apache.kafka", "kafka_2.13", "4.3.0")

#: Names the folder for the cache; the default is ``headrace`` in the XDG cache folder.
CACHE_VARIABLE = "HEADRACE_CACHE"

#: Fetching takes half a minute on a good line; after ten something is wrong.
_FETCH_TIMEOUT_S = 600

_SUMS_FILE = Path(__file__).with_name(f"kafka-{KAFKA.revision}.sha256")


def show_on_stderr(step: str) -> None:
    """Show one step of the fetching: on a terminal in place, elsewhere line by line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{step}")
        sys.stderr.flush()
    else:
        sys.stderr.write(f"{step.rstrip()}\n")


def kafka_jars(
    report: Callable[[str], None] = show_on_stderr, deadline: Deadline | None = None
) -> list[Path]:
    """Return the jars of the Kafka broker, fetched first where they are missing or damaged.

    Blocks while they are fetched, by this process or by another one of the same user.

    Raises:
        JarsError: they could not be fetched, or differ from the pinned sums.
    """
    sums = pinned_sums()
    folder = cache_folder(os.environ) / f"kafka-{KAFKA.revision}"
    if damaged(folder, sums):
        _install(folder, sums, report, deadline or Deadline.after(_FETCH_TIMEOUT_S))
    return [folder / name for name in sorted(sums)]


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that holds what is fetched once per user."""
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen).absolute()
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "headrace"
    return Path.home() / ".cache" / "headrace"


def pinned_sums() -> dict[str, str]:
    """Return jar name to SHA-256 sum, from the list in this package (``sha256sum`` format)."""
    lines = _SUMS_FILE.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def damaged(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the names of the jars that are missing from ``folder`` or differ. Takes 50 ms."""
    return [name for name, digest in sums.items() if _digest(folder / name) != digest]


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _install(
    folder: Path, sums: Mapping[str, str], report: Callable[[str], None], deadline: Deadline
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock"), report, deadline):
        if not damaged(folder, sums):
            return
        for abandoned in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as new:
            _fetch_checked(Path(new), sums, report, deadline)
            if folder.exists():
                folder.rename(Path(new, "damaged"))
            Path(new, "jars").rename(folder)


def _fetch_checked(
    folder: Path, sums: Mapping[str, str], report: Callable[[str], None], deadline: Deadline
) -> None:
    total = len(sums)
    report(f"Kafka jars: fetching {KAFKA}, {total} jars, 44 MB, once per user")
    fetch(
        KAFKA,
        folder,
        report=lambda step: report(f"Kafka jars: {step} of {total}"),
        deadline=deadline,
    )
    if wrong := damaged(folder / "jars", sums):
        raise JarsError(
            f"the jars fetched for {KAFKA} are not the pinned ones and were thrown away: "
            f"{', '.join(wrong)}; a mirror may have changed them; the sums are in {_SUMS_FILE}"
        )
    report(f"Kafka jars: {total} jars fetched and checked\n")


@contextmanager
def _locked(path: Path, report: Callable[[str], None], deadline: Deadline) -> Iterator[None]:
    """Hold the file's lock; the operating system frees it with the process that holds it."""
    with path.open("w") as file:
        if not _try_lock(file.fileno()):
            report("Kafka jars: waiting for another process that is fetching them")
            if not wait_for(lambda: _try_lock(file.fileno()), deadline):
                raise JarsError(f"another process still fetches Kafka's jars; it holds {path}")
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

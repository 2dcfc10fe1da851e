"""Fetching jars from Maven Central with the Ivy that pyspark brings: no Maven needed."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.local.errors import JarsError
from headrace.local.jvm import java_command, pick_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from headrace.clock import Deadline

_MAIN = "org.apache.ivy.Main"
_PATTERN = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"

#: Names an Ivy settings file, for machines that reach Maven Central only through a mirror.
SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"

#: How much of Ivy's talk an error message quotes.
_QUOTED_LINES = 12


@dataclass(frozen=True, slots=True)
class Coordinate:
    """What Maven calls an artifact: where it stands, its name and its version."""

    organisation: str
    module: str
    revision: str

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


def fetch(
    coordinate: Coordinate,
    folder: Path,
    *,
    report: Callable[[str], None],
    deadline: Deadline,
) -> None:
    """Put the artifact and all it depends on into ``folder/jars``. Blocks until the deadline.

    Raises:
        JarsError: Ivy failed or was not done in time.
    """
    command = java_command(
        _MAIN,
        ivy_arguments(coordinate, folder, os.environ),
        class_path=pick_jars(["ivy-"]),
        heap="256m",
        flags=["-XX:TieredStopAtLevel=1"],
    )
    said: list[str] = []
    with _output(command, deadline) as lines:
        for line in lines:
            said.append(line.rstrip())
            if step := progress_of(said):
                report(step)
    if not any((folder / "jars").glob("*.jar")) or any("UNRESOLVED" in line for line in said):
        end = "\n".join(said[-_QUOTED_LINES:])
        raise JarsError(
            f"{coordinate} could not be fetched from Maven Central (repo1.maven.org); try again, "
            f"or name an Ivy settings file with a mirror in {SETTINGS_VARIABLE}; Ivy said:\n{end}"
        )


def ivy_arguments(
    coordinate: Coordinate, folder: Path, environment: Mapping[str, str]
) -> list[str]:
    """Return Ivy's arguments for one artifact, with the settings file if one is named."""
    settings = environment.get(SETTINGS_VARIABLE)
    return [
        *(["-settings", settings] if settings else []),
        *("-cache", str(folder / "ivy")),
        *("-dependency", coordinate.organisation, coordinate.module, coordinate.revision),
        *("-confs", "default"),
        *("-retrieve", str(folder / "jars" / _PATTERN)),
    ]


def progress_of(said: list[str]) -> str | None:
    """Return what the last line adds to the progress, None for a line that adds nothing."""
    if said[-1].startswith("\tfound "):
        return f"{_count(said, chr(9) + 'found ')} modules found"
    if "[SUCCESSFUL ]" in said[-1]:
        return f"{_count(said, chr(9) + '[SUCCESSFUL ]')} jars fetched"
    return None


def _count(said: list[str], prefix: str) -> int:
    return sum(line.startswith(prefix) for line in said)


@contextmanager
def _output(command: list[str], deadline: Deadline) -> Iterator[Iterator[str]]:
    """Yield the command's lines as they come; kill it at the deadline or on the way out."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(deadline.remaining, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield iter(process.stdout)
        finally:
            timer.cancel()
            process.kill()

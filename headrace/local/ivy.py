"""Fetching jars from Maven Central with the Ivy that pyspark brings: no Maven needed."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.local.errors import JarsError
from headrace.local.jvm import java_command, pick_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.clock import Deadline

_MAIN = "org.apache.ivy.Main"
_PATTERN = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"

#: Names an Ivy settings file, for machines that reach Maven Central only through a mirror.
SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"

#: How Ivy's lines about one module or one jar begin, and what is told about them.
_MARKS = {"\tfound ": "found", "\t[SUCCESSFUL ]": "fetched"}
_TOLD_EVERY = 5

#: What Ivy says of an address that failed, with the reason in parentheses, and of what is missing.
_ACCESS_ERROR = re.compile(r"Server access error at url .*\((?:[\w.]+: )?(.*)\)$")
_NOT_FOUND = re.compile(r":: (\S+: not found)$")


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
    needs: bool = True,
    report: Callable[[str], None],
    deadline: Deadline,
) -> None:
    """Put the artifact and, if ``needs``, all it depends on into ``folder/jars``.

    Blocks until the deadline.

    Raises:
        JarsError: Ivy failed or was not done in time.
    """
    command = java_command(
        _MAIN,
        ivy_arguments(coordinate, folder, os.environ, needs=needs),
        class_path=pick_jars(["ivy-"]),
        heap="256m",
        flags=["-XX:TieredStopAtLevel=1"],
    )
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if step := progress_of(said):
            report(step)

    if _run(command, hear, deadline) != 0:
        raise JarsError(
            f"{coordinate} could not be fetched from Maven Central: {failure_in(said)}; check the "
            f"network, or name an Ivy settings file with a mirror in {SETTINGS_VARIABLE}, and try "
            "again"
        )


def ivy_arguments(
    coordinate: Coordinate, folder: Path, environment: Mapping[str, str], *, needs: bool = True
) -> list[str]:
    """Return Ivy's arguments for one artifact, with the settings file if one is named."""
    settings = environment.get(SETTINGS_VARIABLE)
    return [
        *(["-settings", settings] if settings else []),
        *("-cache", str(folder / "ivy")),
        *("-dependency", coordinate.organisation, coordinate.module, coordinate.revision),
        *([] if needs else ["-notransitive"]),
        *("-confs", "default"),
        *("-retrieve", str(folder / "jars" / _PATTERN)),
    ]


def progress_of(said: list[str]) -> str | None:
    """Return what to tell after Ivy's last line: every fifth module found, every fifth jar."""
    for mark, what in _MARKS.items():
        if mark in said[-1]:
            count = sum(mark in line for line in said)
            return None if count % _TOLD_EVERY else f"{what} {count}"
    return None


def failure_in(said: Sequence[str]) -> str:
    """Return why Ivy failed: an address that did not answer, else a missing module, or its end."""
    for pattern in (_ACCESS_ERROR, _NOT_FOUND):
        for line in said:
            if match := pattern.search(line):
                return match[1]
    return next((line.strip() for line in reversed(said) if line.strip()), "Ivy said nothing")


def _run(command: list[str], hear: Callable[[str], None], deadline: Deadline) -> int:
    """Run the command, hand over its lines as they come, kill it at the deadline."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(deadline.remaining, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                hear(line.rstrip())
            return process.wait()
        finally:
            timer.cancel()
            process.kill()

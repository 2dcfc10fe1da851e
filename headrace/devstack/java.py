"""The search for Java on this machine. Only the standard library, so set-up scripts can load it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Spark 4 and Kafka 4 both refuse to run on an older one.
MINIMUM_JAVA = 17

#: What ``java -version`` may take; far above the 0.1 s it needs.
_VERSION_TIMEOUT_S = 20

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

#: Where packages and tools put Java, relative to the root folder and to the user's home.
_IN_ROOT = (
    "usr/lib/jvm/*/bin/java",
    "opt/java/*/bin/java",
    "opt/jdk*/bin/java",
    "Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
    "opt/homebrew/opt/openjdk*/bin/java",
)
_IN_HOME = (".sdkman/candidates/java/*/bin/java", ".jdks/*/bin/java")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was run and told its version."""

    path: Path
    version: int

    @property
    def home(self) -> Path:
        """Return what ``JAVA_HOME`` would be for this runtime."""
        return self.path.resolve().parent.parent


def find_java(
    environment: Mapping[str, str] | None = None, minimum: int = MINIMUM_JAVA
) -> Java | None:
    """Return the first Java of at least this version, or None. Blocks while it asks each.

    Looked at in this order: ``JAVA_HOME``, ``PATH``, the folders where packages and tools put it.
    """
    for path in _candidates(os.environ if environment is None else environment):
        version = java_version(path)
        if version is not None and version >= minimum:
            return Java(path, version)
    return None


def java_version(path: Path) -> int | None:
    """Return the major version of the ``java`` at ``path``, None if it cannot be run."""
    try:
        answer = subprocess.run(
            [str(path), "-version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``: 8 for ``1.8.0_402``."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor else major


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in _places(environment):
        if path.is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path)
    yield from _oldest_first(Path("/"), _IN_ROOT)
    if user_home := environment.get("HOME"):
        yield from _oldest_first(Path(user_home), _IN_HOME)


def _oldest_first(root: Path, patterns: Iterable[str]) -> list[Path]:
    """Return what is found, by version: the oldest that will do is what Spark knows best."""
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])

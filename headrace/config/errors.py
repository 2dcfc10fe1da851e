"""The words of configuration errors: places, values, choices and conflicts in sentences."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticCustomError

from headrace.config.expand import Expanded
from headrace.core.processes import default_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import ValidationInfo


#: The keys and list indexes that lead from the top of the file to a value.
Steps = tuple[str | int, ...]

#: A place and what is wrong there: a sentence that goes on from the place's name.
ConfigProblem = tuple[Steps, str]

#: What stands in place of a secret.
MASK = "***"

#: Longer values are cut: the place says where to find them.
_MAX_QUOTED = 60

#: A reference that holds nothing but a name, neither a default nor text beside it.
_NAME_ALONE = re.compile(r"\$\{(?:file:)?[^}:]*\}")

#: Python refuses to write numbers of thousands of digits, which YAML reads in base 16.
_MAX_BITS = 128


def dotted(steps: Steps) -> str:
    """Return steps as one path: ``channels.flights.topics[0]``."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{printable(step)}"
    return path.removeprefix(".")


def subject(value: Any, *, secret: bool = False) -> str:
    """Return what a sentence about a value begins with.

    Text from references is named as it was written, because what it expands to may be a secret
    that was put in a wrong place. In a secret's place a default, and text around, may be one too.
    """
    if isinstance(value, Expanded):
        shown = not secret or _NAME_ALONE.fullmatch(value.source)
        return f"{_cut(value.source) if shown else MASK} expands to something that"
    reveals = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return MASK if secret and reveals else quoted(value)


def quoted(value: Any) -> str:
    """Return a value as YAML would have it, cut where it is long; lists and mappings by name."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "a very large number"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return f"'{_cut(value)}'"
    name = "list" if isinstance(value, (list, tuple)) else "mapping"
    return f"an empty {name}" if value in ([], (), {}) else f"a {name}"


def _cut(text: str) -> str:
    rest = "..." if len(text) > _MAX_QUOTED else ""
    return f"{printable(text[:_MAX_QUOTED])}{rest}"


def printable(text: str) -> str:
    """Return text that stays on one line and fits any terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def either(words: Iterable[str]) -> str:
    """Return ``a``, ``a or b``, ``a, b or c``."""
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


class FieldConflict(NamedTuple):
    """One mistake inside a value.

    ``steps`` lead from the value to the mistake. ``sentence`` goes on from the place's name, says
    what does not fit what, and what would; it quotes no secret.
    """

    steps: Steps
    sentence: str


def conflict_in(found: Sequence[FieldConflict]) -> PydanticCustomError:
    """Return the one error that carries all that was found."""
    text = "; ".join(f"{dotted(steps)} {sentence}" for steps, sentence in found)
    return PydanticCustomError("conflict", "{sentences}", {"sentences": text, "found": found})


@dataclass(frozen=True, slots=True)
class Origin:
    """The absolute path of the file, and the process's environment when it was read."""

    file: Path
    environ: Mapping[str, str] = field(repr=False)
    host: str

    @classmethod
    def of(cls, file: Path, environ: Mapping[str, str] | None = None) -> Origin:
        """Return the origin of ``file`` on this host. Links in the path are kept as they are."""
        return cls(
            Path(os.path.abspath(file)),  # noqa: PTH100 - Path.absolute keeps "..", two names then
            os.environ if environ is None else environ,
            socket.gethostname(),
        )

    @property
    def folder(self) -> Path:
        """Return what relative paths in the file start from."""
        return self.file.parent

    @property
    def instance_id(self) -> str:
        """Return the host's name and 8 hexadecimal digits that stand for the file."""
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", self.host) or "localhost"
        return f"{host}-{hashlib.sha256(os.fsencode(self.file)).hexdigest()[:8]}"

    @property
    def state_dir(self) -> Path:
        """Return the folder that systemd provides, else the user's own for such data."""
        return default_state_dir(self.environ)


def origin_of(info: ValidationInfo) -> Origin:
    """Return the origin handed to validation.

    A model built in code has none; the current folder takes the place of the file's.
    """
    context: Any = info.context
    return context if isinstance(context, Origin) else Origin.of(Path("headrace.yaml"))

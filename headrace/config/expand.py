"""References in values: ``${NAME}``, ``${NAME:-default}``, ``${file:path}`` and the like.

``${file:path:-default}`` takes the default where there is no such file. A default may be such a
reference itself, with plain text for its own default.

They are expanded in text values of the parsed file only: never in keys, and never in the file's
text, so that no value of a variable can change the structure. ``$${`` stands for a literal ``${``.
What a reference brought in is not looked at again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError
from headrace.core.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config.errors import ConfigProblem, Steps

_INNER = r"(?:\$\{[^}]*\}|[^}])*"
_REFERENCE = re.compile(rf"\$\$\{{|\$\{{(?P<body>{_INNER})\}}|\$\{{")
_VARIABLE = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<has_default>:-(?P<default>.*))?", re.DOTALL
)
_FILE = "file:"

#: Halves of characters: what Python makes of bytes that are not UTF-8, or of the escape "\\ud800".
HALVES = re.compile(r"[\ud800-\udfff]")

#: A password, a key or a list of servers is far below this; a wrong path may be far above.
MAX_FILE_BYTES = 1024 * 1024


class Expanded(str):
    """Text that came out of references. Only ``source``, the text as written, is ever quoted.

    A field that takes a number or true/false reads it from such text, because a reference cannot
    say what it stands for. ``from_file`` tells that a ``${file:...}`` took part.
    """

    __slots__ = ("from_file", "source")

    source: str
    from_file: bool

    @classmethod
    def of(cls, text: str, source: str, *, from_file: bool) -> Expanded:
        """Return ``text`` with where it came from."""
        value = cls(text)
        value.source = source
        value.from_file = from_file
        return value


@dataclass(slots=True)
class Expansion:
    """Expands the values of one file, and collects what could not be expanded.

    ``folder`` is what relative paths of ``${file:...}`` start from; ``reads`` is told each
    of these paths before it is read. ``failures`` holds the place
    of each failed value and what is wrong with it. Reads files; blocks for as long as that takes.
    """

    environ: Mapping[str, str]
    folder: Path
    reads: Callable[[Path], None] = lambda _: None
    failures: list[ConfigProblem] = field(default_factory=list)
    _files_read: int = 0

    def expand(self, value: Any, at: Steps = ()) -> Any:
        """Return ``value`` with the references in all its text replaced."""
        if isinstance(value, dict):
            return {key: self.expand(item, (*at, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, (*at, index)) for index, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self._expand_text(value, at)
        return value

    def _expand_text(self, text: str, at: Steps) -> str:
        bodies = [match["body"] for match in _REFERENCE.finditer(text)]
        read_before = self._files_read
        try:
            result = _REFERENCE.sub(self._replace, text)
        except ConfigError as problem:
            self.failures.append((at, str(problem)))
            result = text
        if all(body is None for body in bodies) and result != text:
            return result
        return Expanded.of(result, text, from_file=self._files_read > read_before)

    def _replace(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        body = match["body"]
        if body is None:
            raise _unusable("has a ${ without its }; write $${ where ${ itself is meant")
        if body.startswith(_FILE):
            return self._file(body.removeprefix(_FILE))
        return self._variable(body)

    def _variable(self, body: str) -> str:
        match = _VARIABLE.fullmatch(body)
        if match is None:
            raise _unusable(
                "has a reference that is none of ${NAME}, ${NAME:-default} and ${file:path}; "
                "write $${ where ${ itself is meant"
            )
        value = self.environ.get(match["name"])
        if value is not None and HALVES.search(value):
            raise _unusable(
                f"needs the environment variable {match['name']}, which is not UTF-8 text"
            )
        if match["has_default"] is not None:
            return value or self._default(match["default"])
        if value is None:
            raise _unusable(
                f"needs the environment variable {match['name']}, which is not set; "
                f"set it, or give a default: ${{{match['name']}:-default}}"
            )
        return value

    def _default(self, text: str) -> str:
        return _REFERENCE.sub(self._replace, text)

    def _file(self, body: str) -> str:
        name, has_default, default = body.partition(":-")
        try:
            path = self.folder / Path(name).expanduser()
            self.reads(path)
            content = read_regular(path, MAX_FILE_BYTES + 1)
            text = content.decode()
        except UnicodeDecodeError:
            raise _unusable(f"refers to {path}, which is not UTF-8 text") from None
        except FileNotFoundError as error:
            if has_default:
                return self._default(default)
            raise _unusable(f"refers to {path}, which cannot be read: {error.strerror}") from None
        except OSError as error:
            raise _unusable(f"refers to {path}, which cannot be read: {error.strerror}") from None
        except (ValueError, RuntimeError):
            raise _unusable("refers to a file by a name that is no path") from None
        if len(content) > MAX_FILE_BYTES:
            raise _unusable(f"refers to {path}, which is larger than 1 MiB")
        if text.startswith("\ufeff"):
            raise _unusable(
                f"refers to {path}, which begins with a byte order mark, as editors of Windows "
                "write it; save it as UTF-8 without one"
            )
        self._files_read += 1
        return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _unusable(problem: str) -> ConfigError:
    """Return the error for a reference; the sentence goes on from the name of its place."""
    return ConfigError([problem])

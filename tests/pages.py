"""The pages of the documentation, and the blocks in them that are to be executed.

What becomes of a block is said in a comment on the line before it:

* ``<!-- doc: file NAME -->``: it is a file of the page's, which later blocks use.
* ``<!-- doc: servers -->``: commands that are run against real servers, in order, page by page.
* ``<!-- doc: daemon -->``: the same, while ``headrace run`` goes on in the folder.
* ``<!-- doc: spark -->``: a program that starts Spark.
* ``<!-- doc: channel -->``: YAML with fields of a channel, over the least that one needs.
* ``<!-- doc: sections -->``: YAML with sections of a configuration.
* ``<!-- doc: not run: REASON -->``: it is not executed, for a reason.

Without a comment YAML has to be a whole configuration, Python has to run, and commands have to run
in a folder with the page's files and without servers. JSON has to be JSON; ``text`` and blocks
without a language are for people, and hold no commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

_MARK = re.compile(r"<!-- doc: (?P<kind>[a-z]+(?: run)?):? ?(?P<detail>.*?) ?-->")

#: The languages of blocks that are executed.
EXECUTED = frozenset({"bash", "console", "python", "yaml"})

KINDS = frozenset({"", "file", "servers", "daemon", "spark", "channel", "sections", "not run"})


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: where it is, what language it is in, and what its comment says."""

    page: str
    line: int
    language: str
    text: str
    kind: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell's block; of a console's the lines behind a prompt."""
        lines = [line.strip() for line in self.text.replace("\\\n", " ").splitlines()]
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line and not line.startswith("#")]


def pages() -> list[Path]:
    """Return the files of the documentation."""
    extra = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "tests/README.md")
    return [*(ROOT / name for name in extra), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> list[Block]:
    """Return all blocks of all pages."""
    return [block for page in pages() for block in blocks_of(page)]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of one page."""
    name, lines = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        opening = lines[start]
        indent = len(opening) - len(opening.lstrip())
        text = "".join(f"{each[indent:]}\n" for each in lines[start + 1 : number])
        mark = _MARK.fullmatch(lines[start - 1].strip()) if start else None
        kind, detail = (mark["kind"], mark["detail"]) if mark else ("", "")
        yield Block(name, start + 1, opening.strip("` "), text, kind, detail)
        start = None

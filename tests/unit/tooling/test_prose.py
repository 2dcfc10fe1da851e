"""The prose of the documentation: the rules of .vale/styles/Headrace, and the length of its lines.

The rules are Vale's, so that an editor shows them while a page is written. They are applied here
without Vale, which is a program in Go that a fresh clone does not have; where it has been built, it
has to agree.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.go_tools import go_tool
from tests.pages import ROOT, pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RULES = ROOT / ".vale/styles/Headrace"

#: A line of prose is shorter.
_WIDTH = 130

#: The section of the navigation that a newcomer follows.
_PATH = "From nothing to production"

#: Findings that pages may still have, by page. The numbers only go down; a page that is not here
#: has none.
ALLOWED = {
    "docs/admin.md": 3,
    "docs/adr/0002-assign-instead-of-subscribe.md": 1,
    "docs/adr/0003-epochs-and-lease.md": 5,
    "docs/adr/0004-one-batch-job-per-micro-batch.md": 1,
    "docs/adr/0006-pyspark-line-and-connector.md": 2,
    "docs/adr/0007-fencing-of-offsets.md": 3,
    "docs/adr/0008-applying-a-changed-configuration.md": 3,
    "docs/adr/0010-entries-of-a-delta-log.md": 4,
    "docs/adr/0011-by-reference.md": 1,
    "docs/adr/0012-records-that-fail.md": 3,
    "docs/adr/0013-offsets-of-the-kafka-sink.md": 3,
    "docs/adr/0014-commits-beside-the-next-job.md": 6,
    "docs/adr/0015-several-outputs.md": 6,
    "docs/adr/0016-commits-of-several-micro-batches.md": 8,
    "docs/adr/0017-replacing-the-output-of-a-range.md": 5,
    "docs/adr/0018-records-in-columns.md": 11,
    "docs/adr/0019-slots-of-a-local-session.md": 8,
    "docs/adr/0020-state-in-one-transaction.md": 1,
    "docs/adr/0021-store-after-the-commit.md": 2,
    "docs/adr/0023-re-keying-is-a-channel.md": 2,
    "docs/adr/0025-an-engine-computes.md": 2,
    "docs/adr/0026-one-section-for-rejects.md": 2,
    "docs/adr/0027-kernel-extensions-ops.md": 1,
    "docs/architecture.md": 3,
    "docs/collector.md": 2,
    "docs/commands.md": 1,
    "docs/configuration.md": 8,
    "docs/coordination.md": 7,
    "docs/elements.md": 4,
    "docs/events.md": 4,
    "docs/failures.md": 1,
    "docs/keyed.md": 4,
    "docs/local-stack.md": 3,
    "docs/metrics.md": 1,
    "docs/offsets.md": 5,
    "docs/operation.md": 5,
    "docs/runbooks.md": 1,
    "docs/scaling.md": 7,
    "docs/spark.md": 4,
    "docs/upgrade.md": 2,
    "docs/why-not-structured-streaming.md": 2,
    "docs/workflow.md": 9,
}

#: What no rule reads: comments, code in a line, the address of a link.
_SILENT = re.compile(r"<!--.*?-->|`[^`]*`|\]\([^)\s]*\)|<[^>\n]+>", re.DOTALL)

_ITEM = re.compile(r"\s*(?:[*+-]|\d+\.)\s")
_WORD = re.compile(r"[\w'-]+")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z*\"(])")


@dataclass(frozen=True)
class Rule:
    """One file of the style: expressions that a text must not have, or too many words."""

    name: str
    message: str
    pattern: re.Pattern[str] | None
    most_words: int = 0

    def findings(self, text: str) -> Iterator[str]:
        """Yield what a paragraph has that it must not have."""
        if self.pattern is None:
            for sentence in _END.split(text):
                words = len(_WORD.findall(sentence))
                if words > self.most_words:
                    yield f"{self.name}: {words} words: {sentence[:60]}…"
        else:
            yield from (
                f"{self.name}: {self.message.replace('%s', found[0])}"
                for found in self.pattern.finditer(text)
            )


def _rule(file: Path) -> Rule:
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    if given["extends"] == "occurrence":
        return Rule(file.stem, given["message"], None, given["max"])
    tokens = "|".join(f"(?:{token})" for token in given["tokens"])
    return Rule(file.stem, given["message"], re.compile(rf"\b(?:{tokens})\b", re.IGNORECASE))


RULES = [_rule(file) for file in sorted(_RULES.glob("*.yml"))]


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, items of lists, headings and cells of tables, with their lines."""
    begun, held, in_block = 0, "", False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        is_fence = stripped.startswith("```")
        alone = not stripped or is_fence or in_block or stripped.startswith(("|", "#", "<!--"))
        if held and (alone or _ITEM.match(line)):
            yield begun, held
            held = ""
        if is_fence:
            in_block = not in_block
        elif in_block or not stripped:
            continue
        elif stripped.startswith("|"):
            cells = re.split(r"(?<!\\)\|", stripped.strip("|"))
            yield from ((number, cell.strip()) for cell in cells)
        elif stripped.startswith("#"):
            yield number, stripped.lstrip("# ")
        elif not stripped.startswith("<!--"):
            begun = begun if held else number
            held = f"{held} {stripped}".strip()


def _placeholder(silent: re.Match[str]) -> str:
    """Return a word for code, with which a sentence may begin, and nothing for the rest."""
    return "Code" if silent[0].startswith("`") else " "


def findings(text: str) -> list[str]:
    """Return what the rules find in a page, each with its line."""
    return [
        f"{number}: {found}"
        for number, paragraph in paragraphs(text)
        for rule in RULES
        for found in rule.findings(_SILENT.sub(_placeholder, paragraph))
    ]


def long_lines(text: str) -> Iterator[int]:
    """Yield the numbers of lines of prose that are too long; a word that fills one is none."""
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        in_block ^= stripped.startswith("```")
        breakable = " " in _SILENT.sub("x", stripped)
        if not in_block and not stripped.startswith("|") and breakable and len(line) >= _WIDTH:
            yield number


def _prose() -> list[Path]:
    return [page for page in pages() if page.is_relative_to(ROOT / "docs") or page.parent == ROOT]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _prose(), ids=_name)
def test_page_follows_the_style(page: Path) -> None:
    """A page has no construction that a native reader would stop at, or fewer than before."""
    found = findings(page.read_text(encoding="utf-8"))
    assert len(found) <= ALLOWED.get(_name(page), 0), "\n".join(found)


@pytest.mark.parametrize("page", _prose(), ids=_name)
def test_lines_of_prose_are_short(page: Path) -> None:
    """Lines outside of tables and blocks of code have fewer than 130 characters."""
    assert list(long_lines(page.read_text(encoding="utf-8"))) == []


def test_path_to_production_is_short() -> None:
    """A reader gets from nothing to production by at most six pages and 6,000 words."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (path,) = (entry[_PATH] for entry in nav if _PATH in entry)
    files = [ROOT / "docs" / file for entry in path for file in entry.values()]
    words = sum(len(file.read_text(encoding="utf-8").split()) for file in files)
    assert len(files) <= 6
    assert words <= 6000


@pytest.mark.slow
def test_vale_agrees() -> None:
    """Vale, with the same rules, finds nothing on the pages that have no findings left."""
    clean = [_name(page) for page in _prose() if _name(page) not in ALLOWED]
    command = [go_tool("vale"), "--output=JSON", "--no-exit", *clean]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    alerts = [
        f"{page}:{alert['Line']}: {alert['Check']}: {alert['Message']}"
        for page, found in json.loads(done.stdout).items()
        for alert in found
    ]
    assert alerts == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Nobody is\nwatching.", "People"),
        ("It takes Java.", "Needs"),
        ("Have delivery rest, and wait until it does.", "Causative"),
        ("What lacks its Debian package is skipped.", "Absence"),
        ("default: a logger's own no more", "Absence"),
        ("As above, it stops.", "Asides"),
        ("| a | waits for ever |", "Archaic"),
        ("* The batch\n  comes again.", "Repetition"),
        ("word " * 41, "SentenceLength"),
    ],
)
def test_construction_is_found(text: str, rule: str) -> None:
    """Across lines, in cells of tables and in items of lists."""
    assert [found.split(": ")[1] for found in findings(text)] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "`nobody` is a user.",
        "```\nnobody\n```",
        "<!-- doc: not run: nobody has it -->",
        "[it](nobody.md) is here",
        "word " * 20 + ". W" + "word " * 20,
    ],
)
def test_code_and_addresses_are_not_prose(text: str) -> None:
    """Code, addresses and comments are left out, and two sentences are not one."""
    assert findings(text) == []


@pytest.mark.parametrize(
    ("line", "is_long"),
    [("a " * 65, True), (f"`{'a ' * 80}`", False), ("| " + "a " * 80, False), ("a " * 64, False)],
)
def test_line_is_long(line: str, is_long: bool) -> None:
    """Tables, and code that cannot be broken, may be wider."""
    assert bool(list(long_lines(line))) is is_long

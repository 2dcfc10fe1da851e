"""Docstrings of tests: the first word of each, held by folder."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.tooling.test_words import first_lines

_ROOT = Path(__file__).parents[3]

#: A sentence with one of these at its beginning leaves its subject to the name of the test.
_NOT_FIRST = re.compile(
    r"(What|Whatever|However|Whoever|Who|Where|Have|Nobody|Nothing|Its|As|By|Of|Neither)\b"
)

#: How many docstrings begin so at most; no other folder has one. The numbers only shrink.
_AT_MOST = {
    "tests": 11,
    "tests/chaos": 9,
    "tests/contracts": 13,
    "tests/integration": 176,
    "tests/web": 5,
}

_ADVICE = (
    "say in one sentence what is asserted, subject first (A late fact goes to the dead-letter "
    "topic.), or begin with a verb if it is no test (Return, Write, Start ...)"
)


def folder_of(file: Path) -> str:
    """Return the folder that a file counts for: one of tests/, or one of tests/unit/."""
    parts = file.relative_to(_ROOT).parent.parts
    return "/".join(parts[: 3 if parts[1:2] == ("unit",) else 2])


def test_no_docstring_begins_with_a_word_without_a_subject() -> None:
    """A folder has no more docstrings with such a first word than are noted."""
    found: dict[str, list[str]] = {}
    for file in sorted((_ROOT / "tests").rglob("*.py")):
        for text, line in first_lines(ast.parse(file.read_text(encoding="utf-8"))):
            if _NOT_FIRST.match(text):
                place = f"{file.relative_to(_ROOT)}:{line} {text}"
                found.setdefault(folder_of(file), []).append(place)
    more = Counter({folder: len(places) for folder, places in found.items()}) - Counter(_AT_MOST)
    assert not more, "\n".join([_ADVICE, *(place for name in more for place in found[name])])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("What is not known is left out.", True),
        ("Have the row be there.", True),
        ("Its sink goes on.", True),
        ("Offsets are stored once.", False),
        ("A sink says what it has.", False),
    ],
)
def test_the_first_word_alone_decides(line: str, found: bool) -> None:
    """A forbidden word counts as a whole word at the beginning."""
    assert (_NOT_FIRST.match(line) is not None) is found


def test_a_file_counts_for_its_folder() -> None:
    """Unit tests count by the folder below tests/unit, others by the one below tests."""
    files = [
        "tests/pages.py",
        "tests/unit/conftest.py",
        "tests/unit/ops/admin/a.py",
        "tests/web/a.py",
    ]
    folders = ["tests", "tests/unit", "tests/unit/ops", "tests/web"]
    assert [folder_of(_ROOT / file) for file in files] == folders

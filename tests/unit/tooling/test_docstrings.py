"""Docstrings of tests: the first word of each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.tooling.test_words import first_lines

_ROOT = Path(__file__).parents[3]

#: A sentence with one of these at its beginning leaves its subject to the name of the test.
_NOT_FIRST = re.compile(
    r"(What|Whatever|However|Whoever|Who|Where|Have|Nobody|Nothing|Its|As|By|Of|Neither)\b"
)

_ADVICE = (
    "say in one sentence what is asserted, subject first (A late fact goes to the dead-letter "
    "topic.), or begin with a verb if it is no test (Return, Write, Start ...)"
)


def test_no_docstring_begins_with_a_word_without_a_subject() -> None:
    """No docstring below tests/ has such a first word."""
    found = [
        f"{file.relative_to(_ROOT)}:{line} {text}"
        for file in sorted((_ROOT / "tests").rglob("*.py"))
        for text, line in first_lines(ast.parse(file.read_text(encoding="utf-8")))
        if _NOT_FIRST.match(text)
    ]
    assert not found, "\n".join([_ADVICE, *found])


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

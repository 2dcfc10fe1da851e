from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.expand import MAX_FILE_BYTES, Expanded, Expansion
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from pathlib import Path

ENVIRON = {"NAME": "value", "EMPTY": "", "NESTED": "${NAME}", "_x1": "low"}


@pytest.fixture
def expansion(tmp_path: Path) -> Expansion:
    """An expansion in a folder with a few files."""
    (tmp_path / "secret").write_bytes(b"hidden\n")
    (tmp_path / "windows").write_bytes(b"hidden\r\n")
    (tmp_path / "lines").write_bytes(b"one\ntwo\n\n")
    return Expansion(ENVIRON, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$NAME $ {NAME}", "$NAME $ {NAME}"),
        ("${NAME}", "value"),
        ("${_x1}", "low"),
        ("a-${NAME}:${EMPTY}-${NAME}", "a-value:-value"),
        ("${EMPTY}", ""),
        ("${NAME:-default}", "value"),
        ("${EMPTY:-default}", "default"),
        ("${MISSING:-default}", "default"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a:-b}", "a:-b"),
        ("${NESTED}", "${NAME}"),
        ("$${NAME}", "${NAME}"),
        ("$$${NAME}", "$${NAME}"),
        ("$${NAME}${NAME}", "${NAME}value"),
        ("${file:secret}", "hidden"),
        ("${file:./secret}", "hidden"),
        ("${file:windows}", "hidden"),
        ("${file:lines}", "one\ntwo\n"),
        ("${file:secret:-default}", "hidden"),
        ("${file:missing:-default}", "default"),
        ("${file:missing:-}", ""),
        ("${MISSING:-${NAME}}", "value"),
        ("${NAME:-${file:missing}}", "value"),
        ("${EMPTY:-${file:secret}}", "hidden"),
        ("${MISSING:-${file:missing:-a:-b}}!", "a:-b!"),
        ("${MISSING:-${NESTED}}", "${NAME}"),
        ("${MISSING:-$${NAME}}", "${NAME}"),
    ],
)
def test_references_are_replaced(expansion: Expansion, text: str, expected: str) -> None:
    """References in text give what they refer to, and nothing else in the text changes."""
    assert expansion.expand(text) == expected
    assert expansion.failures == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "${MISSING}",
            (
                "needs the environment variable MISSING, which is not set; "
                "set it, or give a default: ${MISSING:-default}"
            ),
        ),
        ("a${NAME", "has a ${ without its }; write $${ where ${ itself is meant"),
        *(
            (
                text,
                (
                    "has a reference that is none of ${NAME}, ${NAME:-default} and ${file:path}; "
                    "write $${ where ${ itself is meant"
                ),
            )
            for text in ("${}", "${na-me}", "${1A}", "${ NAME }", "${env:NAME}", "${NAME-x}")
        ),
        (
            "${file:none}",
            "refers to {folder}/none, which cannot be read: No such file or directory",
        ),
        ("${file:fifo}", "refers to {folder}/fifo, which cannot be read: is no regular file"),
        ("${file:}", "refers to {folder}, which cannot be read: Is a directory"),
        ("${file:latin}", "refers to {folder}/latin, which is not UTF-8 text"),
        ("${file:large}", "refers to {folder}/large, which is larger than 1 MiB"),
        ("${MISSING:-${file:latin:-x}}", "refers to {folder}/latin, which is not UTF-8 text"),
        (
            "${MISSING:-${OTHER}}",
            (
                "needs the environment variable OTHER, which is not set; "
                "set it, or give a default: ${OTHER:-default}"
            ),
        ),
        ("${file:a\0b}", "refers to a file by a name that is no path"),
        ("${file:~nobody-of-this-name/x}", "refers to a file by a name that is no path"),
    ],
)
def test_references_that_lead_nowhere_are_failures(
    expansion: Expansion, tmp_path: Path, text: str, sentence: str
) -> None:
    """A reference that cannot be expanded is reported with its place, and its text is kept."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert expansion.expand({"a": [text]}) == {"a": [text]}
    assert expansion.failures == [(("a", 0), sentence.replace("{folder}", str(tmp_path)))]


@pytest.mark.parametrize(
    ("text", "from_file"),
    [
        ("${file:secret}", True),
        ("${MISSING:-${file:secret}}", True),
        ("${NAME:-${file:secret}}", False),
        ("${file:missing:-open}", False),
    ],
)
def test_expanded_text_knows_whether_a_file_took_part(
    expansion: Expansion, text: str, from_file: bool
) -> None:
    """Text from a file is shown as a secret; a default's or a variable's is not."""
    found = expansion.expand(text)
    assert isinstance(found, Expanded)
    assert found.from_file is from_file


def test_a_file_with_a_byte_order_mark_is_refused(expansion: Expansion, tmp_path: Path) -> None:
    """The message names the file without its contents; the mark would spoil a password."""
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfhunter2")
    expansion.expand("${file:marked}")
    ((_, sentence),) = expansion.failures
    assert sentence.startswith(f"refers to {tmp_path}/marked, which begins with a byte order mark")
    assert "hunter2" not in sentence


def test_all_failures_are_collected(expansion: Expansion) -> None:
    """One failed reference does not hide the next."""
    expansion.expand({"a": "${ONE}", "b": {"c": "${TWO}", "d": "${NAME}"}})
    assert [steps for steps, _ in expansion.failures] == [("a",), ("b", "c")]


def test_keys_and_other_types_are_left_alone(expansion: Expansion) -> None:
    """Only text values are expanded: keys, numbers, truth values and null stay as they are."""
    values: dict[str, Any] = {"${NAME}": 1, "b": True, "c": None, "d": [1.5]}
    assert expansion.expand(values) == values


def test_expanded_text_knows_its_source(expansion: Expansion) -> None:
    """Text from references carries what was written, and whether a file took part."""
    from_both = expansion.expand("${NAME}-${file:secret}")
    from_variable = expansion.expand("${NAME}")
    assert isinstance(from_both, Expanded)
    assert (from_both.source, from_both.from_file) == ("${NAME}-${file:secret}", True)
    assert isinstance(from_variable, Expanded)
    assert not from_variable.from_file


def test_an_escape_alone_is_not_a_reference(expansion: Expansion) -> None:
    """Text in which only an escape was replaced is ordinary text."""
    assert type(expansion.expand("$${NAME}")) is str


@given(st.text(CHARACTERS))
def test_any_text_survives_escaping(text: str) -> None:
    """Text whose ${ are escaped expands to itself, whatever it is."""
    expansion = Expansion({}, folder=None)  # type: ignore[arg-type]  # no file is referred to
    assert expansion.expand(text.replace("${", "$${")) == text
    assert expansion.failures == []


@given(st.text(CHARACTERS), st.text(alphabet="${}NAME:-file/$"))
def test_a_referenced_value_is_not_expanded(value: str, around: str) -> None:
    """A variable's value is used as it is, also if it looks like a reference."""
    expansion = Expansion({"V": value}, folder=None)  # type: ignore[arg-type]
    escaped = around.replace("${", "$${").removesuffix("$")
    assert expansion.expand(f"${{V}}{escaped}") == value + around.removesuffix("$")

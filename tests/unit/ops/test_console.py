"""Tables of commands, and looks that are repeated."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest

from headrace.ops.console import Column, figures, numeric, print_look, print_table, repeated

if TYPE_CHECKING:
    from rich.console import Console

ROWS: list[dict[str, Any]] = [
    {"topic": "orders", "lag": 7, "note": "[bold]as it is[/]"},
    {"topic": "returns", "lag": None, "note": ""},
]


def test_a_table_has_numbers_at_the_right_and_texts_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown value is "-", and markup is printed literally."""
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("topic", itemgetter("topic")),
        *figures(behind="lag"),
        Column("note", itemgetter("note")),
    )
    print_table(ROWS, columns)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "topic    behind  note",
        "orders        7  [bold]as it is[/]",
        "returns       -",
    ]


def test_a_table_without_rows_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Only where a command has words for it."""
    columns = (numeric("lag", str),)
    print_table([], columns, empty="no letters")
    assert capsys.readouterr().out == "no letters\n"
    print_table([], columns)
    assert capsys.readouterr().out.strip() == "lag"


def test_repeated_ends_with_the_last_code_at_ctrl_c() -> None:
    """Without an interval it looks once."""
    codes = iter([0, 1])

    def look() -> int:
        for code in codes:
            return code
        raise KeyboardInterrupt

    assert repeated(look, 0.001) == 1
    assert repeated(lambda: 3, None) == 3


@pytest.mark.parametrize(("every", "lines"), [(None, 3), (1.0, 1)])
def test_a_look_as_json_is_one_line_where_there_are_several(
    capsys: pytest.CaptureFixture[str], every: float | None, lines: int
) -> None:
    """So that a script can tell them apart."""

    def draw(_: Console) -> None:
        pytest.fail("nothing is drawn")

    print_look({"lag": 1}, draw, as_json=True, every=every)
    said = capsys.readouterr().out
    assert json.loads(said) == {"lag": 1}
    assert len(said.splitlines()) == lines

"""docs/events.md against what the code logs."""

from __future__ import annotations

import pytest

from tests.pages import ROOT
from tests.scripts import script

_PAGE = ROOT / "docs" / "events.md"
_EVENTS = script("logged_events")


def described() -> dict[str, str]:
    """Return the events of the page, with what it says of when they are logged."""
    rows = [row for row in _PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    names = [name.strip("`") for name, *_ in cells]
    assert len(names) == len(set(names)), "an event stands there twice"
    return {name: when for name, (_, _, when, _) in zip(names, cells, strict=True)}


def test_page_is_up_to_date() -> None:
    """Each event that the code logs is on the page, with each level and field of its calls."""
    page = _PAGE.read_text(encoding="utf-8")
    assert page == _EVENTS.update(page), "run: python scripts/reference.py"


def test_every_event_is_described() -> None:
    """The script adds new events without saying when they are logged: an author has to."""
    assert [name for name, when in described().items() if not when] == []


@pytest.mark.parametrize(
    ("row", "became"),
    [
        ("| `stopping` | info | ends | `signal` |", "| `stopping` | info | ends | `signal` |"),
        ("| `stopping` |  | ends | `by` |", "| `stopping` | info | ends | `by`, `signal` |"),
        ("| `never_logged` | info | never |  |", None),
    ],
)
def test_row_is_completed_from_the_calls(row: str, became: str | None) -> None:
    """Fields that no call names stay; an event that is gone goes."""
    page, _, added = _EVENTS.update(f"{row}\n").partition(_EVENTS.UNDESCRIBED)
    assert page == (f"{became}\n" if became else "\n")
    assert ("`stopping`" in added) is (became is None)

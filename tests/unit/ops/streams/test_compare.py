"""Comparing stores of two topologies: what is counted, shown and refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.core.errors import UsageError
from headrace.ops.streams.compare import (
    Comparison,
    RowName,
    StoreOf,
    by_name,
    require_alike,
    together,
)

if TYPE_CHECKING:
    from pathlib import Path

_CODE = "tests.unit.extensions.streams.programs"

_FILE = f"""
topologies:
  shop: {{code: '{_CODE}:top_pages', group: shop}}
  shop-v2: {{code: '{_CODE}:top_pages', group: shop-v2}}
  other: {{code: '{_CODE}:minutes_of_pages', group: other}}
  words: {{code: '{_CODE}:word_count', group: words}}
"""

_ROWS = st.lists(
    st.tuples(
        st.builds(RowName, st.sampled_from([b"a", b"b"]), st.just((("begin", 0),))),
        st.sampled_from([b"[1]", b"[ 1 ]", b"[2]"]),
    ),
    max_size=8,
)


@given(one=_ROWS, other=_ROWS)
def test_any_rows_are_counted_once(
    one: list[tuple[RowName, bytes]], other: list[tuple[RowName, bytes]]
) -> None:
    """Equal values are the same however they are written; all others are in one of three counts."""
    found = Comparison()
    found.add(by_name(one), by_name(other))
    said = [
        Counter((name, str(json.loads(value))) for name, value in rows) for rows in (one, other)
    ]
    assert found.same == (said[0] & said[1]).total()
    assert found.same + found.different + found.only_one == len(one)
    assert found.same + found.different + found.only_other == len(other)
    assert found.differing == len(found.shown)
    assert (found.differing == 0) == (said[0] == said[1])


def test_the_first_rows_that_differ_are_shown() -> None:
    """There are ten at most, in the order of their keys; the others are counted."""
    found = Comparison()
    rows = {RowName(b"%02d" % number, ()): [b"1"] for number in range(30)}
    found.add(rows, {})
    assert [each.name.key for each in found.shown] == [b"%02d" % number for number in range(10)]
    assert (found.only_one, found.differing) == (30, 30)


def test_a_key_that_is_no_text_is_named_in_hexadecimal_digits() -> None:
    """With the begin of its window beside it."""
    assert RowName(b"\xff\x00", (("begin", 5),)).document() == {"key_hex": "ff00", "begin": 5}


def stores(tmp_path: Path, *names: str, store: str = "pages") -> list[StoreOf]:
    """Return a store of topologies."""
    file = tmp_path / "headrace.yaml"
    file.write_text(_FILE, encoding="utf-8")
    config = load(file)
    return [StoreOf.of(config, name, store) for name in names]


def test_the_same_code_with_another_group_has_the_same_rows(tmp_path: Path) -> None:
    """Each part by key is read partition by partition, where both have as many."""
    one, other = stores(tmp_path, "shop", "shop-v2")
    require_alike(one, other)
    assert one.state.topic == "shop.pages.by-key.state"
    assert other.state.topic == "shop-v2.pages.by-key.state"
    assert list(together([one, other], 2, 2)) == [([0], [0]), ([1], [1])]
    assert list(together([one, other], 2, 3)) == [(range(2), range(3))]


def test_stores_of_other_windows_are_refused(tmp_path: Path) -> None:
    """The error has the windows of both."""
    one, other = stores(tmp_path, "shop", "other")
    with pytest.raises(
        UsageError, match=r'windows is \{.*"size":300000,.*\} in shop, and .* in other'
    ):
        require_alike(one, other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shop", "shop-v3", "pages"], "there is no topology shop-v3; did you mean shop-v2?"),
        (["shop", "shop-v2", "page"], "there is no store of topology shop by the name page; did"),
        (["shop", "words", "pages"], "there is no store of topology words by the name pages; ch"),
        (["shop", "shop", "pages"], "both are shop; name two topologies"),
    ],
)
def test_compare_refuses_other_stores_without_a_broker(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """The exit code is that of a command line that cannot be used."""
    path = tmp_path / "headrace.yaml"
    path.write_text(_FILE, encoding="utf-8")
    result: Any = CliRunner().invoke(app, ["streams", "compare", *arguments, "-c", str(path)])
    assert result.exit_code == 2, result.output
    assert words in result.output

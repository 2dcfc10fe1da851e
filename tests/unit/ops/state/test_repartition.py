"""Moving keys: each ends where its records are, and nothing is moved that cannot be told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import load
from headrace.core.errors import UsageError
from headrace.extensions.keyed.row import KeyRow
from headrace.ops.state.repartition import (
    PARTITIONERS,
    Numbers,
    Repartition,
    _chosen_partitioner,
    repartition,
)
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STATE: Any = SimpleNamespace(input="in", processor=SimpleNamespace(facts_key="record"))


class Table:
    """A changelog with these rows."""

    topic = "g.in.state"

    def __init__(self, rows: Mapping[int, dict[bytes, KeyRow]]) -> None:
        self._rows = rows

    def ends(self, number: int) -> tuple[int, int]:
        """Return as many offsets as rows."""
        return 0, len(self._rows.get(number, {}))

    def rows(self, number: int, ends: tuple[int, int]) -> dict[bytes, KeyRow]:
        """Return what there is."""
        del ends
        return self._rows.get(number, {})


class Task(Repartition):
    """One whose unread records are given, by partition."""

    given: Mapping[int, list[FakeRecord]]

    def _records(self, number: int) -> Iterator[Any]:
        return iter(self.given.get(number, ()))


def task(
    rows: Mapping[int, dict[bytes, KeyRow]],
    numbers: Numbers,
    unread: Mapping[int, list[FakeRecord]],
) -> Task:
    """Return what there is to move."""
    made = Task(STATE, Table(rows), numbers, {})  # type: ignore[arg-type]
    made.given = unread
    return made


@given(
    keys=st.lists(st.binary(min_size=1, max_size=12), unique=True, max_size=40),
    before=st.integers(1, 8),
    more=st.integers(1, 8),
    name=st.sampled_from(sorted(PARTITIONERS)),
    data=st.data(),
)
def test_any_key_ends_where_its_records_are(
    keys: list[bytes], before: int, more: int, name: str, data: st.DataObject
) -> None:
    """Once, with its state; unread records go there in their order, strays before what is newer."""
    by, after = PARTITIONERS[name], before + more
    rows: dict[int, dict[bytes, KeyRow]] = {}
    for key in keys:
        rows.setdefault(by(key, before), {})[key] = KeyRow(b"state of " + key)
    unread: dict[int, list[FakeRecord]] = {}
    sent = data.draw(st.lists(st.sampled_from(keys), max_size=30)) if keys else []
    cut = data.draw(st.integers(0, len(sent)))
    for at, key in enumerate(sent):
        # producers know of the new number from some record on
        number = by(key, before if at < cut else after)
        log = unread.setdefault(number, [])
        log.append(FakeRecord(key_=key, value_=b"%d" % at, offset_=len(log)))
    made = task(rows, Numbers(before, after), unread)
    seen = made.survey_keys([name])[name]
    assert seen.misfits == 0
    assert seen.strays == sum(by(key, before) != by(key, after) for key in sent[:cut])
    assert made.twins(by, seen) == []
    there = {(number, key): row for number, found in rows.items() for key, row in found.items()}
    for record in made.rows(by):
        assert record.partition is not None
        assert record.key is not None
        if record.value is None:
            del there[record.partition, record.key]
        else:
            there[record.partition, record.key] = KeyRow(record.value)
    assert there == {(by(key, after), key): KeyRow(b"state of " + key) for key in keys}
    assert seen.arrivals == {by(key, after) for key in keys if by(key, after) != by(key, before)}
    written = list(made.unread(by))
    assert len(written) == len(sent)
    for key in set(sent):
        mine = [each for each in written if each.key == key]
        assert {each.partition for each in mine} == {by(key, after)}
        wanted = [b"%d" % at for at, each in enumerate(sent) if each == key]
        assert [each.value for each in mine] == wanted


def test_keys_with_two_states_are_named() -> None:
    """One was counted where it belonged before, and from nothing where it belongs now."""
    by, numbers = PARTITIONERS["murmur2"], Numbers(2, 3)
    key = next(b"%d" % n for n in range(99) if by(b"%d" % n, 2) != by(b"%d" % n, 3))
    old, new = by(key, 2), by(key, 3)
    made = task({old: {key: KeyRow(b"2")}, new: {key: KeyRow(b"1")}}, numbers, {})
    seen = made.survey_keys(["murmur2"])["murmur2"]
    assert made.twins(by, seen) == [f"{key!r} in {old} and {new}"]


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (lambda at: {0: [at]}, "nothing says by which partitioner"),
        (lambda at: {at % 2: [at]}, "it cannot be told where keys belong"),
    ],
)
def test_a_partitioner_that_is_not_known_is_not_guessed(spread: Any, words: str) -> None:
    """The choice is refused if both fit, as with one partition, or if none does."""
    rows: dict[int, dict[bytes, KeyRow]] = {}
    for at in range(20):
        for number, found in spread(at).items():
            rows.setdefault(number, {}).update({b"%d" % each: KeyRow(b"1") for each in found})
    numbers = Numbers(len(rows), len(rows) + 1)
    seen = task(rows, numbers, {}).survey_keys(list(PARTITIONERS))
    with pytest.raises(UsageError, match=words):
        _chosen_partitioner(STATE, seen)


def test_rows_of_a_topology_are_not_moved(tmp_path: Path) -> None:
    """They are by store and window, and no partitioner places them."""
    file = tmp_path / "headrace.yaml"
    code = "tests.unit.extensions.streams.programs:word_count"
    file.write_text(f"topologies: {{words: {{code: '{code}', group: g}}}}", encoding="utf-8")
    with pytest.raises(UsageError, match=r"channel words\.words is of a topology"):
        repartition(load(file), "words.words", partitioner=None, rewrite=False)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.extensions.delta.conflicts import NOT_REPLACED
from headrace.extensions.delta.section import DeltaSinkConfig
from tests.unit.config.support import CHANNELS, channel, refused

if TYPE_CHECKING:
    from pathlib import Path

SPARK = {"type": "spark", "reducer": "a:b"}
MERGE = {"mode": "merge", "key": ["day", "id"], "merge": {"n": "sum"}}


def _sink(**fields: Any) -> DeltaSinkConfig:
    sink = channel(processor=SPARK, sink={"type": "delta", "path": "t"} | fields).sink
    assert isinstance(sink, DeltaSinkConfig)
    return sink


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("mode: merge, key: [k]", "merge: is missing; mode: merge takes sum, min, max or last"),
        ("mode: merge, merge: {n: sum}", "key: is missing; mode: merge takes the columns that"),
        ("mode: merge, key: [n], merge: {n: sum}", "merge: names n, which is in key"),
        ("mode: merge, key: [k], merge: {n: avg}", "merge.n: 'avg' is not sum, min, max or last"),
        ("mode: upsert", "mode: 'upsert' is not append or merge"),
        ("key: [k]", "key: exists only with mode: merge"),
        ("merge: {n: sum}", "merge: exists only with mode: merge"),
        ("merge_limit: 1GiB", "merge_limit: exists only with mode: merge"),
        (
            "mode: merge, key: [k], merge: {n: sum}, merge_limit: 0",
            "merge_limit: 0 is not a size such as",
        ),
        (
            "mode: merge, key: [k], merge: {n: sum}, partition_by: [day]",
            (
                "partition_by: names day, which is not in key, so that a row would move from one "
                "partition of the table to another; add it to key, or leave it out"
            ),
        ),
        (
            "mode: merge, key: [k], merge: {n: sum}, origin: true",
            "origin: does not go with mode: merge, where what a row was before is not kept",
        ),
    ],
)
def test_what_does_not_go_with_a_mode_is_told(tmp_path: Path, fields: str, problem: str) -> None:
    """The message names the field and the remedy."""
    *_, found = refused(tmp_path, CHANNELS.replace("noop", f"{{type: delta, path: t, {fields}}}"))
    field, _, sentence = problem.partition(": ")
    assert found.startswith(f"channels.flights.sink.{field} (line 7): ")
    assert found.partition("): ")[2].startswith(sentence)


def test_a_mode_says_what_a_replay_does() -> None:
    """Rows are there twice, or add up, and then no output of a range can be replaced."""
    assert ("there twice" in _sink().replayed, _sink().irreplaceable) == (True, None)
    merged = _sink(**MERGE)
    assert ("sums have them twice" in merged.replayed, merged.irreplaceable) == (True, NOT_REPLACED)

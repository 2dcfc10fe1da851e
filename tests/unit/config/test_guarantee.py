from __future__ import annotations

from typing import Any

import pytest

from headrace.config import guarantee
from tests.unit.config.support import channel

SPARK = {"type": "spark", "reducer": "a:b"}
JSON = SPARK | {"decode": "json", "schema": "a INT"}
DELTA = {"type": "delta", "path": "t"}
DELTA_REASON = "the Delta table takes rows and offsets in one transaction and refuses repetitions"

SQL = {"type": "sql", "url": "postgresql://u:p@h/d", "table": "t"}
KAFKA_REASON = (
    "the brokers take records and offsets in one transaction, as readers with "
    "isolation.level=read_committed see"
)
SQL_REASON = "the database takes rows and offsets in one transaction and refuses repetitions"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"processor": SPARK, "sink": DELTA}, f"exactly-once: {DELTA_REASON}"),
        (
            {
                "processor": JSON,
                "sink": DELTA,
                "retry": {"attempts": 3},
                "rejects": {"undecodable": "skip", "failing": "skip"},
            },
            (
                f"exactly-once: {DELTA_REASON}; records that cannot be decoded are left out; "
                "a batch that failed 3 times is left out"
            ),
        ),
        ({"processor": SPARK, "sink": SQL}, f"exactly-once: {SQL_REASON}"),
        ({"processor": SPARK, "sink": {"type": "kafka"}}, f"exactly-once: {KAFKA_REASON}"),
        *(
            (
                {"processor": SPARK, "sink": sink},
                (
                    f"at-least-once: the {name} sink keeps no offsets, "
                    "so rows may be written again after a crash"
                ),
            )
            for name, sink in [
                ("noop", "noop"),
                ("console", "console"),
                ("jsonl", {"type": "jsonl", "path": "t"}),
            ]
        ),
        (
            {"processor": SPARK, "sink": {"type": "custom", "factory": "a:b"}},
            (
                "at-least-once: the sink of a:b need not keep offsets, so rows may be written "
                "again after a crash; guarantee: exactly_once demands that it does"
            ),
        ),
        (
            {
                "processor": SPARK,
                "sink": {"type": "custom", "factory": "a:b", "guarantee": "exactly_once"},
            },
            (
                "exactly-once: the sink of a:b, asked at the start, takes rows and offsets in one "
                "transaction and refuses repetitions"
            ),
        ),
        (
            {"processor": SPARK, "sink": {"type": "several", "outputs": {"a": DELTA, "b": SQL}}},
            (
                "exactly-once: each output takes rows and offsets in one transaction and refuses "
                "repetitions; one that a crash left behind gets what it lacks"
            ),
        ),
        (
            {"processor": SPARK, "sink": {"type": "several", "outputs": {"a": DELTA, "b": "noop"}}},
            (
                "at-least-once: output b: the noop sink keeps no offsets, so rows may be written "
                "again after a crash"
            ),
        ),
        (
            {"processor": {"type": "simple"}, "sink": "a:b"},
            (
                "at-least-once: offsets are committed after the function returns, "
                "so it may see records again"
            ),
        ),
        (
            {"processor": {"type": "simple", "auto_advance": "periodic"}, "sink": "a:b"},
            (
                "at-least-once: offsets are committed after the function returns, "
                "so it may see records again"
            ),
        ),
        (
            {"processor": {"type": "simple", "no_duplication": True}, "sink": "a:b"},
            (
                "at-most-once: no_duplication commits before the function runs, "
                "so what fails then is not repeated"
            ),
        ),
        (
            {
                "processor": {"type": "custom", "factory": "a:b"},
                "sink": None,
                "retry": {"attempts": 1},
                "rejects": {"failing": "skip"},
            },
            (
                "at-least-once: batches are delivered until answered; "
                "whether effects repeat is up to the processor; "
                "a batch that failed once is left out"
            ),
        ),
        (
            {
                "processor": {"type": "custom", "factory": "a:b"},
                "sink": None,
                "rejects": {"failing": "dead_letter", "topic": "dead"},
            },
            (
                "at-least-once: batches are delivered until answered; "
                "whether effects repeat is up to the processor; "
                "records that fail by themselves go to dead, at least once"
            ),
        ),
    ],
)
def test_each_channel_promises_what_its_parts_can_keep(
    fields: dict[str, Any], expected: str
) -> None:
    """Processor, sink and policies decide what is promised, with the reason in a sentence."""
    assert str(guarantee(channel(**fields))) == expected

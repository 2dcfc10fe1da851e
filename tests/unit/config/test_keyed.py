"""What the configuration of a channel with state refuses, and what it promises."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import ChannelConfig
from headrace.config.guarantee import guarantee


def keyed(processor: dict[str, Any] | None = None, **channel: Any) -> ChannelConfig:
    """Return a channel with state."""
    return ChannelConfig.model_validate(
        {
            "topics": ["in"],
            "group": "g",
            "processor": {"type": "keyed", "reducer": "m:reduce", **(processor or {})},
            "sink": {"type": "kafka", "topic": "out"},
            **channel,
        }
    )


def test_a_channel_with_state_is_exactly_once_with_and_without_a_sink() -> None:
    """The brokers take outputs, state and offsets together."""
    assert str(guarantee(keyed())).startswith("exactly-once: the brokers take outputs, state")
    assert str(guarantee(keyed(sink=None))).startswith("exactly-once")
    letters = keyed({"on_poison": "dead_letter", "dead_letter": "dead"})
    assert "facts that cannot be reduced go to dead, once" in str(guarantee(letters))


@pytest.mark.parametrize(
    ("processor", "channel", "words"),
    [
        ({}, {"topics": ["in", "more"]}, "reads one topic"),
        ({}, {"topics": ["^in.*"]}, "reads one topic"),
        ({}, {"sink": {"type": "jsonl", "path": "/x"}}, "does not fit the keyed processor"),
        (
            {},
            {"sink": {"type": "several", "outputs": {"a": {"type": "noop"}}}},
            "cannot be in one transaction with the state",
        ),
        ({}, {"sink": {"type": "kafka"}}, "each output has one"),
        ({}, {"sink": {"type": "kafka", "topic": "in"}}, "which the channel reads"),
        (
            {},
            {"on_error": {"policy": "dead_letter", "dead_letter": {"topic": "d"}}},
            "write processor.on_poison: dead_letter",
        ),
        ({}, {"offsets": {"fencing": "transactions"}, "sink": None}, "that of its state"),
        ({}, {"source": "by_reference"}, "needs the records themselves"),
        ({"reducer": None}, {}, "is missing"),
        ({"factory": "m:F"}, {}, "is given beside factory"),
        ({"options": {"a": 1}}, {}, "goes with factory only"),
        ({"late": "drop"}, {}, "no effect without grace"),
        ({"on_poison": "quarantine"}, {}, "is missing; name the topic"),
        ({"dead_letter": "dead"}, {}, "no effect with on_poison: fail"),
        ({"on_poison": "dead_letter", "dead_letter": "in"}, {}, "which the channel reads itself"),
        ({"time": "value.at"}, {}, "write record, or an import path"),
        ({"state": {"cache": "-1"}}, {}, "is not"),
    ],
)
def test_what_does_not_go_together_is_refused(
    processor: dict[str, Any], channel: dict[str, Any], words: str
) -> None:
    """Each contradiction names the field and what to do."""
    with pytest.raises(ValidationError) as refused:
        keyed(processor, **channel)
    assert words in str(refused.value)

"""Conflicts and promises in the configuration of a channel with state."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import ChannelConfig, Config, ReloadEffect, diff
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
    letters = keyed(rejects={"failing": "dead_letter", "topic": "dead"})
    assert "facts that cannot be reduced go to dead, once" in str(guarantee(letters))


def test_poison_and_late_facts_are_two_exceptions() -> None:
    """The guarantee says of each whether it is left out, or where it goes."""
    rejects = {"failing": "skip", "late": "dead_letter", "topic": "dead"}
    said = str(guarantee(keyed({"grace": "5s"}, rejects=rejects)))
    assert said.endswith(
        "; facts that cannot be reduced are left out; facts that are more than 5 s late go to "
        "dead, once"
    )
    dropped = str(guarantee(keyed({"grace": "5s"}, rejects={"late": "skip"})))
    assert dropped.endswith("; facts that are more than 5 s late are left out")


def test_shed_records_are_an_exception_of_the_guarantee() -> None:
    """The guarantee has the limit, the choice and the topic of the copies."""
    rejects = {"max_pending": 50, "overflow_choice": "oldest", "topic": "left"}
    said = "what is beyond 50 waiting records of a partition is left out (oldest) and goes to left"
    chosen = keyed(rejects={"overflow": "dead_letter", **rejects})
    assert said in str(guarantee(chosen))
    assert "is left out" not in str(guarantee(keyed({"max_rate": 5})))


SEVERAL = {"type": "several", "outputs": {"a": {"type": "noop"}, "b": {"type": "console"}}}


@pytest.mark.parametrize(
    ("overflow", "channel", "words"),
    [
        ("dead_letter", {"sink": "noop"}, "cannot be in one transaction with the noop sink"),
        ("skip", {"sink": SEVERAL}, "records cannot be left out with a sink of type several"),
        ("skip", {"source": "by_reference"}, "cannot be left out with source: by_reference"),
    ],
)
def test_a_channel_of_spark_sheds_where_that_can_be_stored(
    overflow: str, channel: dict[str, Any], words: str
) -> None:
    """Copies with the Kafka sink only; nothing without the records, or with outputs apart."""
    rejects = {"overflow": overflow, **({"topic": "left"} if overflow == "dead_letter" else {})}
    spark = {"type": "spark", "reducer": "m:reduce"}
    with pytest.raises(ValidationError) as refused:
        ChannelConfig.model_validate(
            {
                "topics": ["in"],
                "group": "g",
                "processor": spark,
                "rejects": rejects,
                "sink": {"type": "kafka", "topic": "out"},
                **channel,
            }
        )
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("processor", "channel", "words"),
    [
        (
            {"key": "value.id"},
            {"topics": ["in", "more"]},
            "re-key each in a channel of its own",
        ),
        ({"time": "m:f"}, {"topics": ["in", "more"]}, "are merged before any code of yours runs"),
        (
            {},
            {"topics": ["in", "more"], "rejects": {"overflow": "skip", "max_pending": 5}},
            "would have the others wait",
        ),
        ({"max_task_idle": "900ms"}, {"topics": ["in", "more"]}, "is 0.9s; take 1s or longer"),
        ({"max_task_idle": "2s"}, {}, "exists only where topics has several"),
        ({}, {"topics": ["^in.*"]}, "name each topic"),
        ({}, {"sink": {"type": "jsonl", "path": "/x"}}, "does not fit the keyed processor"),
        (
            {},
            {"sink": {"type": "several", "outputs": {"a": {"type": "noop"}}}},
            "cannot be in one transaction with the state",
        ),
        ({}, {"sink": {"type": "kafka"}}, "each output has one"),
        ({}, {"sink": {"type": "kafka", "topic": "in"}}, "which the channel reads"),
        ({}, {"offsets": {"fencing": "transactions"}, "sink": None}, "that of its state"),
        ({}, {"source": "by_reference"}, "needs the records themselves"),
        ({"reducer": None}, {}, "is missing"),
        ({"factory": "m:F"}, {}, "is given beside factory"),
        ({"options": {"a": 1}}, {}, "options exists only with factory"),
        ({}, {"rejects": {"late": "skip"}}, "rejects.late exists only with processor.grace"),
        ({}, {"rejects": {"failing": "quarantine"}}, "is missing; failing: quarantine needs a t"),
        ({}, {"rejects": {"topic": "dead"}}, "topic exists only with failing: dead_letter, und"),
        ({}, {"rejects": {"headers": "connect"}}, "headers exists only with failing: dead_letter"),
        (
            {},
            {"rejects": {"failing": "dead_letter", "topic": "in"}},
            "is in, which the channel reads itself",
        ),
        ({}, {"rejects": {"max_pending": 5}}, "max_pending exists only with overflow: skip"),
        ({}, {"rejects": {"overflow_choice": "newest"}}, "exists only with overflow: skip"),
        ({"max_rate": 0}, {}, "max_rate"),
        ({"time": "at"}, {}, "is not record, value.<field>, or an import"),
        ({"time": "foo bar:1baz"}, {}, "or an import path"),
        ({"time": "value.at", "value": "bytes"}, {}, "write value: json, or name a function"),
        ({"idle": "500ms"}, {}, "is 0.5s; take 1s or longer"),
        ({"grace": "1h"}, {}, "is missing; processor.grace needs what becomes of a later fact"),
        ({"state": {"cache": "-1"}}, {}, "is not"),
    ],
)
def test_a_conflict_of_fields_is_refused(
    processor: dict[str, Any], channel: dict[str, Any], words: str
) -> None:
    """The message names the field and the remedy."""
    with pytest.raises(ValidationError) as refused:
        keyed(processor, **channel)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"max_pending": 5}, ReloadEffect.IN_PLACE),
        ({"overflow_choice": "sample"}, ReloadEffect.IN_PLACE),
        ({"late": "dead_letter"}, ReloadEffect.IN_PLACE),
        ({"undecodable": "quarantine"}, ReloadEffect.IN_PLACE),
        ({"headers": "connect"}, ReloadEffect.CHANNEL),
        ({"topic": "left"}, ReloadEffect.CHANNEL),
    ],
)
def test_rejects_are_changed_in_place_but_for_their_topic(
    change: dict[str, Any], effect: ReloadEffect
) -> None:
    """The topic is looked for as the channel starts."""
    former = {"overflow": "skip", "failing": "dead_letter", "topic": "dead", "late": "skip"}
    one, other = (
        Config.model_validate(
            {
                "kafka": {"bootstrap_servers": "k:9092"},
                "zookeeper": {"hosts": "z:2181"},
                "channels": {"one": keyed({"grace": "5s"}, rejects=each).model_dump(by_alias=True)},
            }
        )
        for each in (former, {**former, **change})
    )
    (found,) = diff(one, other)
    assert (found.path.rpartition(".")[2], found.effect) == (next(iter(change)), effect)

"""What the configuration of a channel with state refuses, and what it promises."""

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
    letters = keyed({"on_poison": "dead_letter", "dead_letter": "dead"})
    assert "facts that cannot be reduced go to dead, once" in str(guarantee(letters))


def test_what_becomes_of_poison_and_of_late_facts_are_two_exceptions() -> None:
    """The guarantee says of each whether it is left out, or where it goes."""
    late = {"late": "dead_letter", "grace": "5s", "dead_letter": "dead"}
    said = str(guarantee(keyed({"on_poison": "drop", **late})))
    assert said.endswith(
        "; facts that cannot be reduced are left out; facts that are more than 5 s late go to "
        "dead, once"
    )
    dropped = str(guarantee(keyed({"late": "drop", "grace": "5s"})))
    assert dropped.endswith("; facts that are more than 5 s late are left out")


def test_what_is_shed_is_an_exception_of_the_guarantee() -> None:
    """It says from how many on, which, and where the copies are."""
    shedding = {"policy": "shedding", "max_pending": 50, "shed": "oldest", "to": "left"}
    said = "what is beyond 50 waiting records of a partition is shed (oldest) and goes to left"
    assert said in str(guarantee(keyed({"admission": shedding})))
    assert "is shed" not in str(guarantee(keyed({"admission": {"policy": "throttling"}})))


SEVERAL = {"type": "several", "outputs": {"a": {"type": "noop"}, "b": {"type": "console"}}}


@pytest.mark.parametrize(
    ("admission", "channel", "words"),
    [
        ({"to": "left"}, {"sink": "noop"}, "cannot be in one transaction with the noop sink"),
        ({}, {"sink": SEVERAL}, "records cannot be shed with a sink of type several"),
        ({}, {"source": "by_reference"}, "records cannot be shed with source: by_reference"),
    ],
)
def test_a_channel_of_spark_sheds_where_that_can_be_stored(
    admission: dict[str, Any], channel: dict[str, Any], words: str
) -> None:
    """Copies with the Kafka sink only; nothing without the records, or with outputs apart."""
    shedding = {"policy": "shedding", **admission}
    spark = {"type": "spark", "reducer": "m:reduce", "admission": shedding}
    with pytest.raises(ValidationError) as refused:
        ChannelConfig.model_validate(
            {
                "topics": ["in"],
                "group": "g",
                "processor": spark,
                "sink": {"type": "kafka", "topic": "out"},
                **channel,
            }
        )
    assert words in str(refused.value)


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
        (
            {"admission": {"max_rate": 5}},
            {},
            "has no effect with policy: blocking; leave it out, or write policy: throttling",
        ),
        ({"admission": {"policy": "shedding", "overflow": "shed"}}, {}, "no effect with policy: s"),
        ({"admission": {"max_pending": 5}}, {}, "nothing is shed; leave it out, or write policy:"),
        (
            {"admission": {"policy": "throttling", "to": "left"}},
            {},
            "nothing is shed; leave it out, or write overflow: shed",
        ),
        (
            {"admission": {"policy": "throttling", "max_rate": 0}},
            {},
            "max_rate",
        ),
        (
            {"admission": {"policy": "shedding", "to": "in"}},
            {},
            "is in, which the channel reads itself",
        ),
        ({"time": "at"}, {}, "is not record, value.<field>, or an import"),
        ({"time": "foo bar:1baz"}, {}, "or an import path"),
        ({"time": "value.at", "value": "bytes"}, {}, "write value: json, or name a function"),
        ({"idle": "500ms"}, {}, "is 0.5s; take 1s or longer"),
        ({"grace": "1h"}, {}, "has no effect with late: deliver"),
        ({"state": {"cache": "-1"}}, {}, "is not"),
    ],
)
def test_what_does_not_go_together_is_refused(
    processor: dict[str, Any], channel: dict[str, Any], words: str
) -> None:
    """Each conflict names the field and what to do."""
    with pytest.raises(ValidationError) as refused:
        keyed(processor, **channel)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"max_pending": 5}, ReloadEffect.IN_PLACE),
        ({"shed": "sample"}, ReloadEffect.IN_PLACE),
        ({"to": "left"}, ReloadEffect.CHANNEL),
    ],
)
def test_admission_is_changed_in_place_but_for_its_topic(
    change: dict[str, Any], effect: ReloadEffect
) -> None:
    """The topic is looked for as the channel starts."""
    former = {"policy": "shedding"}
    one, other = (
        Config.model_validate(
            {
                "kafka": {"bootstrap_servers": "k:9092"},
                "zookeeper": {"hosts": "z:2181"},
                "channels": {"one": keyed({"admission": each}).model_dump(by_alias=True)},
            }
        )
        for each in (former, {**former, **change})
    )
    (found,) = diff(one, other)
    assert (found.path.rpartition(".")[2], found.effect) == (next(iter(change)), effect)

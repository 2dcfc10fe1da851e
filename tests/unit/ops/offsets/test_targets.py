from __future__ import annotations

import pytest

from headrace.config.subscription import Subscription
from headrace.core.errors import UsageError
from headrace.core.positions import At, Earliest, Latest, ShiftBy, Target, To, parse_target
from headrace.core.records import TopicPartition
from headrace.kafka.ports import TopicInfo
from headrace.ops.offsets.reader import TopicSelection, parse_selection, selected

KNOWN = {"events": TopicInfo("events", "id-1", 3), "other": TopicInfo("other", "id-2", 1)}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Earliest()),
        ("latest", Latest()),
        ("datetime:2013-01-01T05:00:00Z", At(1_357_016_400_000)),
        ("offset:0", To(0)),
        ("offset:9223372036854775807", To(2**63 - 1)),
        ("shift-by:12", ShiftBy(12)),
        ("shift-by:+12", ShiftBy(12)),
        ("shift-by:-12", ShiftBy(-12)),
    ],
)
def test_a_target_is_parsed(text: str, target: Target) -> None:
    """Each form of --to means one kind of target."""
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "first", "earliest:", "offset", "offset:", "offset:-1", "offset:9223372036854775808",
     "shift-by:", "shift-by:1.5", "datetime:", "datetime:noon"],
)  # fmt: skip
def test_an_invalid_target_is_refused(text: str) -> None:
    """The message shows the forms, or how to write a time."""
    with pytest.raises(ValueError, match=r"shift-by:N|2013-01-01T05:00:00Z"):
        parse_target(text)


def test_a_choice_is_a_topic_or_some_of_its_partitions() -> None:
    """The syntax is that of kafka-consumer-groups.sh."""
    assert parse_selection("events") == TopicSelection("events")
    assert parse_selection("events:2,0") == TopicSelection("events", (2, 0))
    for text in ("", ":1", "events:", "events:a", "events:1,", "events:-1"):
        with pytest.raises(ValueError, match="TOPIC:0,3"):
            parse_selection(text)


def test_no_choice_means_all_partitions_of_the_channel() -> None:
    """In order of topic and number."""
    names = [str(p) for p in selected([], Subscription(("other", "events")), KNOWN)]
    assert names == ["events-0", "events-1", "events-2", "other-0"]


def test_choices_add_up() -> None:
    """A partition that is chosen twice is listed once."""
    choices = [
        TopicSelection("events", (2, 0)),
        TopicSelection("events", (0,)),
        TopicSelection("other"),
    ]
    found = selected(choices, Subscription(("events", "other")), KNOWN)
    assert found == [
        TopicPartition("events", 0),
        TopicPartition("events", 2),
        TopicPartition("other", 0),
    ]


def test_everything_that_cannot_be_chosen_is_named() -> None:
    """Foreign topics, missing ones and missing partitions, all at once."""
    choices = [TopicSelection("other"), TopicSelection("gone"), TopicSelection("events", (0, 3))]
    with pytest.raises(UsageError) as refused:
        selected(choices, Subscription(("events", "gone")), KNOWN)
    assert refused.value.problems == (
        "topic other is not of this channel, which reads events, gone",
        "topic gone does not exist on the brokers; create it, or choose others with --topic",
        "topic events has no partition 3; it has 3, from 0 on",
    )


def test_a_pattern_lends_its_topics_to_be_chosen() -> None:
    """All that exist by default; one that would match is the channel's also when it is missing."""
    subscription = Subscription(("^e",))
    known = {"events": KNOWN["events"]}
    assert len(selected([], subscription, known)) == 3
    assert selected([], subscription, {}) == []
    with pytest.raises(UsageError) as refused:
        selected([TopicSelection("eggs"), TopicSelection("other")], subscription, known)
    assert refused.value.problems == (
        "topic eggs does not exist on the brokers; create it, or choose others with --topic",
        "topic other is not of this channel, which reads ^e",
    )

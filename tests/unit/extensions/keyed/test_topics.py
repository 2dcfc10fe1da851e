"""The topics that a channel with state has for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.config.models.channel import ChannelConfig
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.keyed.topics import CHANGELOG_SETTINGS, open_changelog, split_keys
from headrace.kafka.ports import TopicInfo

if TYPE_CHECKING:
    from collections.abc import Collection


class Catalog:
    """Knows an input and its changelog, which has these settings."""

    def __init__(self, **settings: str) -> None:
        self._settings = {each.replace("_", "."): value for each, value in settings.items()}

    def describe(self, topics: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
        """Return all that are asked for."""
        del deadline
        return {name: TopicInfo(name, f"id of {name}", 8) for name in topics}

    def settings(self, topic: str, deadline: Deadline) -> dict[str, str]:
        """Return what a changelog is created with, and what is other here."""
        del topic, deadline
        return {**CHANGELOG_SETTINGS, **self._settings}


def opened(catalog: Catalog, max_row: int = 0) -> str:
    """Open the changelog; return its id."""
    deadline = Deadline.after(1)
    return open_changelog(catalog, "g", "in", deadline, max_row=max_row).topic_id  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "words"),
    [("delete", "is not compacted"), ("compact,delete", "deletes what is older")],
)
def test_a_changelog_that_would_lose_states_is_refused(policy: str, words: str) -> None:
    """It is not compacted, or deletes what does not change for its retention as well."""
    with pytest.raises(StartError, match=rf"topic g.in.state, .* {words}.*set it to compact"):
        opened(Catalog(cleanup_policy=policy))


def test_doubtful_settings_of_a_changelog_are_logged() -> None:
    """Deletions that are soon gone, and states that the brokers would refuse."""
    with capture_logs() as logs:
        assert opened(Catalog(), 1000) == "id of g.in.state"
    assert logs == []
    with capture_logs() as logs:
        opened(Catalog(delete_retention_ms="60000", max_message_bytes="999"), 1000)
    assert [each["event"] for each in logs] == ["changelog_doubtful"] * 2
    assert "delete.retention.ms=60000" in logs[0]["reason"]
    assert "max.message.bytes=999" in logs[1]["reason"]


def test_an_input_with_fewer_partitions_is_not_told_to_be_repartitioned() -> None:
    """No command makes fewer of more: the sentence says what there is to do."""
    said = split_keys("in", 2, 4, "g.in.state")
    assert "repartition" not in said
    assert "give in 4 partitions as well" in said
    assert "delete g.in.state" in said


def test_a_state_of_several_topics_is_not_told_to_be_repartitioned() -> None:
    """That command goes with one topic; the step is one that can be done."""
    chosen = {"type": "keyed", "engine": "arrow", "reducer": "m:f"}
    for topics, words in ((["a"], "state repartition moves"), (["a", "b"], "state forget begins")):
        document = {"topics": topics, "group": "g", "processor": chosen}
        channel = ChannelConfig.model_validate(document)
        assert isinstance(channel.processor, StateProcessorConfig)
        assert words in channel.processor.split_step(channel)

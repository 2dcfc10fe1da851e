"""The names of the topics that a channel with state keeps for itself."""

from __future__ import annotations

#: What the name of a re-keying channel, and of its group, ends with.
REKEY_SUFFIX = ".rekey"

#: What is added to the name of a topic for its changelog.
CHANGELOG_SUFFIX = ".state"


#: What a by-key topic has to have: nothing but the channel that reads it takes records away from
#: it, and their times are those of the input.
BY_KEY_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}

#: The next step where keys of an input are split, once all members are stopped.
REPARTITION = "headrace state repartition moves each key to where it belongs"


def by_key_topic(group: str, topic: str) -> str:
    """Return the topic that a group's re-keyed records of a topic are in."""
    return f"{group}.{topic}.by-key"


def is_by_key(group: str, topic: str) -> bool:
    """Return whether a topic has the re-keyed records of a group."""
    return topic.startswith(f"{group}.") and topic.endswith(".by-key")


def changelog_name(group: str, topic: str) -> str:
    """Return the name of the changelog of a channel that reads a topic."""
    if is_by_key(group, topic):
        return f"{topic}{CHANGELOG_SUFFIX}"
    return f"{group}.{topic}{CHANGELOG_SUFFIX}"

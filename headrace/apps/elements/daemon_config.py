"""The configuration of a process that runs an application of elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.apps.elements.element import SAME_KEY
from headrace.apps.elements.plan import Wired
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.apps.elements.plan import AppPlan, Part, WiredStream

#: How long a batch waits for more records: each change of key waits so long.
_LINGER = "5ms"

#: Time between two deletions of what is processed of the application's own topics.
_PURGE = "30s"


def dead_letters(name: str) -> str:
    """Return the topic of events that no element could process."""
    return f"{name}.dead"


@dataclass(frozen=True, slots=True)
class AppNode:
    """A process for an application. ``app`` is its import path, ``folder`` what outlives it.

    ``python_path`` are folders that the code is imported from.
    """

    app: str
    plan: AppPlan
    brokers: str
    folder: Path
    zookeeper: str = "localhost:2181"
    engine: str = "arrow"
    properties: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()

    def configuration(self) -> dict[str, Any]:
        """Return the configuration that ``headrace run`` takes.

        Raises:
            ConfigError: an element is one a member, and the engine has workers.
        """
        plan = self.plan
        members = [each.name for each in plan.elements.values() if each.singleton == "member"]
        if members and self.engine != "arrow":
            text = (
                f"element {members[0]}: it is one for each member, in the memory of its process, "
                f"and engine is {self.engine}, which has workers; take engine arrow, or write "
                "singleton='partition'"
            )
            raise ConfigError([text])
        channels: dict[str, Any] = {}
        for part in plan.parts:
            for stream in plan.streams.values():
                name = f"{plan.name}.{stream.name}.intake"
                if stream.wired is not Wired.INPUT or stream.name not in part.topics:
                    continue
                if stream.is_rekeyed:
                    channels[name] = self._intake(name, stream, part)
                elif stream.name in part.everywhere:
                    channels[name] = self._relay(name, stream, part)
            channels[part.group] = self._part(part)
        properties = {"properties": dict(self.properties)} if self.properties else {}
        return {
            "state_dir": str(self.folder),
            **({"python_path": list(self.python_path)} if self.python_path else {}),
            "kafka": {"bootstrap_servers": self.brokers, **properties},
            "zookeeper": {"hosts": self.zookeeper},
            "channels": channels,
        }

    def _intake(self, name: str, stream: WiredStream, part: Part) -> dict[str, Any]:
        """Return the channel that writes an input stream again by the key that is found."""
        finder = stream.stream.key
        chosen: dict[str, Any] = {"key": f"value.{finder}"}
        if not isinstance(finder, str) or any(each in finder for each in ": \t\n"):
            chosen = {
                "key": "headrace.apps.elements:key_function",
                "options": {"app": self.app, "stream": stream.name, "name": self.plan.name},
            }
        return {
            "topics": [stream.topic],
            "group": name,
            "processor": {"type": "rekey", **chosen, "engine": self.engine},
            "rejects": {"undecodable": "dead_letter", "topic": dead_letters(self.plan.name)},
            "batch": {"linger": _LINGER},
            "sink": {"type": "kafka", "topic": part.topics[stream.name]},
        }

    def _relay(self, name: str, stream: WiredStream, part: Part) -> dict[str, Any]:
        """Return the channel that writes an input stream again, to each partition of a part."""
        return {
            "topics": [stream.topic],
            "group": name,
            "processor": {
                "type": "keyed",
                "factory": "headrace.apps.elements:relay_reducer",
                "key": "partition",
                "engine": self.engine,
            },
            "rejects": {"failing": "dead_letter", "topic": dead_letters(self.plan.name)},
            "batch": {"linger": _LINGER},
            "sink": {"type": "kafka", "topic": part.topics[stream.name], "to_all": True},
        }

    def _part(self, part: Part) -> dict[str, Any]:
        """Return the channel of the elements of a part."""
        plan, read = self.plan, {*part.topics.values()}
        everywhere = plan.topics_everywhere
        purge = {"internal": {"purge_input": _PURGE}} if part.is_internal else {}
        outputs = {
            name: {
                "type": "kafka",
                "topic": topic,
                **({"loop": True} if topic in read else {}),
                **({"to_all": True} if topic in everywhere else {}),
            }
            for name, topic in plan.written_by(part).items()
        }
        return {
            "topics": list(part.topics.values()),
            "group": part.group,
            "processor": {
                "type": "keyed",
                "factory": "headrace.apps.elements:app_reducer",
                "options": {
                    "app": self.app,
                    "part": part.name,
                    "name": plan.name,
                    "plan": plan.digest,
                },
                "key": part.key,
                "engine": self.engine,
                **purge,
            },
            "rejects": {"failing": "dead_letter", "topic": dead_letters(plan.name)},
            "batch": {"linger": _LINGER},
            **({"sink": {"type": "several", "outputs": outputs}} if outputs else {}),
        }


def own_topics(plan: AppPlan) -> dict[str, tuple[str, ...]]:
    """Return the topics between elements, each with those that have as many partitions."""
    found: dict[str, tuple[str, ...]] = {}
    for part in plan.parts:
        beside = tuple(
            each.topic
            for each in plan.streams.values()
            if each.wired is Wired.INPUT
            and each.stream.key is SAME_KEY
            and each.name in part.topics
        )
        for topic in part.topics.values():
            if topic in plan.internal_topics:
                found[topic] = beside
    return found

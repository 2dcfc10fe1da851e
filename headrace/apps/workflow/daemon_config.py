"""The configuration of a process that reduces workflows, or makes their calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.apps.workflow.topics import Topics

#: The channels' names in the configuration.
REDUCER, WORKERS = "workflow", "assignments"

#: How long a batch waits for more records. An instance waits so long for each of its steps, twice,
#: and what comes while a micro-batch is reduced is in the next one all the same.
_LINGER = "5ms"

#: A batch of calls is answered when the slowest of them is, or when its time is over, and any may
#: have hours. Nothing is retried sooner for a shorter limit: each call has a time-out of its own.
_BATCH_TIMEOUT = "24h"

#: A call that takes hours is not to keep others of its partition from a worker that has joined.
_RELEASE_TIMEOUT = "5m"


class NodeRole(Enum):
    """The role of a process that runs workflows."""

    BOTH = "both"
    """It reduces instances, and makes calls."""

    REDUCER = "reducer"
    """It reduces instances."""

    WORKER = "worker"
    """It makes calls."""


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A process for workflows. ``workflows`` is an import path, ``folder`` what outlives it.

    ``python_path`` are folders that the workflows are imported from. With ``history`` the reducer
    writes an instance's state after each step.
    """

    workflows: str
    brokers: str
    topics: Topics
    folder: Path
    zookeeper: str = "localhost:2181"
    role: NodeRole = NodeRole.BOTH
    threads: int = 4
    engine: str = "arrow"
    properties: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    history: bool = False

    def configuration(self) -> dict[str, Any]:
        """Return the configuration that ``headrace run`` takes."""
        channels: dict[str, Any] = {}
        if self.role is not NodeRole.WORKER:
            channels[REDUCER] = self._reducer()
        if self.role is not NodeRole.REDUCER:
            channels[WORKERS] = self._workers()
        properties = {"properties": dict(self.properties)} if self.properties else {}
        return {
            "state_dir": str(self.folder),
            **({"python_path": list(self.python_path)} if self.python_path else {}),
            "kafka": {"bootstrap_servers": self.brokers, **properties},
            "zookeeper": {"hosts": self.zookeeper},
            "channels": channels,
        }

    def _reducer(self) -> dict[str, Any]:
        topics = self.topics
        outputs = {
            "assignments": topics.assignments,
            "results": topics.results,
            "outcomes": topics.outcomes,
        }
        options: dict[str, Any] = {"workflows": self.workflows}
        if self.history:
            outputs["history"] = topics.history
            options["history"] = True
        return {
            "topics": [topics.events],
            "group": topics.name,
            "processor": {
                "type": "keyed",
                "factory": "headrace.apps.workflow:Workflow",
                "options": options,
                "engine": self.engine,
            },
            "rejects": {"failing": "dead_letter", "topic": topics.dead_letters},
            "batch": {"linger": _LINGER},
            "sink": {
                "type": "several",
                "outputs": {n: {"type": "kafka", "topic": each} for n, each in outputs.items()},
            },
        }

    def _workers(self) -> dict[str, Any]:
        topics = self.topics
        options: dict[str, Any] = {
            "workflows": self.workflows,
            "brokers": self.brokers,
            "topic": topics.events,
            "threads": self.threads,
        }
        if self.properties:
            options["properties"] = dict(self.properties)
        return {
            "topics": [topics.assignments],
            "group": topics.assignments,
            "processor": {
                "type": "custom",
                "factory": "headrace.apps.workflow.worker:AtomicProcessExecutor",
                "options": options,
            },
            # a call that takes long holds up those that came with it, so few come together
            "batch": {"max_records": 100, "linger": _LINGER},
            "batch_timeout": _BATCH_TIMEOUT,
            "release_timeout": _RELEASE_TIMEOUT,
            "max_in_flight": 4,
        }

"""Instances started and waited for through Kafka: of Headrace, and of a plain asyncio program.

What drives the rounds is the same for both: a producer of starts and a reader of outcomes. With the
setting ``engine`` there are a reducer and two workers, all ``headrace run``; with ``python``, which
has aiokafka, two processes of ``workflow_aiokafka``.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import yaml

from benchmarks.peer_sides.wire import Request, Wire
from benchmarks.peer_sides.workflow_work import Child, Order, serve
from headrace.apps.workflow.daemon_config import NodeRole, WorkflowNode
from headrace.apps.workflow.messages import start_message
from headrace.apps.workflow.topics import PARTITIONER, TopicReader, Topics, create_topics
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.topic_producer import TopicProducer, create_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Seconds that the broker may take to store starts.
_PATIENCE = 60.0

#: Partitions of each topic.
_PARTITIONS = 8

#: Calls that a worker makes at once.
THREADS = 4

_ROOT = Path(__file__).parents[2]
_FLOWS = "benchmarks.peer_sides.workflow_flows:flows"


class KafkaSystem:
    """Processes that read what is produced to one topic, and write outcomes to another.

    ``workers`` are the last two of ``children``.
    """

    def __init__(
        self, client: Mapping[str, Any], starts: str, outcomes: str, children: Sequence[Child]
    ) -> None:
        self._producer = TopicProducer({"linger.ms": 1, **client, **PARTITIONER}, starts)
        # a broker knows of a topic a moment after it was created
        deadline = Deadline.after(_PATIENCE)
        assert wait_for(lambda: knows(client, outcomes), deadline), f"no topic {outcomes}"
        self._reader = TopicReader(client, outcomes, from_beginning=False)
        self._children = children
        for child in children:
            child.start()

    def start(self, orders: Sequence[Order]) -> None:
        """Produce starts, and wait until the broker has them."""
        deadline = Deadline.after(_PATIENCE)
        records = ((o.instance.encode(), json.dumps(self._start_of(o)).encode()) for o in orders)
        self._producer.send(records, deadline)
        self._producer.flush(deadline)

    def outcomes(self, timeout: float) -> Iterable[tuple[str, int]]:
        """Yield what came."""
        for record in self._reader.fetch(timeout):
            found = json.loads(record.value() or b"null")
            yield found["instance"], self._result_of(found)

    def kill_worker(self) -> None:
        """Kill the last one, and start it again."""
        self._children[-1].kill()
        self._children[-1].start()

    def require_running(self) -> None:
        """Look at all processes."""
        for child in self._children:
            child.require_running()

    def close(self) -> None:
        """End all processes."""
        with self._reader:
            for child in reversed(self._children):
                child.close()

    @staticmethod
    def _start_of(order: Order) -> dict[str, Any]:
        return {"instance": order.instance, "step": 0, "n": order.n, "pause": order.pause}

    @staticmethod
    def _result_of(outcome: dict[str, Any]) -> int:
        return int(outcome["n"])


def knows(client: Mapping[str, Any], topic: str) -> bool:
    """Whether the broker describes a topic. Blocks."""
    with closing(KafkaTopicCatalog(client, topic)) as catalog:
        return topic in catalog.describe([topic], Deadline.after(_PATIENCE))


class HeadraceSystem(KafkaSystem):
    """A reducer of instances and two workers."""

    @staticmethod
    def _start_of(order: Order) -> dict[str, Any]:
        return start_message(order.instance, "order@1", {"n": order.n, "pause": order.pause})

    @staticmethod
    def _result_of(outcome: dict[str, Any]) -> int:
        return int(outcome["result"])


def headrace(request: Request) -> HeadraceSystem:
    """Return the system whose instances a reducer reduces, with its topics created."""
    client = {"bootstrap.servers": request.servers}
    topics, settings = Topics(request.topic), request.settings
    create_topics(client, topics, partitions=_PARTITIONS, assignments=_PARTITIONS)
    folder = Path(settings["directory"])
    children = []
    for name, role in (
        ("reducer", NodeRole.REDUCER),
        ("worker-1", NodeRole.WORKER),
        ("worker-2", NodeRole.WORKER),
    ):
        node = WorkflowNode(
            _FLOWS,
            request.servers,
            topics,
            folder / name / "state",
            settings["zookeeper"],
            role,
            THREADS,
            settings["engine"],
            python_path=(str(_ROOT),),
        )
        document = node.configuration() | {"instance_id": name, "logging": {"level": "warning"}}
        path = folder / name / "headrace.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        command = (sys.executable, "-m", "headrace", "run", "-c", str(path))
        children.append(Child(name, command, path.parent))
    return HeadraceSystem(client, topics.events, topics.outcomes, children)


def plain(request: Request) -> KafkaSystem:
    """Return the system without a reducer: each worker produces the next step."""
    client = {"bootstrap.servers": request.servers}
    outcomes, settings = f"{request.topic}.outcomes", request.settings
    for topic in (request.topic, outcomes):
        create_topic(client, topic, _PARTITIONS, Deadline.after(_PATIENCE))
    module = "benchmarks.peer_sides.workflow_aiokafka"
    command = (settings["python"], "-m", module, request.servers, request.topic, outcomes)
    folder = Path(settings["directory"])
    children = [Child(name, command, folder / name) for name in ("worker-1", "worker-2")]
    return KafkaSystem(client, request.topic, outcomes, children)


def main() -> None:
    """Serve rounds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    serve(Wire(), lambda request: (headrace if "engine" in request.settings else plain)(request))


if __name__ == "__main__":
    main()

"""Daemons in processes of their own, and what can be seen of them from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.core.progress import Silence, children_at_work, signs_of_work
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.spark.settings import SHORT_LIVED
from headrace.kafka import KafkaOffsetStore
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.brokers import stored_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.brokers import Broker

#: Seconds after which a test gives up.
WAIT = 60.0

#: The user's code in these tests.
_FUNCTIONS = """
import logging
import os
import pathlib
import time

SEEN = pathlib.Path(__file__).with_name("seen")


def keep(record):
    with SEEN.open("ab", buffering=0) as file:
        file.write(record.value() + b"\\n")


def refuse_poison(record):
    if record.value() == b"poison":
        raise ValueError("cannot decode this")
    keep(record)


def say(record):
    logging.getLogger("mine").info("seen %s", record.value().decode(), extra={"by": "say"})
    keep(record)


def hang(record):
    keep(record)
    time.sleep(600)


def freeze_the_coordinator(record):
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry

    ZooKeeperRegistry.heartbeat = lambda self: time.sleep(600)
    keep(record)


def freeze_the_main_loop(record):
    from headrace.controller.controller import KafkaController

    KafkaController.wait = lambda self, timeout: time.sleep(600)
    keep(record)


def freeze_the_fetcher(record):
    from headrace.kafka import KafkaRecordSource

    KafkaRecordSource.fetch = lambda self, timeout: time.sleep(600)
    keep(record)


def dawdle(record):
    time.sleep(0.5)
    keep(record)


def hold(record):
    _pause("hold")
    time.sleep(1)
    keep(record)


def drain(record):
    _pause("drain")
    time.sleep(1)
    keep(record)


def _pause(mode):
    import gc
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.pauses import PauseMode

    for each in gc.get_objects():
        if type(each) is InboundKafkaChannel:
            each.pause(by="test", mode=PauseMode(mode))


def two_arguments(record, other):
    keep(record)
"""


def wait_at_work(ask: Callable[[], object], seconds: float = WAIT) -> bool:
    """Wait for ``seconds``, and three times as long where processes of this one are at work.

    On a busy machine Spark alone takes a minute to start.
    """
    silence = Silence(children_at_work, seconds)
    return bool(wait_for(ask, Deadline.after(3 * seconds), silence))


@dataclass
class Daemon:
    """One ``headrace run``. Its standard error goes to a file, or to the descriptor given."""

    document: dict[str, Any]
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    standard_error: int | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = uuid4().hex[:8]
        self.errors = self.directory / f"{self.name}.err"

    def start(self, *options: str, config: Path | None = None) -> Daemon:
        """Start the process with the document, or with another file."""
        path = config or self.directory / f"{self.name}.yaml"
        if config is None:
            path.write_text(json.dumps(self.document), encoding="utf-8")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "run", "-c", str(path), *options],
                stdout=subprocess.DEVNULL,
                stderr=errors if self.standard_error is None else self.standard_error,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                start_new_session=True,
            )
        return self

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process."""
        assert self.process is not None
        return self.process

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.running.send_signal(number)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.running.wait(WAIT)

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT)

    def text(self) -> str:
        """Return what it said so far."""
        return self.errors.read_text(encoding="utf-8")

    def events(self) -> list[dict[str, Any]]:
        """Return what it logged so far; every line has to be one JSON object."""
        *lines, _ = self.text().split("\n")
        return [json.loads(line) for line in lines]

    def wait_event(self, name: str, seconds: float = WAIT) -> dict[str, Any]:
        """Wait for an event, for three times ``seconds`` where the process is at work."""

        def look() -> dict[str, Any] | None:
            found = [event for event in self.events() if event["event"] == name]
            assert found or self.running.poll() is None, self.text()
            return found[0] if found else None

        silence = Silence(signs_of_work([self.running.pid], [self.errors]), seconds)
        event = wait_for(look, Deadline.after(3 * seconds), silence)
        assert event is not None, self.text()
        return event

    def metric(self, name: str, **labels: str) -> float | None:
        """Scrape the metrics and return one of them, None if it is not there."""
        port = self.wait_event("metrics_served")["port"]
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        values = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return values[0] if values else None


class Site:
    """A topic, a group, a folder with the user's code, and the daemons of one test."""

    def __init__(
        self, broker: Broker, zookeeper_hosts: str, directory: Path, partitions: int = 2
    ) -> None:
        self.broker = broker
        self.zookeeper_hosts = zookeeper_hosts
        self.directory = directory
        self.group = f"group.{uuid4().hex[:12]}"
        self.topic = broker.create_topic(partitions)
        self._daemons: list[Daemon] = []
        self.store = KafkaOffsetStore({"bootstrap.servers": broker.address}, self.group)
        (directory / "functions.py").write_text(_FUNCTIONS, encoding="utf-8")

    def partition(self, number: int) -> TopicPartition:
        """Return a partition of the topic."""
        return TopicPartition(self.topic, number)

    def document(self, function: str = "keep", **channel: Any) -> dict[str, Any]:
        """Return a configuration that delivers single records to a function."""
        return {
            "instance_id": "one",
            "state_dir": str(self.directory / "state"),
            "shutdown_timeout": "20s",
            "python_path": [str(self.directory)],
            "kafka": {"bootstrap_servers": self.broker.address},
            "zookeeper": {"hosts": self.zookeeper_hosts, "connect_timeout": "20s"},
            "metrics": {"port": 0},
            "channels": {
                "main": {
                    "topics": [self.topic],
                    "group": self.group,
                    "processor": {"type": "simple", "deliver": "record"},
                    "sink": f"functions:{function}",
                    "coordinator": {"type": "dynamic", "rebalance_delay": "50ms"},
                    "batch": {"linger": 0},
                    "commit_interval": "50ms",
                    **channel,
                }
            },
        }

    def daemon(self, document: dict[str, Any]) -> Daemon:
        """Return a daemon that is ended with the test."""
        self._daemons.append(Daemon(document, self.directory))
        return self._daemons[-1]

    def run(self, function: str = "keep", **channel: Any) -> Daemon:
        """Start a daemon."""
        return self.daemon(self.document(function, **channel)).start()

    def seen(self) -> list[str]:
        """Return the values that the function got."""
        file = self.directory / "seen"
        return file.read_text().splitlines() if file.exists() else []

    def offsets(self) -> list[int | None]:
        """Return the group's offsets of both partitions."""
        stored = [stored_offset(self.store, self.partition(n)) for n in (0, 1)]
        return [None if found is None else found.offset for found in stored]

    def nodes(self) -> list[str]:
        """Return the member and owner nodes of the group."""
        paths = GroupPaths(self.group)
        with self.zookeeper() as session:
            parents = [p for p in (paths.ids, paths.owners(self.topic)) if session.exists(p)]
            return [f"{parent}/{child}" for parent in parents for child in session.children(parent)]

    @contextmanager
    def zookeeper(self) -> Iterator[ZooKeeperSession]:
        """Open a session beside the daemons'."""
        session = ZooKeeperSession(ZooKeeperSettings(self.zookeeper_hosts))
        session.start()
        try:
            yield session
        finally:
            assert session.close(Deadline.after(WAIT))

    def close(self) -> None:
        """End all daemons."""
        for daemon in self._daemons:
            daemon.kill()
        self.store.close()


def spark_section(cores: int, **more: Any) -> dict[str, Any]:
    """Return a configuration's section for a session that starts soon, for a few batches."""
    properties = {"spark.driver.extraJavaOptions": SHORT_LIVED}
    return {"master": f"local[{cores}]", "warm_up": 0, "properties": properties, **more}


def eventually(condition: Any) -> None:
    """Ask until the answer is yes."""
    assert wait_for(condition, Deadline.after(WAIT))

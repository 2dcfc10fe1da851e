"""The collector's commands with a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from headrace.apps.collector import Collector
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.names import by_key_topic, changelog_name
from headrace.kafka.topic_producer import TopicProducer, create_topic
from headrace.testing.keyed import KeyedTest
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from pathlib import Path


#: Seconds after which a test gives up.
WAIT = 60.0


@pytest.fixture
def topic(bootstrap_servers: str) -> str:
    """Name a topic of three partitions that nothing else uses."""
    name = f"eventbus-{uuid.uuid4().hex[:8]}"
    create_topic({"bootstrap.servers": bootstrap_servers}, name, 3, Deadline.after(30))
    return name


def environment(bootstrap_servers: str, topic: str) -> dict[str, str]:
    """Return the variables of a user who has set those of the original."""
    mine = {"COLLECTOR_BROKERLIST": bootstrap_servers, "COLLECTOR_EVENT_TOPIC": topic}
    return {**os.environ, **mine}


def run(bootstrap_servers: str, topic: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command of the collector's; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "collector", *arguments],
        capture_output=True,
        check=False,
        env=environment(bootstrap_servers, topic),
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_group_is_created_answered_and_watched(bootstrap_servers: str, topic: str) -> None:
    """The events that the commands produce lead to an outcome, which watch finds at any time."""
    test = KeyedTest(Collector())
    lines = (
        ("create", "g", "a", "--ttl", "60", "--payload", '{"z": 1}'),
        ("done", "g", "a", "--result", "[1]"),
    )
    for at, line in enumerate(lines):
        code, printed, _ = run(bootstrap_servers, topic, *line)
        assert code == 0
        test.send((line[1], json.loads(printed), at))
    (outcome,) = test.outputs
    assert outcome.value["results"] == {"a": [1]}
    text = json.dumps(outcome.value)
    producer = TopicProducer({"bootstrap.servers": bootstrap_servers}, topic)
    producer.send([(b"g", text.encode())], Deadline.after(30))
    producer.flush(Deadline.after(30))
    watch = "watch", "g", "--outcome-topic", topic
    assert run(bootstrap_servers, topic, *watch, "--wait", "30")[:2] == (0, f"{text}\n")
    code, printed, said = run(bootstrap_servers, topic, *watch, "--new", "--wait", "3")
    assert (code, printed) == (4, "")
    assert said == f"{topic} was read to its end; waiting for that of group 'g'\n"


@pytest.mark.parametrize("command", [["watch"], ["create", "g"], ["done", "g", "a"]])
def test_a_missing_topic_is_named(bootstrap_servers: str, command: list[str]) -> None:
    """Each command fails at once, with what to do."""
    code, printed, said = run(bootstrap_servers, "nowhere", *command)
    assert (code, printed) == (1, "")
    option = "--outcome-topic" if command == ["watch"] else "--event-topic"
    topic = "nowhere-outcomes" if command == ["watch"] else "nowhere"
    assert f"there is no topic {topic!r}; name another with {option}" in said


class Running:
    """``headrace collector run`` in a folder."""

    def __init__(
        self, directory: Path, bootstrap_servers: str, zookeeper: str, topic: str, *more: str
    ) -> None:
        options = ["--state-dir", str(directory), "--engine", "arrow", "--create", *more]
        self._log = directory.with_suffix(".log")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "collector", "run", *options],
                env={**environment(bootstrap_servers, topic), "COLLECTOR_ZOOKEEPER": zookeeper},
                stdout=log,
                stderr=log,
            )

    @property
    def text(self) -> str:
        """Return the output of this process and of those before it in the folder."""
        return self._log.read_text(encoding="utf-8")

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT)


def send_and_wait(servers: str, topic: str, event: list[str], *, changes: int) -> bool:
    """Send an event as soon as there is a topic; wait until so many changes are stored."""
    states = changelog_name("collector", by_key_topic("collector", topic))
    sent = wait_for(lambda: run(servers, topic, *event)[0] == 0, Deadline.after(WAIT))
    return bool(sent) and bool(
        wait_for(lambda: len(committed_records(servers, states)) == changes, Deadline.after(WAIT))
    )


@pytest.mark.slow
def test_events_and_outcomes_may_share_a_topic(
    bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Each outcome is there once, byte for byte as the original has it, and sets nothing off."""
    topic = f"eventbus-{uuid.uuid4().hex[:8]}"
    mine = ["--mode", "compat", "--outcome-topic", topic]
    running = Running(tmp_path / "state", bootstrap_servers, zookeeper_hosts, topic, *mine)
    watch = ["watch", "--outcome-topic", topic, "--wait"]
    try:
        create = ["create", "g", "a"]
        assert wait_for(
            lambda: run(bootstrap_servers, topic, *create)[0] == 0, Deadline.after(WAIT)
        ), running.text
        assert run(bootstrap_servers, topic, "done", "g", "a", "--error", "<none>")[0] == 0
        code, printed, _ = run(bootstrap_servers, topic, *watch, "30", "g")
        assert run(bootstrap_servers, topic, *watch, "5")[:2] == (0, printed)
    finally:
        ended = running.end(signal.SIGTERM)
    assert ended == 0, running.text
    assert code == 1
    assert '"error":"\\u003cnone\\u003e","created":' in printed
    assert len(committed_records(bootstrap_servers, topic)) == 3


def test_a_group_outlives_the_collector(
    bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """A collector that is stopped and killed between a group's events goes on where it was."""
    topic = f"eventbus-{uuid.uuid4().hex[:8]}"
    events = [
        ["create", "g", "a", "b", "--ttl", "3600", "--payload", '{"group": "payload"}'],
        ["done", "g", "a", "--result", '{"bar": true}'],
        ["done", "g", "b", "--result", "[1, 2]"],
    ]
    signals = [signal.SIGTERM, signal.SIGKILL, signal.SIGTERM]
    for count, (number, event) in enumerate(zip(signals, events, strict=True), start=1):
        running = Running(tmp_path / "state", bootstrap_servers, zookeeper_hosts, topic)
        try:
            changed = send_and_wait(bootstrap_servers, topic, event, changes=count)
            assert changed, running.text
        finally:
            code = running.end(number)
        assert code == (0 if number == signal.SIGTERM else -number), running.text
    code, printed, _ = run(bootstrap_servers, topic, "watch", "g", "--wait", "30")
    outcome = json.loads(printed)
    assert (code, outcome["type"]) == (0, "EventGroupCollectorSuccess")
    assert outcome["results"] == {"a": {"bar": True}, "b": [1, 2]}
    assert outcome["payload"] == {"group": "payload"}
    assert run(bootstrap_servers, topic, "watch", "--wait", "3")[:2] == (0, printed)

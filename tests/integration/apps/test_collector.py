"""The collector's commands with a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from headrace.apps.collector import Collector
from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer, create_topic
from headrace.testing.keyed import KeyedTest


@pytest.fixture
def topic(bootstrap_servers: str) -> str:
    """Name a topic of three partitions that nothing else uses."""
    name = f"eventbus-{uuid.uuid4().hex[:8]}"
    create_topic({"bootstrap.servers": bootstrap_servers}, name, 3, Deadline.after(30))
    return name


def run(bootstrap_servers: str, topic: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command of the collector's; return its exit code and what it printed."""
    variables = {"COLLECTOR_BROKERLIST": bootstrap_servers, "COLLECTOR_EVENT_TOPIC": topic}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "collector", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **variables},
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_group_is_created_answered_and_watched(bootstrap_servers: str, topic: str) -> None:
    """What the commands produce leads to an outcome, which watch finds however late it asks."""
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
    assert run(bootstrap_servers, topic, "watch", "g", "--wait", "30")[:2] == (0, f"{text}\n")
    assert run(bootstrap_servers, topic, "watch", "g", "--new", "--wait", "1")[:2] == (4, "")


def test_a_topic_that_is_not_there_is_named(bootstrap_servers: str) -> None:
    """Watching it fails at once, with what to do."""
    code, printed, said = run(bootstrap_servers, "nowhere", "watch")
    assert (code, printed) == (1, "")
    assert "there is no topic 'nowhere'; name it with --event-topic" in said

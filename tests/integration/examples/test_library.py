"""The library example on real servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer, create_topic

EXAMPLE = Path(__file__).parents[3] / "examples" / "library.py"


def test_the_example_counts_a_topic(bootstrap_servers: str, zookeeper_hosts: str) -> None:
    """A process of its own reads a real topic through the public API and says what came."""
    client = {"bootstrap.servers": bootstrap_servers}
    topic = f"example-{uuid4().hex[:8]}"
    create_topic(client, topic, 2, Deadline.after(30))
    producer = TopicProducer(client, topic)
    records = ((str(number % 7).encode(), b"value") for number in range(1000))
    producer.send(records, Deadline.after(30))
    producer.flush(Deadline.after(30))
    shown = subprocess.run(
        [sys.executable, str(EXAMPLE), bootstrap_servers, zookeeper_hosts, topic, "1000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert shown.returncode == 0, shown.stderr
    counts = dict(line.rsplit(": ", 1) for line in shown.stdout.splitlines() if topic in line)
    assert sum(map(int, counts.values())) == 1000
    assert set(counts) == {f"{topic}-0", f"{topic}-1"}

"""A project that ``headrace init`` writes, as somebody new would try it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.core.records import TopicPartition
from headrace.devstack.records import produce_records
from tests.brokers import Broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def run(folder: Path, *command: str) -> str:
    """Run a command in the folder, without addresses in its environment; return what it said."""
    environment = {k: v for k, v in os.environ.items() if k not in {"KAFKA", "ZOOKEEPER"}}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_project_reduces_its_records(
    bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """The project's check, unit test and records pass, and the rows say what the records do."""
    headrace = (sys.executable, "-m", "headrace")
    place = ("--brokers", bootstrap_servers, "--zookeeper", zookeeper_hosts)
    run(tmp_path, *headrace, "init", "project", *place)
    project = tmp_path / "project"
    topic = f"flights-{uuid4().hex[:8]}"
    for name in ("headrace.yaml", "produce.py"):
        file = project / name
        text = file.read_text(encoding="utf-8")
        # the other tests use this broker too
        file.write_text(text.replace("flights", topic), encoding="utf-8")
    (project / "records" / "flights.jsonl").rename(project / "records" / f"{topic}.jsonl")

    run(project, *headrace, "check")
    run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    for _ in range(2):  # the first time makes the topic, the second finds it
        run(project, sys.executable, "produce.py")
    shown = run(project, *headrace, "run", "--until", "latest")

    flights: Counter[str] = Counter()
    for carrier, number in re.findall(r"^│ (\w+) +│ (\d+) ", shown, re.MULTILINE):
        flights[carrier] += int(number)
    assert flights == {"UA": 40, "AA": 40, "DL": 40}


def test_a_project_s_records_are_in_the_topic_of_a_local_stack(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    """Each line of a file is a record of the topic of its name; a second time adds them again."""
    broker = Broker(bootstrap_servers)
    topic = broker.create_topic()
    file = tmp_path / f"{topic}.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n', encoding="utf-8")
    for _ in range(2):
        assert list(produce_records(tmp_path, bootstrap_servers)) == [(file, 2)]
    values = [record.value() for record in broker.read(TopicPartition(topic, 0), 4)]
    assert values == [b'{"a": 1}', b'{"a": 2}'] * 2
    assert list(produce_records(tmp_path / "absent", bootstrap_servers)) == []

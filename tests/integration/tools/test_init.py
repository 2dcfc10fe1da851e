"""A project that ``headrace init`` writes, as somebody new would try it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

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
    """Its check, its unit test and its records pass, and the rows say what the records do."""
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

    run(project, *headrace, "check", "-c", "headrace.yaml")
    run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    for _ in range(2):  # the first time makes the topic, the second finds it
        run(project, sys.executable, "produce.py")
    run(project, *headrace, "run", "-c", "headrace.yaml", "--until", "latest")

    lines = (project / "results.jsonl").read_text(encoding="utf-8").splitlines()
    flights: Counter[str] = Counter()
    for row in map(json.loads, lines):
        flights[row["carrier"]] += row["flights"]
    assert flights == {"UA": 668, "AA": 666, "DL": 666}

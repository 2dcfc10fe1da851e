"""Topics that are created for a configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic

if TYPE_CHECKING:
    from pathlib import Path


def _configuration(folder: Path, servers: str, name: str) -> Path:
    file = folder / "headrace.yaml"
    channel: dict[str, Any] = {
        "topics": f"{name}.in",
        "group": name,
        "processor": {
            "type": "keyed",
            "reducer": "a:b",
            "engine": "arrow",
            "key": "value.customer",
        },
        "rejects": {"failing": "dead_letter", "topic": f"{name}.letters"},
        "sink": {"type": "kafka", "topic": f"{name}.out"},
    }
    document = {"kafka": {"bootstrap_servers": servers}, "channels": {"orders": channel}}
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def _run(file: Path, *options: str, answer: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["topics", "create", "-c", str(file), *options], input=answer)
    return done.exit_code, done.output


def test_topics_of_a_configuration_are_created_once(bootstrap_servers: str, tmp_path: Path) -> None:
    """Shown, asked, made with the partitions and settings that it has to have, and then left."""
    name = f"orders-{uuid4().hex[:8]}"
    file = _configuration(tmp_path, bootstrap_servers, name)
    catalog = KafkaTopicCatalog({"bootstrap.servers": bootstrap_servers}, name)
    topics = [f"{name}.{each}" for each in ("in", "out", "letters")]
    by_key = f"{name}.{name}.in.by-key"
    topics += [by_key, f"{by_key}.state"]

    def partitions() -> dict[str, int]:
        found = catalog.describe(topics, Deadline.after(30))
        return {each: info.partitions for each, info in found.items()}

    code, shown = _run(file, "--dry-run", "--partitions", "3")
    assert (code, shown.count("missing")) == (0, 5)
    assert f"as {name}.in" in shown
    assert _run(file, answer="n\n")[0] == 1
    assert partitions() == {}

    code, shown = _run(file, "--partitions", "3", "--yes")
    assert code == 0, shown
    assert partitions() == dict.fromkeys(topics, 3)
    settings = catalog.settings(f"{by_key}.state", Deadline.after(30))
    assert settings["cleanup.policy"] == "compact"
    assert catalog.settings(by_key, Deadline.after(30))["retention.ms"] == "-1"

    code, shown = _run(file, "--partitions", "7")
    assert (code, shown.count("there")) == (0, 5)
    assert "nothing is missing" in shown
    assert partitions() == dict.fromkeys(topics, 3)
    catalog.close()


def test_a_topic_that_is_not_as_it_has_to_be_is_told(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    """A changelog that is not compacted stays as it is, and the command fails."""
    name = f"orders-{uuid4().hex[:8]}"
    file = _configuration(tmp_path, bootstrap_servers, name)
    assert _run(file, "--yes", "--partitions", "1", "--json")[0] == 0
    catalog = KafkaTopicCatalog({"bootstrap.servers": bootstrap_servers}, name)
    file.write_text(file.read_text(encoding="utf-8").replace(f'"{name}.in"', f'"{name}.other"'))
    by_key = f"{name}.{name}.other.by-key"
    for topic in (f"{name}.other", by_key, f"{by_key}.state"):
        assert catalog.create(NewTopic(topic, 1), Deadline.after(30))
    catalog.close()
    code, shown = _run(file, "--dry-run", "--json")
    assert code == 1
    problems = {each["topic"]: each["problem"] for each in json.loads(shown)}
    assert "is not compacted" in problems[f"{by_key}.state"]
    assert "retention.ms" in problems[by_key]
    assert problems[f"{name}.other"] is None

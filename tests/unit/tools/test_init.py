from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.config.reference import schema
from headrace.controller.preflight import needed_extras

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def written(folder: Path, *options: str) -> Path:
    """Write a project and return its folder."""
    done = CliRunner().invoke(app, ["init", str(folder), *options])
    assert done.exit_code == 0, done.output
    return folder


def test_a_project_has_what_it_takes_to_run(tmp_path: Path) -> None:
    """A configuration with its schema, a reducer with its test, records, servers, a unit."""
    folder = written(tmp_path / "deep" / "project")
    assert sorted(path.name for path in folder.iterdir()) == [
        "compose.yaml",
        "headrace.schema.json",
        "headrace.service",
        "headrace.yaml",
        "produce.py",
        "reducer.py",
        "test_reducer.py",
    ]
    first, *_ = (folder / "headrace.yaml").read_text().splitlines()
    assert first == "# yaml-language-server: $schema=headrace.schema.json"
    assert json.loads((folder / "headrace.schema.json").read_text()) == json.loads(
        json.dumps(schema())
    )
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert services.keys() == {"kafka", "zookeeper"}
    unit = (folder / "headrace.service").read_text()
    assert f"WorkingDirectory={folder}\n" in unit
    assert "/headrace run -c headrace.yaml\n" in unit


def test_its_configuration_is_for_the_base_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no extra, and the addresses that were given unless the environment has others."""
    monkeypatch.delenv("ZOOKEEPER", raising=False)
    monkeypatch.setenv("KAFKA", "other:1")
    folder = written(tmp_path / "new", "--brokers", "b:1", "--zookeeper", "z:2")
    config = load(folder / "headrace.yaml")
    assert config.zookeeper.hosts == ("z:2",)
    assert config.kafka.bootstrap_servers == ("other:1",)
    monkeypatch.delenv("KAFKA")
    assert load(folder / "headrace.yaml").kafka.bootstrap_servers == ("b:1",)
    assert list(needed_extras(config)) == []


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    """What somebody has there is neither changed nor added to."""
    (tmp_path / "mine").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path} is not empty; name a new folder" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.config.reference import schema
from headrace.controller.preflight import needed_extras
from headrace.devstack.stack import remove_addresses, write_addresses


def written(folder: Path, *options: str) -> Path:
    """Write a project and return its folder."""
    done = CliRunner().invoke(app, ["init", str(folder), *options])
    assert done.exit_code == 0, done.output
    return folder


def test_a_project_has_what_it_takes_to_run(tmp_path: Path) -> None:
    """A configuration with its schema, a reducer with its test, records, servers, a unit.

    Git leaves out what the configuration has written, and compose knows when its servers answer.
    """
    folder = written(tmp_path / "deep" / "project")
    files = (path for path in folder.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(folder)) for path in files) == [
        ".gitignore",
        "compose.yaml",
        "headrace.schema.json",
        "headrace.service",
        "headrace.yaml",
        "produce.py",
        "records/flights.jsonl",
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
    assert all("healthcheck" in service for service in services.values())
    config = load(folder / "headrace.yaml")
    assert f"{config.state_dir.name}/" in (folder / ".gitignore").read_text().splitlines()
    unit = (folder / "headrace.service").read_text()
    assert f"WorkingDirectory={folder}\n" in unit
    assert '/headrace" run -c headrace.yaml\n' in unit


def test_the_new_configuration_is_for_the_base_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file needs no extra, and its addresses give way to the environment's."""
    monkeypatch.delenv("ZOOKEEPER", raising=False)
    monkeypatch.setenv("KAFKA", "other:1")
    folder = written(tmp_path / "new", "--brokers", "b:1", "--zookeeper", "z:2")
    config = load(folder / "headrace.yaml")
    assert config.zookeeper.hosts == ("z:2",)
    assert config.kafka.bootstrap_servers == ("other:1",)
    monkeypatch.delenv("KAFKA")
    assert load(folder / "headrace.yaml").kafka.bootstrap_servers == ("b:1",)
    assert list(needed_extras(config)) == []


def test_a_project_reads_where_its_local_stack_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual ports without a stack, else those that headrace local has written."""
    monkeypatch.delenv("ZOOKEEPER", raising=False)
    monkeypatch.delenv("KAFKA", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = written(tmp_path / "new") / "headrace.yaml"
    assert load(config).kafka.bootstrap_servers == ("localhost:9092",)
    assert load(config).zookeeper.hosts == ("localhost:2181",)
    stack = tmp_path / "state" / "headrace" / "local"
    stack.mkdir(parents=True)
    write_addresses(stack, "127.0.0.1:15001", "127.0.0.1:15002")
    assert load(config).kafka.bootstrap_servers == ("127.0.0.1:15001",)
    assert load(config).zookeeper.hosts == ("127.0.0.1:15002",)
    remove_addresses(stack)
    assert load(config).kafka.bootstrap_servers == ("localhost:9092",)


@pytest.mark.parametrize("has_repository", [False, True])
def test_a_folder_with_files_is_left_alone(tmp_path: Path, has_repository: bool) -> None:
    """The user's files are neither changed nor added to."""
    names = {"mine", ".git"} if has_repository else {"mine"}
    for name in names:
        (tmp_path / name).write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path} is not empty; name a new folder" in done.output
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_new_repository_takes_a_project(tmp_path: Path) -> None:
    """The folder of git is not counted, and stays."""
    (tmp_path / ".git").mkdir()
    written(tmp_path)
    assert (tmp_path / ".git").is_dir()
    assert (tmp_path / "headrace.yaml").is_file()


def test_a_project_that_cannot_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files written before the disk was full are removed."""
    write = Path.write_text

    def full(path: Path, text: str, encoding: str) -> int:
        write(path, text[: len(text) // 2], encoding)
        if path.name == "reducer.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 1
    assert os.strerror(errno.ENOSPC) in done.output
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


def test_the_next_commands_are_told(tmp_path: Path) -> None:
    """Those with the servers of headrace local, or with servers of one's own; a blank is quoted."""
    done = CliRunner().invoke(app, ["init", str(tmp_path / "a b")])
    next_ = f"next: cd '{tmp_path}/a b' && headrace local up && headrace run\n"
    assert done.output.endswith(next_)
    options = ("--brokers", "kafka:9092", "--zookeeper", "zk:2181")
    done = CliRunner().invoke(app, ["init", str(tmp_path / "c"), *options])
    assert done.output.endswith(f"next: cd {tmp_path}/c && python produce.py && headrace run\n")


def test_without_a_broker_its_records_end_with_a_sentence(tmp_path: Path) -> None:
    """It names the broker and what the client said, and is no traceback."""
    folder = written(tmp_path / "new", "--brokers", "127.0.0.1:1")
    script = (folder / "produce.py").read_text()
    (folder / "produce.py").write_text(script.replace("request_timeout=10", "request_timeout=1"))
    done = subprocess.run(
        [sys.executable, "produce.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "KAFKA"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Kafka at 127.0.0.1:1 did not make the topic: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--brokers", "kafka 9092", "is not a server as host:port"),
        ("--brokers", "SSL://kafka:9092", "has a protocol"),
        ("--zookeeper", "zk:2181/headrace", "has a path"),
        ("--zookeeper", "", "is not a server as host:port"),
    ],
)
def test_an_address_that_the_configuration_refuses_is_refused(
    option: str, value: str, told: str, tmp_path: Path
) -> None:
    """The option is named, and nothing is written."""
    done = CliRunner().invoke(app, ["init", str(tmp_path / "new"), option, value])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert option in said
    assert told in said
    assert not (tmp_path / "new").exists()


def test_a_folder_s_name_is_not_written_over(tmp_path: Path) -> None:
    """Placeholders of the files may occur in the folder's path."""
    folder = written(tmp_path / "HEADRACE" / "BROKERS")
    assert f"WorkingDirectory={folder}\n" in (folder / "headrace.service").read_text()


def test_a_unit_takes_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks and percent signs are the path's own to systemd."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b 50% %h" / "python"))
    unit = written(tmp_path / "e 100% f") / "headrace.service"
    assert f"WorkingDirectory={tmp_path}/e 100%% f\n" in unit.read_text()
    assert f'ExecStart="{tmp_path}/a b 50%% %%h/headrace" run ' in unit.read_text()

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.devstack import cli, detached, stack
from headrace.devstack.errors import LocalStackError
from headrace.devstack.secured import SecuredAccess
from headrace.devstack.server import ProcessIdentity


def _state_of(pid: int) -> stack.StackState:
    process = ProcessIdentity.of(pid)
    assert process is not None
    entry = stack.ServerEntry("kafka-1", "127.0.0.1:1", "/log", process)
    return stack.StackState(process, "127.0.0.1:2", "127.0.0.1:1", (entry,))


def _run(command: str, directory: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, [command, "--dir", str(directory)])
    return result.exit_code, result.output


@pytest.mark.parametrize("access", [None, SecuredAccess("127.0.0.1:3", "http://i", "a", "b", "c")])
def test_a_state_is_read_as_it_was_written(tmp_path: Path, access: SecuredAccess | None) -> None:
    """Writing and reading give back the same value."""
    written = replace(_state_of(os.getpid()), secured=access)
    written.write(tmp_path)
    assert stack.read_state(tmp_path) == written


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keeper": {"pid": 1}}'])
def test_a_damaged_state_file_is_named(tmp_path: Path, content: str) -> None:
    """A file that holds no state is an error that names the file and says to delete it."""
    (tmp_path / "state.json").write_text(content, encoding="utf-8")
    with pytest.raises(LocalStackError, match=r"state\.json .*delete it"):
        stack.read_state(tmp_path)
    assert _run("status", tmp_path)[0] == cli.EXIT_FAILED


def test_status_and_down_say_that_nothing_runs(tmp_path: Path) -> None:
    """Without a stack, status exits with 3 and down with 0, and both say so."""
    said = f"no local stack runs in {tmp_path}\n"
    assert _run("status", tmp_path) == (cli.EXIT_NOT_RUNNING, said)
    assert _run("down", tmp_path) == (0, said)


def test_down_spares_a_process_that_got_the_pid_later(tmp_path: Path) -> None:
    """A stale state file is removed, and the process that has its pids now is left alone."""
    with subprocess.Popen(["sleep", "100"]) as stranger:
        written = _state_of(stranger.pid)
        stale = replace(written.keeper, started="another time")
        server = replace(written.servers[0], process=stale)
        replace(written, keeper=stale, servers=(server,)).write(tmp_path)
        assert detached.running_state(tmp_path) is None
        assert detached.down(tmp_path) is False
        assert stranger.poll() is None
        stranger.kill()
    assert not (tmp_path / "state.json").exists()


def test_status_shows_every_server(tmp_path: Path) -> None:
    """The table has a server's name, address and state, and the exit code is 0."""
    _state_of(os.getpid()).write(tmp_path)
    code, output = _run("status", tmp_path)
    assert code == 0
    assert output.splitlines()[1].split()[:2] == ["kafka-1", "127.0.0.1:1"]
    assert "running" in output


def test_status_fails_when_a_server_is_down(tmp_path: Path) -> None:
    """A stack with a server that is gone exits with 1 and shows which."""
    written = _state_of(os.getpid())
    gone = replace(written.servers[0], process=replace(written.keeper, started="another time"))
    replace(written, servers=(gone,)).write(tmp_path)
    code, output = _run("status", tmp_path)
    assert code == cli.EXIT_FAILED
    assert "gone" in output


def test_a_state_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """The file holds complete JSON, and no other file is left."""
    _state_of(os.getpid()).write(tmp_path)
    assert json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))["servers"]
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack's folder lies in the XDG state folder, by default the one in the home folder."""
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert cli.default_directory() == Path("/s/headrace/local")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert cli.default_directory() == Path.home() / ".local/state/headrace/local"


def test_a_stack_that_does_not_start_leaves_where_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the usual ports, which are another stack's; a project looks there until down."""
    taken = set(detached.USUAL_PORTS.values())
    monkeypatch.setattr("headrace.devstack.server._is_free", lambda port: port not in taken)

    def missing() -> None:
        raise LocalStackError("no Java")

    monkeypatch.setattr(detached, "require_java", missing)
    assert _run("up", tmp_path)[0] == cli.EXIT_FAILED
    ports = json.loads((tmp_path / "ports.json").read_text(encoding="utf-8"))
    for file, name in (("kafka", "kafka-1"), ("zookeeper", "zookeeper-1")):
        port = ports[name]
        assert port not in taken
        assert (tmp_path / file).read_text(encoding="utf-8") == f"127.0.0.1:{port}\n"
    assert _run("down", tmp_path)[0] == 0
    assert not (tmp_path / "kafka").exists()
    assert not (tmp_path / "zookeeper").exists()


def test_a_stack_without_a_registry_is_not_taken_for_one_with_it(tmp_path: Path) -> None:
    """The stack that runs is left alone, and one that has a registry says its address."""
    state = _state_of(os.getpid())
    state.write(tmp_path)
    with pytest.raises(LocalStackError, match="has no registry; stop it with"):
        detached.up(tmp_path, registry=True)
    having = replace(state, registry_url="http://127.0.0.1:4/apis")
    having.write(tmp_path)
    assert detached.up(tmp_path, registry=True) == having


def test_a_stack_without_the_secured_door_is_not_taken_for_one(tmp_path: Path) -> None:
    """The stack that runs is left alone, and the sentence says how to stop it."""
    _state_of(os.getpid()).write(tmp_path)
    with pytest.raises(LocalStackError, match="not secured; stop it with: headrace local down"):
        detached.up(tmp_path, secured=True)
    assert detached.up(tmp_path) == stack.read_state(tmp_path)

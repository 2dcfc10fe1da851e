from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from headrace.core.errors import ConfigError, StartError
from headrace.zookeeper.client import Credentials
from headrace.zookeeper.identity import Identity

if TYPE_CHECKING:
    from pathlib import Path

CREDENTIALS = Credentials(0x1000072F8D20001, b"\x00\xffsixteen bytes!")


def test_a_second_holder_is_refused_by_pid_and_file(tmp_path: Path) -> None:
    """While one holds the instance id, another is told which process has it, and by which file."""
    first, second = Identity(tmp_path, "a"), Identity(tmp_path, "a")
    first.acquire()
    with pytest.raises(StartError, match=rf"process {os.getpid()}, .*a/lock"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_different_instance_ids_do_not_meet(tmp_path: Path) -> None:
    """Two daemons of one host may share the state directory."""
    a, b = Identity(tmp_path, "a"), Identity(tmp_path, "b")
    a.acquire()
    b.acquire()
    a.release()
    b.release()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    """A killed holder leaves no lock behind, though its file stays."""
    code = (
        "import sys, pathlib\n"
        "from headrace.zookeeper.identity import Identity\n"
        "identity = Identity(pathlib.Path(sys.argv[1]), 'a'); identity.acquire()\n"
        "print('locked', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"locked\n"
        identity = Identity(tmp_path, "a")
        with pytest.raises(StartError, match=f"process {holder.pid}"):
            identity.acquire()
        holder.kill()
        holder.wait(10)
    identity.acquire()
    identity.release()


def test_credentials_are_read_back_by_their_owner_alone(tmp_path: Path) -> None:
    """The next process loads what was stored, from a file and a folder of its own."""
    identity = Identity(tmp_path, "a")
    identity.acquire()
    assert identity.load() is None
    identity.store(Credentials(1, b"old"))
    identity.store(CREDENTIALS)
    assert Identity(tmp_path, "a").load() == CREDENTIALS
    assert stat.S_IMODE((tmp_path / "a" / "session.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["lock", "session.json"]
    identity.clear()
    identity.clear()
    assert identity.load() is None
    identity.release()


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"boot_id": "6b4f1d2e-0000-4000-8000-000000000000"}, id="another boot"),
        pytest.param({"host": "another.example"}, id="another host"),
        pytest.param({"boot_id": None}, id="unknown boot"),
    ],
)
def test_a_session_that_was_used_elsewhere_is_left_to_expire(
    tmp_path: Path, elsewhere: dict[str, str | None]
) -> None:
    """Unless host and boot are the same, its process may live: it is not loaded, which is said."""
    identity = Identity(tmp_path, "a")
    identity.acquire()
    identity.store(CREDENTIALS)
    path = tmp_path / "a" / "session.json"
    written = json.loads(path.read_text()) | elsewhere
    path.write_text(json.dumps(written))
    with structlog.testing.capture_logs() as logged:
        assert identity.load() is None
    (event,) = logged
    assert event["event"] == "session_left_to_expire"
    assert (event["host"], event["boot_id"]) == (written["host"], written["boot_id"])
    identity.release()


def test_a_session_file_that_says_no_machine_is_left_to_expire(tmp_path: Path) -> None:
    """A file of a release that did not note the machine is not taken over."""
    identity = Identity(tmp_path, "a")
    identity.acquire()
    content = {"session_id": "0x1", "password": "00"}
    (tmp_path / "a" / "session.json").write_text(json.dumps(content))
    assert identity.load() is None
    identity.release()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"session_id":"x","password":"00"}'])
def test_an_unusable_session_file_is_no_obstacle(tmp_path: Path, content: str) -> None:
    """A start without the old credentials is possible; it only waits longer."""
    identity = Identity(tmp_path, "a")
    identity.acquire()
    (tmp_path / "a" / "session.json").write_text(content)
    assert identity.load() is None
    identity.release()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "ä", "x" * 201])
def test_names_that_cannot_be_nodes_or_folders_are_refused(tmp_path: Path, name: str) -> None:
    """A wrong instance_id says what would be accepted."""
    with pytest.raises(ConfigError, match="instance_id"):
        Identity(tmp_path, name)

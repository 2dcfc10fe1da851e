from __future__ import annotations

import json
import queue
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.config import ZooKeeperDigest
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError
from headrace.zookeeper.errors import AccessDeniedError, NoNodeError
from headrace.zookeeper.identity import Identity
from headrace.zookeeper.protocol import Session, SessionState
from headrace.zookeeper.session import ZooKeeperSession, reading
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.contracts.session import SessionContract
from tests.sessions import expire

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 20.0

Open = Callable[..., ZooKeeperSession]


@pytest.fixture
def settings(zookeeper_hosts: str) -> ZooKeeperSettings:
    """Return settings with a chroot of two parts that does not exist yet."""
    return ZooKeeperSettings(zookeeper_hosts, chroot=f"/test/{uuid4().hex}", session_timeout=6)


@pytest.fixture
def start(settings: ZooKeeperSettings) -> Iterator[Open]:
    """Return a function that starts sessions, which end with the test."""
    sessions = []

    def started(
        settings: ZooKeeperSettings = settings, store: Identity | None = None
    ) -> ZooKeeperSession:
        session = ZooKeeperSession(settings, store)
        session.start()
        sessions.append(session)
        return session

    yield started
    for session in sessions:
        assert session.close(Deadline.after(WAIT))


class TestZooKeeperSession(SessionContract):
    """The contract on a real server."""

    @pytest.fixture
    def session(self, start: Open) -> Session:
        """Return a session."""
        return start()

    @pytest.fixture
    def other(self, start: Open) -> Session:
        """Return another session."""
        return start()


def test_the_agreed_time_out_is_told(start: Open, settings: ZooKeeperSettings) -> None:
    """The servers' bounds on the session time-out show in what the session reports."""
    assert start().session_timeout == 6
    short = start(replace(settings, session_timeout=0.2))
    assert short.session_timeout > 0.2
    assert short.operation_timeout == short.session_timeout / 4


def test_nodes_are_created_with_the_configured_acl(
    start: Open, settings: ZooKeeperSettings
) -> None:
    """With digest credentials and their ACL, nobody without them can read."""
    user = ZooKeeperDigest(username="headrace", password="secret")
    owner = start(replace(settings, digest=user, acl="creator"))
    owner.ensure("/mine")
    assert owner.get("/mine").data == b""
    stranger = start(replace(settings, chroot=""))
    with pytest.raises(AccessDeniedError, match="credentials"):
        stranger.get(f"{settings.chroot}/mine")
    with pytest.raises(AccessDeniedError):
        stranger.create(f"{settings.chroot}/theirs")


def test_reading_leaves_no_trace(start: Open, settings: ZooKeeperSettings) -> None:
    """Not even a chroot is created; what there is can be read, and what is missing is missing."""
    with reading(settings) as reader:
        with pytest.raises(NoNodeError):
            reader.children("/")
        assert reader.get_many(["/mine"]) == [None]
    outside = start(replace(settings, chroot=""))
    assert outside.exists(settings.chroot) is None
    start().create("/mine", b"data")
    with reading(settings) as reader:
        assert reader.children("/") == ["mine"]
        (node,) = reader.get_many(["/mine"])
    assert node is not None
    assert node.data == b"data"


def test_an_expired_session_is_replaced_and_told(start: Open) -> None:
    """Listeners hear of the loss and of the new session, in which no old node is left."""
    session = start()
    states: queue.Queue[SessionState] = queue.Queue()
    session.listen(states.put)
    before = session.session_id
    session.create("/mine", ephemeral=True)
    expire(session)
    heard: list[SessionState] = []
    while SessionState.LOST not in heard or heard[-1] is not SessionState.CONNECTED:
        heard.append(states.get(timeout=WAIT))
    assert session.session_id not in {None, before}
    assert session.exists("/mine") is None
    session.unlisten(states.put)


def test_close_is_final(start: Open) -> None:
    """A closed session says so, at once and in every operation."""
    session = start()
    states: queue.Queue[SessionState] = queue.Queue()
    session.listen(states.put)
    assert session.close(Deadline.after(WAIT))
    assert states.get(timeout=WAIT) is SessionState.CLOSED
    assert session.state is SessionState.CLOSED
    with pytest.raises(FatalError):
        session.get("/")


def test_credentials_are_kept_while_the_session_lives(
    start: Open, settings: ZooKeeperSettings, tmp_path: Path
) -> None:
    """Each new session's credentials are stored; a clean close forgets them."""
    identity = Identity(tmp_path, "a")
    identity.acquire()
    session = start(settings, identity)
    session.exists("/")
    first = identity.load()
    assert first is not None
    assert first.session_id == session.session_id
    lost = threading.Event()
    session.listen(lambda state: lost.set() if state is SessionState.LOST else None)
    expire(session)
    assert lost.wait(WAIT)
    back = threading.Event()
    session.listen(lambda state: back.set() if state is SessionState.CONNECTED else None)
    if session.state is not SessionState.CONNECTED:
        assert back.wait(WAIT)
    session.ensure("/a")
    second = identity.load()
    assert second is not None
    assert second.session_id == session.session_id != first.session_id
    assert session.close(Deadline.after(WAIT))
    assert identity.load() is None
    identity.release()


def test_the_session_of_a_killed_process_is_ended_at_the_next_start(
    start: Open, settings: ZooKeeperSettings, tmp_path: Path
) -> None:
    """After a SIGKILL a restart frees what the old session held long before its time-out."""
    long = replace(settings, session_timeout=60)
    code = (
        "import json, sys, pathlib\n"
        "from headrace.zookeeper.identity import Identity\n"
        "from headrace.zookeeper.session import ZooKeeperSession\n"
        "from headrace.zookeeper.settings import ZooKeeperSettings\n"
        "hosts, chroot, state = sys.argv[1:]\n"
        "identity = Identity(pathlib.Path(state), 'a'); identity.acquire()\n"
        "session = ZooKeeperSession(ZooKeeperSettings(hosts, chroot, 60), identity)\n"
        "session.start()\n"
        "session.create('/claim', ephemeral=True)\n"
        "print(json.dumps(session.session_timeout), file=sys.stderr, flush=True)\n"
        "sys.stdin.read()\n"
    )
    start(long)
    arguments = [settings.hosts, settings.chroot, str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with process, process.stdin, process.stderr:
        assert json.loads(process.stderr.readline()) > 2 * WAIT
        process.kill()
        process.wait(WAIT)
    left = tmp_path / "a" / "session.json"
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    identity = Identity(tmp_path, "a")
    identity.acquire()
    with_identity = start(long, identity)
    assert with_identity.exists("/claim") is None
    identity.release()


def test_a_session_in_use_on_another_machine_is_not_closed(
    start: Open, settings: ZooKeeperSettings, tmp_path: Path
) -> None:
    """A state directory that comes up elsewhere leaves the session of its living process alone."""
    identity = Identity(tmp_path / "here", "a")
    identity.acquire()
    living = start(settings, identity)
    living.create("/claim", ephemeral=True)
    moved = Identity(tmp_path / "moved", "a")
    moved.acquire()
    left = json.loads((identity.directory / "session.json").read_text())
    (moved.directory / "session.json").write_text(json.dumps({**left, "boot_id": "another"}))
    newcomer = start(settings, moved)
    assert newcomer.session_id != living.session_id
    assert newcomer.exists("/claim") is not None
    assert living.exists("/claim") is not None
    identity.release()
    moved.release()

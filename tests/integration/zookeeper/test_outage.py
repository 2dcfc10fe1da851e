from __future__ import annotations

import queue
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.devstack.zookeeper import ZooKeeperServer
from headrace.zookeeper.errors import OutcomeUnknownError
from headrace.zookeeper.identity import Identity
from headrace.zookeeper.protocol import SessionState
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.integration.coordinators.test_takeover import Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 60.0


@contextmanager
def stopping(server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """Stop a server at the end."""
    try:
        yield server
    finally:
        server.stop(Deadline.after(WAIT))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """Return a server that the test may stop and kill."""
    with stopping(ZooKeeperServer(tmp_path)) as server:
        server.start()
        yield server


@contextmanager
def session_of(server: ZooKeeperServer, timeout: float) -> Iterator[ZooKeeperSession]:
    """Return a session that a server ends after so many seconds without its client."""
    session = ZooKeeperSession(ZooKeeperSettings(server.address, session_timeout=timeout))
    session.start()
    try:
        yield session
    finally:
        session.close(Deadline.after(WAIT))


@pytest.fixture
def session(server: ZooKeeperServer) -> Iterator[ZooKeeperSession]:
    """Return a session of four seconds."""
    with session_of(server, 4) as session:
        yield session


def test_a_paused_server_makes_outcomes_unknown_and_costs_no_session(
    server: ZooKeeperServer, session: ZooKeeperSession
) -> None:
    """Calls end by their time-out; the session goes on when the server does."""
    before = session.session_id
    server.pause(Deadline.after(WAIT))
    with pytest.raises(OutcomeUnknownError, match="no answer within 1 s"):
        session.ensure("/a")
    server.resume()
    deadline = Deadline.after(WAIT)
    while not _answers(session):
        assert not deadline.expired
    assert session.session_id == before


def test_a_killed_server_suspends_and_the_same_session_comes_back(server: ZooKeeperServer) -> None:
    """Without a server calls fail at once; after a restart the session and its nodes are there."""
    with session_of(server, 30) as session:
        states: queue.Queue[SessionState] = queue.Queue()
        session.listen(states.put)
        before = session.session_id
        session.create("/mine", ephemeral=True)
        server.kill()
        assert states.get(timeout=WAIT) is SessionState.SUSPENDED
        with pytest.raises(OutcomeUnknownError):
            session.exists("/mine")
        server.start()
        assert states.get(timeout=WAIT) is SessionState.CONNECTED
        assert session.session_id == before
        assert session.exists("/mine") is not None


def test_a_connect_that_is_never_answered_costs_no_session(server: ZooKeeperServer) -> None:
    """A connection that never answers has the session asked for again before it ends."""
    with session_of(server, 16) as session, socket.socket() as silent:
        states: queue.Queue[SessionState] = queue.Queue()
        session.listen(states.put)
        before = session.session_id
        server.kill()
        assert states.get(timeout=WAIT) is SessionState.SUSPENDED
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", server.port))
        silent.listen()
        silent.settimeout(12)
        with silent.accept()[0], silent.accept()[0]:
            silent.close()
            server.start()
            assert states.get(timeout=WAIT) is SessionState.CONNECTED
        assert session.session_id == before


def test_a_time_out_that_is_granted_at_a_reconnect_reaches_the_lease(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A server that grants less than the one before ends the session sooner, and so the lease."""
    group = Group(server.address, session_timeout=60)
    member = group.join("a")
    group.wait(lambda: bool(member.held))
    lease = member.held[0].lease
    assert member.session.session_timeout == 60
    server.kill()
    settings = {"maxSessionTimeout": "20000"}
    with stopping(ZooKeeperServer(tmp_path, port=server.port, settings=settings)) as stricter:
        stricter.start()
        assert wait_for(lambda: member.session.session_timeout == 20, Deadline.after(WAIT))
        assert wait_for(lambda: 0 < lease.remaining() <= 18, Deadline.after(WAIT))
        assert lease.valid()
        assert member.lost == []
        member.stop()


def _answers(session: ZooKeeperSession) -> bool:
    try:
        session.ensure("/a")
    except OutcomeUnknownError:
        return False
    return True


@pytest.mark.parametrize("told", [True, False])
def test_a_session_without_a_confirmed_end_is_kept_for_the_next_start(
    server: ZooKeeperServer, tmp_path: Path, *, told: bool
) -> None:
    """It ends in time though the server is silent; the next session can still end it."""
    identity = Identity(tmp_path / "state", "a")
    identity.acquire()
    settings = ZooKeeperSettings(server.address, session_timeout=2)
    session = ZooKeeperSession(settings, identity)
    session.start()
    session.create("/mine", ephemeral=True)
    if not told:
        server.pause(Deadline.after(WAIT))
    assert session.close(Deadline.after(WAIT))
    assert session.lingers is not told
    assert (identity.load() is None) is told
    server.resume()
    identity.release()

"""One ZooKeeper and one broker for all processes of a run.

The process that divides the tests starts the servers when the first of the others asks for their
addresses, and stops them at its own end. A run of one process asks itself.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
import structlog

from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.wait import FAR_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Under this name a process of pytest-xdist is told whom to ask.
_INPUT = "shared_stack"

#: Seconds that one who asks waits: the servers' own limit, and as much for their jars.
_ANSWER_S = 2 * FAR_S

#: What ends the thread that answers.
_LAST = "last"


class Addresses(NamedTuple):
    """Addresses of the servers, as their clients take them."""

    bootstrap_servers: str
    zookeeper_hosts: str


class Servers(Protocol):
    """The part of a stack that is shared."""

    @property
    def bootstrap_servers(self) -> str:
        """Return where the broker is."""

    @property
    def zookeeper_hosts(self) -> str:
        """Return where ZooKeeper is."""

    def stop(self) -> None:
        """Stop the servers. Blocks."""


class SharedStack:
    """Servers that start at the first question where they are. Close it at the end."""

    def __init__(self, start: Callable[[Path], Servers] | None = None) -> None:
        self._start = start or _start
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-stack-")
        self._stack: Servers | None = None
        self._listener = Listener(str(Path(self._folder.name, "asked")), "AF_UNIX", backlog=64)
        self._thread = Thread(target=self._answer, name="shared-stack", daemon=True)
        self._thread.start()

    @property
    def asked_at(self) -> str:
        """Return where the addresses are asked for."""
        return str(self._listener.address)

    def close(self) -> None:
        """Stop the servers, if they were started, and delete their data. Blocks."""
        with Client(self.asked_at, "AF_UNIX") as connection:
            connection.send(_LAST)
        self._thread.join(_ANSWER_S)
        self._listener.close()
        if self._stack is not None:
            self._stack.stop()
        self._folder.cleanup()

    def _answer(self) -> None:
        """Answer one after the other: who asks while the servers start waits for them."""
        while True:
            with self._listener.accept() as connection:
                try:
                    if connection.recv() == _LAST:
                        return
                    connection.send(self._addresses())
                except (EOFError, OSError):
                    continue  # the process that asked has ended

    def _addresses(self) -> Addresses | str:
        """Return where the servers are, or why they did not start."""
        try:
            if self._stack is None:
                self._stack = self._start(Path(self._folder.name, "servers"))
        except Exception as error:  # noqa: BLE001 - who asks fails with it
            return f"{type(error).__name__}: {error}"
        return Addresses(self._stack.bootstrap_servers, self._stack.zookeeper_hosts)


def _start(directory: Path) -> Servers:
    return LocalStack.start(directory, blueprint=Blueprint(short_lived=True))


def ask(asked_at: str, timeout: float = _ANSWER_S) -> Addresses:
    """Return the addresses of the shared servers, which are started if they are not. Blocks."""
    with Client(asked_at, "AF_UNIX") as connection:
        connection.send("where")
        if not connection.poll(timeout):
            pytest.fail(f"the shared servers did not start in {timeout:g} s")
        answer = connection.recv()
    if isinstance(answer, str):
        pytest.fail(f"the shared servers did not start: {answer}")
    return Addresses(*answer)


class _Dividing:
    """Keeps the servers in the process that divides the tests."""

    def __init__(self) -> None:
        self._shared: SharedStack | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process whom to ask, before it starts."""
        if self._shared is None:
            # the output of this process is not captured: the report does without the servers' lines
            level = structlog.make_filtering_bound_logger(logging.WARNING)
            structlog.configure(wrapper_class=level)
            self._shared = SharedStack()
        node.workerinput[_INPUT] = self._shared.asked_at

    def pytest_unconfigure(self) -> None:
        """Stop the servers after the last test."""
        if self._shared is not None:
            self._shared.close()


def pytest_configure(config: pytest.Config) -> None:
    """Keep servers for the others, unless this process is one of them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Dividing())


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Addresses]:
    """One ZooKeeper and one broker for the whole run; a test that harms servers starts its own."""
    if asked_at := getattr(pytestconfig, "workerinput", {}).get(_INPUT):
        yield ask(asked_at)
        return
    with closing(SharedStack()) as shared:
        yield ask(shared.asked_at)

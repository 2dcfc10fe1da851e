"""Marks for the rings, and the servers that the upper two of them share."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from headrace.telemetry.logs.levels import QUIET, forget_levels
from tests.leftovers import watch
from tests.surroundings import leave_behind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.shared_stack import Addresses

_TESTS = Path(__file__).parent

pytest_plugins = ["tests.schedule", "tests.shared_stack"]

pytest.register_assert_rewrite("headrace.testing.sinks")

leave_behind()
watch()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause the garbage collector: objects made by imports stay, and each process imports all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test of the upper rings with its ring's name."""
    for item in items:
        ring = item.path.relative_to(_TESTS).parts[0]
        if ring in {"integration", "chaos", "web"}:
            item.add_marker(ring)
        if ring == "web":
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def _own_state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the processes of tests from leaving records in the user's own state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _loggers_follow_each_configuration() -> Iterator[None]:
    """Keep loggers from caching the configuration of the test that used them first."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", without_cache)
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Put the process's logging back after a test that configures it, as a command does."""
    configuration, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in QUIET}
    yield
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()
    forget_levels()
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, number in quiet.items():
        logging.getLogger(name).setLevel(number)


@pytest.fixture(scope="session")
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """Address of a broker, of the local stack unless containers are asked for."""
    if docker_wanted():
        return f"127.0.0.1:{request.getfixturevalue('docker_services').port_for('kafka', 29092)}"
    return _local(request).bootstrap_servers


@pytest.fixture(scope="session")
def zookeeper_hosts(request: pytest.FixtureRequest) -> str:
    """Address of a ZooKeeper server, of the local stack unless containers are asked for."""
    if docker_wanted():
        return f"127.0.0.1:{request.getfixturevalue('docker_services').port_for('zookeeper', 2181)}"
    return _local(request).zookeeper_hosts


def docker_wanted() -> bool:
    """Whether containers are asked for and an engine answers."""
    if os.environ.get("HEADRACE_TEST_DOCKER") != "1":
        return False
    try:
        answer = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _local(request: pytest.FixtureRequest) -> Addresses:
    stack: Addresses = request.getfixturevalue("stack")
    return stack

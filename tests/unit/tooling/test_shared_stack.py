"""The servers that the processes of a run share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.shared_stack import SharedStack, ask

if TYPE_CHECKING:
    from pathlib import Path


class _Servers:
    """Servers that are counted instead of run."""

    bootstrap_servers = "127.0.0.1:9092"
    zookeeper_hosts = "127.0.0.1:2181"

    def __init__(self) -> None:
        self.starts, self.stops = 0, 0

    def start(self, _: Path) -> _Servers:
        """Count a start."""
        self.starts += 1
        return self

    def stop(self) -> None:
        """Count a stop."""
        self.stops += 1


def test_servers_start_once_for_all_that_ask() -> None:
    """Four that ask at the same time are told of the same servers, which stop with the owner."""
    servers = _Servers()
    with closing(SharedStack(servers.start)) as shared, ThreadPoolExecutor(4) as pool:
        found = set(pool.map(ask, [shared.asked_at] * 4))
    assert found == {(servers.bootstrap_servers, servers.zookeeper_hosts)}
    assert (servers.starts, servers.stops) == (1, 1)


def test_servers_are_not_started_where_none_asks() -> None:
    """A run without tests of servers has none."""
    servers = _Servers()
    SharedStack(servers.start).close()
    assert (servers.starts, servers.stops) == (0, 0)


def test_failed_start_fails_each_test_that_asks() -> None:
    """The reason is told to each, not only to the first."""

    def fail(_: Path) -> _Servers:
        raise OSError("no Java")

    with closing(SharedStack(fail)) as shared:
        for _ in range(2):
            with pytest.raises(pytest.fail.Exception, match="did not start: OSError: no Java"):
                ask(shared.asked_at)

"""The programs and commands of the documentation are run. tests/pages.py says what is what."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.core.records import TopicPartition
from tests.brokers import Broker
from tests.integration.documents.runner import Folder
from tests.pages import EXECUTED, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCKS = [block for block in blocks() if block.language in EXECUTED - {"yaml"}]


def _pages(*kinds: str) -> list[str]:
    return sorted({block.page for block in _BLOCKS if block.kind in kinds})


@pytest.fixture(scope="session")
def servers(bootstrap_servers: str, zookeeper_hosts: str) -> dict[str, str]:
    """Return the servers' addresses, with a topic on them that the pages' channel reads."""
    broker = Broker(bootstrap_servers)
    broker.create_topic(4, "flights")
    for number in range(4):
        broker.produce(TopicPartition("flights", number), b"{}", b"{}")
    return {"KAFKA": bootstrap_servers, "ZOOKEEPER": zookeeper_hosts}


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[None]:
    """End what a page left running."""
    yield
    for folder in (tmp_path / "stack", tmp_path / "home" / "headrace" / "local"):
        if folder.exists():
            command = [str(tmp_path / "bin" / "headrace"), "local", "down", "--dir", str(folder)]
            subprocess.run(command, check=False, capture_output=True, timeout=60)


@pytest.mark.parametrize("page", _pages(""))
def test_programs_without_a_server_run(page: str, tmp_path: Path) -> None:
    """Programs and commands without a comment end without an error."""
    folder = Folder(tmp_path, page, {})
    folder.write_files()
    folder.run("")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("page", _pages("servers"))
def test_commands_with_servers_run(page: str, servers: dict[str, str], tmp_path: Path) -> None:
    """A reader who follows a page, command by command, meets no error."""
    folder = Folder(tmp_path, page, servers)
    folder.write_files(f"group.{uuid4().hex[:12]}")
    folder.run("servers")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _pages("daemon"))
def test_commands_beside_a_daemon_run(page: str, servers: dict[str, str], tmp_path: Path) -> None:
    """Commands beside a daemon meet no error, and it stops in order after them."""
    folder = Folder(tmp_path, page, servers)
    folder.write_files(f"group.{uuid4().hex[:12]}")
    folder.run_beside_daemon()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _pages("spark"))
def test_programs_with_spark_run(page: str, tmp_path: Path) -> None:
    """Programs that start a Spark of their own end without an error."""
    folder = Folder(tmp_path, page, {})
    folder.write_files()
    folder.run("spark")

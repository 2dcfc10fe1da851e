from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.devstack import server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_free_port_lies_below_those_of_outgoing_connections() -> None:
    """No client's own end can be given the port while its server is down."""
    assert all(15_000 <= server.free_port() < 32_000 for _ in range(20))


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that something listens on is passed over."""
    with socket.create_server((server.LOOPBACK, 0)) as listening:
        taken = listening.getsockname()[1]
        free = server.free_port()
        monkeypatch.setattr(server, "_RANGE", [taken, free])
        assert {server.free_port() for _ in range(20)} == {free}


def test_a_folder_keeps_its_ports(tmp_path: Path) -> None:
    """A saved port is the same for the next reader of the file, until it is let go."""
    book = server.PortBook(tmp_path / "ports.json")
    port = book.port("kafka-1")
    assert book.port("kafka-1") == port
    book.save()
    again = server.PortBook(tmp_path / "ports.json")
    assert again.port("kafka-1") == port
    again.forget()
    assert {again.port(f"kafka-{n}") for n in range(5)} != {port}


def test_a_damaged_file_of_ports_means_new_ones(tmp_path: Path) -> None:
    """Contents that cannot be read as ports are ignored."""
    for content in ("{", "[1]", '{"a": "b"}'):
        (tmp_path / "ports.json").write_text(content, encoding="utf-8")
        assert server.PortBook(tmp_path / "ports.json").port("a") >= 15_000


def test_usual_ports_are_taken_where_they_are_free(tmp_path: Path) -> None:
    """A configuration finds the servers then; what is taken, or kept already, is another."""
    usual = {"kafka-1": server.free_port(), "zookeeper-1": server.free_port()}
    with socket.create_server((server.LOOPBACK, usual["kafka-1"])):
        book = server.PortBook(tmp_path / "ports.json", usual)
        assert book.port("zookeeper-1") == usual["zookeeper-1"]
        kept = book.port("kafka-1")
        assert kept != usual["kafka-1"]
        book.save()
    assert server.PortBook(tmp_path / "ports.json", usual).port("kafka-1") == kept

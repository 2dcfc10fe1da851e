"""Questions for keys over a socket, with and without the application."""

from __future__ import annotations

import json
import socket
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest

from headrace.core import http_server
from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK
from headrace.ops.admin.auth import Folder
from headrace.ops.admin.server import AdminServer
from headrace.ops.admin.stores import StoreReads
from tests.unit.ops.admin.test_state import kept
from tests.unit.ops.admin.test_stores import STORES, row, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.unit.ops.admin.scene import Scene
    from tests.unit.ops.admin.test_state import Kept

__all__ = ["kept", "shown"]


class Served:
    """A server of the stores, and who may ask it."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        config = scene.controller.config
        admin = config.admin.model_copy(update={"port": 0})
        scene.controller.config = config.model_copy(update={"state_dir": folder, "admin": admin})
        self.server = AdminServer(scene.controller, scene.process)
        self.token = Folder.of(scene.controller.config).token()

    def request(self, target: str, *more: str) -> bytes:
        """Return a request as a program sends it."""
        fields = [f"Host: {LOOPBACK}", f"Authorization: Bearer {self.token}", *more]
        return "\r\n".join([f"GET {target} HTTP/1.1", *fields, "", ""]).encode()

    def client(self) -> httpx.Client:
        """Return a client that may ask."""
        return httpx.Client(
            base_url=self.server.url,
            headers={"Authorization": f"Bearer {self.token}"},
            trust_env=False,
        )


@pytest.fixture
def served(bare: Scene, tmp_path: Path) -> Iterator[Served]:
    """Serve the stores."""
    found = Served(bare, tmp_path / "state")
    yield found
    assert found.server.close(Deadline.after(10))


def heard_from(connection: socket.socket, answers: int) -> list[tuple[bytes, bytes]]:
    """Return the first lines and bodies of so many answers."""
    found: list[tuple[bytes, bytes]] = []
    heard = b""
    connection.settimeout(10)
    while len(found) < answers:
        head, end, rest = heard.partition(b"\r\n\r\n")
        _, _, size = head.lower().partition(b"\r\ncontent-length:")
        length = int(size.partition(b"\r\n")[0] or b"0")
        if end and len(rest) >= length:
            found.append((head.partition(b"\r\n")[0], rest[:length]))
            heard = rest[length:]
            continue
        more = connection.recv(1 << 16)
        assert more, "closed"
        heard += more
    return found


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("store", ["totals", "minutes"])
def test_an_answer_is_the_same_without_the_application(served: Served, store: str) -> None:
    """With the same fields in its head, to each client that asks in the usual way."""
    with served.client() as client:
        plain, usual = (client.get(f"{STORES}/{store}/a{more}") for more in ("", "?partition=0"))
    assert plain.status_code == usual.status_code == 200
    assert plain.json() == usual.json()
    assert plain.content == usual.content
    names = {"date"}
    heads = [
        {(name, value) for name, value in each.headers.items() if name not in names}
        for each in (plain, usual)
    ]
    assert heads[0] == heads[1]


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("key", ["a b", 'q"', "é", "a/b", "c\\", "\x01", "a%2Fb"])
def test_any_text_of_a_key_is_found_and_said_as_it_is(served: Served, kept: Kept, key: str) -> None:
    """The bytes of both answers are the same."""
    for number in (0, 1):
        kept.commit(number, {f"totals/{key}".encode(): row(1_500, 4)})
    path = f"{STORES}/totals/{quote(key, safe='')}"
    with served.client() as client:
        plain = client.get(path)
        number = plain.json()["position"]["partition"]
        usual = client.get(f"{path}?partition={number}")
    assert plain.content == usual.content
    (found,) = plain.json()["rows"]
    assert (found["key"], found["row"]) == (key, {"url": key, "clicks": 4})


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_requests_that_follow_each_other_unasked_are_answered_in_their_order(
    served: Served, parts: int
) -> None:
    """Answers are in the order of requests, which come at once or in pieces, plain or not."""
    targets = [f"{STORES}/totals/a", "/health/live", f"{STORES}/totals/none", f"{STORES}/totals/d"]
    sent = b"".join(served.request(each) for each in targets * 3)
    size = -(-len(sent) // parts)
    with socket.create_connection((LOOPBACK, served.server.port)) as connection:
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
        found = heard_from(connection, 12)
    assert [line.split()[1] for line, _ in found] == [b"200", b"200", b"404", b"200"] * 3
    keys = [json.loads(body)["rows"][0]["key"] for _, body in found[::4] + found[3::4]]
    assert keys == ["a"] * 3 + ["d"] * 3


@pytest.mark.usefixtures("shown")
def test_whole_requests_in_one_piece_each_are_answered_in_their_order(served: Served) -> None:
    """One that is sent while the answer before is made waits for it."""
    targets = [f"{STORES}/totals/{key}" for key in ("a", "d", "none", "a")]
    with socket.create_connection((LOOPBACK, served.server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for target in targets * 20:
            connection.sendall(served.request(target))
        found = heard_from(connection, 80)
    assert [line.split()[1] for line, _ in found] == [b"200", b"200", b"404", b"200"] * 20


def held_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Stop reads of keys: return an event of their begin, and one that lets them go on."""
    asked, gate = Event(), Event()
    read: Callable[..., list[str | None]] = StoreReads.rows_of_keys

    def rows_of_keys(self: StoreReads, question: object, keys: Sequence[str]) -> list[str | None]:
        asked.set()
        assert gate.wait(10)
        return read(self, question, keys)

    monkeypatch.setattr(StoreReads, "rows_of_keys", rows_of_keys)
    return asked, gate


@pytest.mark.usefixtures("shown")
def test_a_question_that_is_being_read_is_answered_before_the_end(
    bare: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops answers it, and closes the connection then."""
    asked, gate = held_reads(monkeypatch)
    served = Served(bare, tmp_path / "state")
    with socket.create_connection((LOOPBACK, served.server.port)) as connection:
        connection.sendall(served.request(f"{STORES}/totals/a"))
        assert asked.wait(10)
        assert not served.server.close(Deadline.after(0.2))
        gate.set()
        ((line, _),) = heard_from(connection, 1)
        assert line == b"HTTP/1.1 200 OK"
        assert connection.recv(1) == b""
    assert served.server.close(Deadline.after(10))


@pytest.mark.usefixtures("shown")
def test_a_connection_whose_question_is_read_is_not_silent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept for as long as that takes, and closed once it asks for nothing more."""
    asked, gate = held_reads(monkeypatch)
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.05)
    monkeypatch.setattr(http_server, "KEEP_ALIVE", 0.05)
    with socket.create_connection((LOOPBACK, served.server.port)) as connection:
        connection.sendall(served.request(f"{STORES}/totals/a"))
        assert asked.wait(10)
        with socket.create_connection((LOOPBACK, served.server.port)) as silent:
            silent.settimeout(10)
            # one that asks for nothing is closed meanwhile
            assert silent.recv(1) == b""
        gate.set()
        ((line, _),) = heard_from(connection, 1)
        assert line == b"HTTP/1.1 200 OK"
        assert connection.recv(1) == b""


@pytest.mark.usefixtures("shown")
def test_a_client_that_goes_away_ends_nothing_but_its_own_question(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that are read with it have their answers."""
    asked, gate = held_reads(monkeypatch)
    with socket.create_connection((LOOPBACK, served.server.port)) as connection:
        with socket.create_connection((LOOPBACK, served.server.port)) as gone:
            gone.sendall(served.request(f"{STORES}/totals/a"))
            assert asked.wait(10)
            connection.sendall(served.request(f"{STORES}/totals/d"))
        gate.set()
        ((line, body),) = heard_from(connection, 1)
        assert line == b"HTTP/1.1 200 OK"
        assert json.loads(body)["rows"][0]["key"] == "d"

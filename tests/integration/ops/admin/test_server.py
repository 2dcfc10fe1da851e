"""The server: its address, its token, TLS and its end."""

from __future__ import annotations

import socket
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trustme
from fastapi import FastAPI
from structlog.testing import capture_logs

from headrace.config import load
from headrace.core import http_server
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import wait_for
from headrace.ops.admin import auth
from headrace.ops.admin import server as module
from headrace.ops.admin.auth import Folder
from headrace.ops.admin.server import AdminServer
from tests.unit.channel.in_memory import eventually
from tests.unit.config.support import CHANNELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.config import Config
    from headrace.telemetry.metrics import PartitionSnapshot
    from tests.unit.ops.admin.scene import Scene


#: Seconds that tens of answers may take on a busy machine.
LONG = 60.0


class Served:
    """A server, and what it is asked from."""

    def __init__(self, scene: Scene, config: Config) -> None:
        scene.controller.config = config
        self.folder = Folder.of(config)
        self.server = AdminServer(scene.controller, scene.process)

    def close(self) -> None:
        """End it."""
        assert self.server.close(Deadline.after(10))


@pytest.fixture
def serve(bare: Scene, tmp_path: Path) -> Iterator[Any]:
    """Start servers and end them with the test."""
    started: list[Served] = []

    def start(admin: str) -> Served:
        file = tmp_path / "headrace.yaml"
        state = tmp_path / "state"
        file.write_text(f"state_dir: {state}\ninstance_id: one\nadmin: {admin}\n{CHANNELS}")
        started.append(Served(bare, load(file)))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_the_token_is_made_once_and_kept_from_others(serve: Any) -> None:
    """A restart has the same token, in a file that only its owner reads."""
    first = serve("{port: 0}")
    token = first.folder.read_token()
    assert len(token) >= 43
    assert stat.S_IMODE(first.folder.token_file.stat().st_mode) == 0o600
    first.close()
    assert first.folder.read_address() is None
    assert serve("{port: 0}").folder.read_token() == token


def test_a_configured_token_is_in_no_file(serve: Any) -> None:
    """The token that the configuration names is not written down again."""
    served = serve("{port: 0, token: a-token-that-is-long-enough}")
    assert not served.folder.token_file.exists()
    headers = {"Authorization": "Bearer a-token-that-is-long-enough"}
    with httpx.Client(base_url=served.server.url, trust_env=False, verify=False) as client:
        assert client.get("/api/v1/config").status_code == 401
        assert client.get("/api/v1/config", headers=headers).status_code == 200


def test_the_usual_port_gives_way_and_a_chosen_one_does_not(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free port replaces the default if that is taken; a port that was named has to be free."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "DEFAULT_PORT", port)
        served = serve("{}")
        assert served.server.port not in {0, port}
        assert served.folder.read_address().url == f"http://{LOOPBACK}:{served.server.port}"
        with pytest.raises(StartError, match=r"choose another admin\.port"):
            serve(f"{{port: {port}}}")


def test_files_that_cannot_be_used_are_named_before_anything_starts(
    serve: Any, tmp_path: Path
) -> None:
    """A missing or broken certificate is a StartError that says what to check."""
    (tmp_path / "broken.pem").write_text("nothing")
    for file in ("absent.pem", "broken.pem"):
        with pytest.raises(StartError, match=r"admin\.tls cannot be used"):
            serve(f"{{port: 0, tls: {{certificate_file: {file}, key_file: {file}}}}}")


def test_a_state_folder_that_cannot_be_written_is_named(serve: Any, tmp_path: Path) -> None:
    """The start says so where neither token nor address can be kept."""
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StartError, match="state_dir"):
        serve("{port: 0}")


class Authority:
    """Certificates for a server and a client, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            folder / "server.pem"
        )

    def client(self, name: str | None) -> ssl.SSLContext:
        """Return what a client trusts, and shows where it has a name."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if name is not None:
            shown = self.authority.issue_cert(f"{name}@mill", common_name=name)
            shown.private_key_and_cert_chain_pem.write_to_path(self.folder / f"{name}.pem")
            context.load_cert_chain(self.folder / f"{name}.pem")
        return context


def test_a_certificate_counts_as_the_token_and_its_name_stands_in_the_log(
    serve: Any, bare: Scene, tmp_path: Path
) -> None:
    """With client_ca_file: a client's certificate lets it in, one without needs the token."""
    authority = Authority(tmp_path)
    files = "certificate_file: server.pem, key_file: server.pem, client_ca_file: ca.pem"
    served = serve(f"{{port: 0, tls: {{{files}}}}}")
    assert served.server.url.startswith("https://")
    answers = {}
    with capture_logs() as lines:
        for name in ("ann", None):
            with httpx.Client(verify=authority.client(name), trust_env=False) as client:
                answers[name] = client.post(f"{served.server.url}/api/v1/stop", json={})
                assert client.get(f"{served.server.url}/health/live").status_code == 200
    assert {name: answer.status_code for name, answer in answers.items()} == {"ann": 202, None: 401}
    assert bare.stops == ["certificate ann from 127.0.0.1"]
    (change,) = [line for line in lines if line["event"] == "admin_change"]
    assert change["proof"] == "certificate ann"


def test_a_renewed_certificate_is_shown_without_a_restart(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a renewal changes nothing: the former goes on until certificate and key fit."""
    monkeypatch.setattr(http_server, "CERTIFICATE_TICKS", 1)
    former, other = Authority(tmp_path), tmp_path / "other"
    other.mkdir()
    renewed = Authority(other)
    whole = (other / "server.pem").read_text()
    files = "certificate_file: server.pem, key_file: key.pem"
    (tmp_path / "key.pem").write_text((tmp_path / "server.pem").read_text())
    served = serve(f"{{port: 0, tls: {{{files}}}}}")

    def answers(authority: Authority) -> bool:
        with httpx.Client(verify=authority.client(None), trust_env=False) as client:
            try:
                return client.get(f"{served.server.url}/health/live").is_success
            except httpx.TransportError:
                return False

    assert answers(former)
    with capture_logs() as lines:
        (tmp_path / "server.pem").write_text(whole)
        eventually(lambda: "admin_certificate_refused" in [line["event"] for line in lines])
        assert answers(former)
        assert not answers(renewed)
        (tmp_path / "key.pem").write_text(whole)
        eventually(lambda: "admin_certificate_renewed" in [line["event"] for line in lines])
    assert answers(renewed)
    assert not answers(former)


def test_a_certificate_of_another_authority_is_not_let_in(serve: Any, tmp_path: Path) -> None:
    """The connection itself is refused."""
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    files = "certificate_file: server.pem, key_file: server.pem, client_ca_file: ca.pem"
    served = serve(f"{{port: 0, tls: {{{files}}}}}")
    context = authority.client(None)
    other.client("eve")
    context.load_cert_chain(tmp_path / "other" / "eve.pem")
    with (
        httpx.Client(verify=context, trust_env=False) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get(f"{served.server.url}/health/live")


@pytest.mark.parametrize(
    ("section", "address", "status"),
    [
        ("{port: 0}", LOOPBACK, 403),
        ("{port: 0, trusted_proxies: [192.0.2.0/24]}", LOOPBACK, 403),
        ("{port: 0, trusted_proxies: [127.0.0.0/8]}", "198.51.100.9", 202),
    ],
)
def test_forwarded_headers_count_from_trusted_proxies_alone(
    serve: Any, bare: Scene, section: str, address: str, status: int
) -> None:
    """The log has the address that connected, and a page's https counts, but for those named."""
    served = serve(section)
    headers = {
        "Authorization": f"Bearer {served.folder.read_token()}",
        "X-Forwarded-For": "198.51.100.9",
        "X-Forwarded-Proto": "https",
    }
    with (
        capture_logs() as lines,
        httpx.Client(base_url=served.server.url, headers=headers, trust_env=False) as client,
    ):
        assert client.post("/api/v1/stop", json={}).status_code == 202
        own_page = {"Origin": f"https://{client.base_url.netloc.decode()}"}
        answer = client.post("/api/v1/stop", json={}, headers=own_page)
        assert answer.status_code == status, answer.text
    assert bare.stops[0] == f"token from {address}"
    changes = [line for line in lines if line["event"] == "admin_change"]
    assert {line["address"].partition(":")[0] for line in changes} == {address}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv4 through IPv6")
@pytest.mark.parametrize(
    ("proxies", "address"), [("[]", LOOPBACK), (f"[{LOOPBACK}]", "198.51.100.9")]
)
def test_every_address_is_that_of_either_family(
    serve: Any, bare: Scene, proxies: str, address: str
) -> None:
    """``::`` is reached by IPv4, too, and who comes by it is known by an address of IPv4."""
    section = f"{{port: 0, host: '::', plain_text: true, trusted_proxies: {proxies}}}"
    served = serve(section)
    headers = {
        "Authorization": f"Bearer {served.folder.read_token()}",
        "X-Forwarded-For": "198.51.100.9",
    }
    with httpx.Client(headers=headers, trust_env=False) as client:
        assert client.get(f"{served.server.url}/health/live").status_code == 200
        by_v4 = f"http://{LOOPBACK}:{served.server.port}/api/v1/stop"
        assert client.post(by_v4, json={}).status_code == 202
    assert bare.stops == [f"token from {address}"]


def test_the_port_is_free_again_after_close(serve: Any) -> None:
    """After close nothing listens, so that a restart has the same port."""
    port = free_port()
    serve(f"{{port: {port}}}").close()
    serve(f"{{port: {port}}}")


def _connected(served: Served, number: int, sent: bytes = b"") -> list[socket.socket]:
    """Return connections that sent something, and wait for nothing."""
    connections = []
    for _ in range(number):
        connections.append(socket.create_connection((LOOPBACK, served.server.port), timeout=10))
        connections[-1].sendall(sent)
    return connections


def _ended(connection: socket.socket) -> bool:
    """Read to the end, for ten seconds at most; whether it came."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


#: A request that lacks its last line.
HALF = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("sent", [b"", HALF, HALF + b"Content-Length: 9\r\n\r\n"])
def test_silent_connections_do_not_hold_up_requests(serve: Any, sent: bytes) -> None:
    """With more of them than may be open, the oldest go, and all that is asked is answered."""
    served = serve("{port: 0}")
    silent = _connected(served, http_server.MOST_CONNECTIONS + 44, sent)
    with httpx.Client(base_url=served.server.url, trust_env=False) as client:
        for path in ("/health/live", "/metrics", "/api/v1/status", "/"):
            assert client.get(path).status_code == 200, path
    assert all(_ended(connection) for connection in silent[:40])
    for connection in silent:
        connection.close()


def test_unfinished_handshakes_do_not_hold_up_requests(serve: Any, tmp_path: Path) -> None:
    """With TLS connections count from the moment at which they are accepted."""
    authority = Authority(tmp_path)
    served = serve("{port: 0, tls: {certificate_file: server.pem, key_file: server.pem}}")
    silent = _connected(served, http_server.MOST_CONNECTIONS + 44, b"\x16\x03\x01")
    with httpx.Client(verify=authority.client(None), trust_env=False) as client:
        assert client.get(f"{served.server.url}/health/live").status_code == 200
    assert all(_ended(connection) for connection in silent[:40])
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("sent", [b"", HALF, HALF + b"\r\n"])
def test_a_silent_connection_is_closed(
    serve: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A client that connects and asks for nothing, or for nothing more, is disconnected."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.05)
    monkeypatch.setattr(http_server, "KEEP_ALIVE", 0.05)
    served = serve("{port: 0}")
    silent = _connected(served, 4, sent)
    assert [_ended(connection) for connection in silent] == [True] * 4
    for connection in silent:
        connection.close()
    assert httpx.get(f"{served.server.url}/health/live").status_code == 200


def test_a_connection_that_is_being_answered_is_kept(
    serve: Any, bare: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that takes long comes, though everybody else who is silent is let go."""
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.05)
    asked, gate = Event(), Event()
    bare.controller.metrics.watch_partitions("slow", partial(_held, asked, gate))
    served = serve("{port: 0}")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(httpx.get, f"{served.server.url}/metrics", timeout=30, trust_env=False)
        assert asked.wait(10)
        silent = _connected(served, 4)
        assert all(_ended(connection) for connection in silent)
        gate.set()
        assert slow.result(30).status_code == 200
    for connection in silent:
        connection.close()


def _held(asked: Event, gate: Event) -> list[PartitionSnapshot]:
    """Look at partitions, which takes until the gate opens."""
    asked.set()
    assert gate.wait(30)
    return []


def test_health_has_a_place_where_all_others_are_taken(
    serve: Any, bare: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request beyond the limit of waiting ones is refused with a 503; probes are answered."""
    monkeypatch.setattr(auth, "MOST_REQUESTS", 1)
    asked, gate = Event(), Event()
    bare.controller.metrics.watch_partitions("slow", partial(_held, asked, gate))
    served = serve("{port: 0}")
    with (
        ThreadPoolExecutor(1) as pool,
        httpx.Client(base_url=served.server.url, trust_env=False) as client,
    ):
        slow = pool.submit(httpx.get, f"{served.server.url}/metrics", timeout=30, trust_env=False)
        assert asked.wait(10)
        refused = client.get("/api/v1/status")
        assert (refused.status_code, refused.json()["error"]) == (503, "too_many_requests")
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").json() == {"ok": True, "reasons": []}
        gate.set()
        assert slow.result(30).status_code == 200
        assert client.get("/api/v1/status").status_code == 200


def test_making_the_openapi_document_holds_up_no_other_request(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes more than a second of processor time, and probes are answered meanwhile."""
    asked, gate = Event(), Event()
    monkeypatch.setattr(FastAPI, "openapi", lambda _: {"paths": _held(asked, gate)})
    url = serve("{port: 0}").server.url
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(httpx.get, f"{url}/openapi.json", timeout=30, trust_env=False)
        try:
            assert asked.wait(10)
            assert httpx.get(f"{url}/health/live", trust_env=False).status_code == 200
        finally:
            gate.set()
        assert slow.result(30).json() == {"paths": []}


def test_a_client_that_does_not_read_takes_no_place_and_is_disconnected(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests whose answers pile up do not count, and the connection ends."""
    monkeypatch.setattr(auth, "MOST_REQUESTS", 1)
    served = serve("{port: 0}")
    # what makes the document once takes the only place for as long
    document = f"{served.server.url}/openapi.json"
    assert httpx.get(document, timeout=LONG, trust_env=False).status_code == 200
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect((LOOPBACK, served.server.port))
    unread.settimeout(0.2)
    with suppress(OSError):
        while True:
            unread.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    # until they pile up, one of them is being answered and has the only place
    with httpx.Client(base_url=served.server.url, timeout=LONG, trust_env=False) as client:
        status = partial(client.get, "/api/v1/status")
        assert wait_for(lambda: status().status_code == 200, Deadline.after(LONG))
    monkeypatch.setattr(http_server, "KEEP_ALIVE", 1)
    assert wait_for(lambda: _is_reset(unread), Deadline.after(LONG))
    unread.close()


def _is_reset(connection: socket.socket) -> bool:
    """Whether the other side is gone, found out without reading."""
    try:
        connection.send(b"G")
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return False

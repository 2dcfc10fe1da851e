"""Access to the API: which requests need the token, and which are refused."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from starlette.datastructures import Headers

from headrace.config import AdminConfig
from headrace.ops.admin.auth import LARGEST_BODY, Rules, is_guarded_read
from headrace.ops.admin.models import ApiError
from headrace.ops.admin.server import public_url
from tests.unit.channel.in_memory import filled_broker
from tests.unit.ops.admin.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("path", ["/api/v1/config", "/api/v1/stacks"])
def test_secret_documents_take_the_token_on_loopback_too(bare: Scene, path: str) -> None:
    """Configuration and stacks are read with the token only."""
    answer = bare.client.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"] == "token_missing"
    assert "admin-token" in answer.json()["next_step"]


def test_reading_on_loopback_takes_no_token(bare: Scene) -> None:
    """Status, metrics and the OpenAPI document are readable for every user of the machine."""
    for path in ("/api/v1/status", "/metrics", "/openapi.json"):
        assert bare.client.get(path).status_code == 200


def test_reading_from_elsewhere_takes_the_token_but_for_probes() -> None:
    """An API that listens for other machines shows them its health alone without the token."""
    scene = Scene(filled_broker(), open_reads=False)
    for path in ("/api/v1/status", "/metrics", "/openapi.json", "/nowhere"):
        assert scene.client.get(path).status_code == 401
    assert scene.client.get("/health/live").status_code == 200
    assert scene.client.get("/health/ready").status_code == 200
    assert scene.get("/api/v1/status").status_code == 200


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer", "Bearer ", "Basic YTpi", "bearer a-token-that-is-long-enougH", "é"],
)
def test_a_wrong_token_is_told_from_a_missing_one(bare: Scene, header: str) -> None:
    """A wrong header is a 401 that calls the token wrong."""
    answer = bare.client.get("/api/v1/config", headers={b"Authorization": header.encode()})
    assert (answer.status_code, answer.json()["error"]) == (401, "wrong_token")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9465", "localhost.evil.example"])
def test_a_name_that_is_none_of_ours_is_refused(bare: Scene, host: str) -> None:
    """A page whose name was made to resolve to this address gets nothing, with the token or not."""
    for path in ("/api/v1/status", "/health/live", "/metrics"):
        answer = bare.client.get(path, headers={**bare.trusted, "Host": host})
        assert (answer.status_code, answer.json()["error"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["127.0.0.1:9465", "[::1]:9465", "LOCALHOST", "10.1.2.3"])
def test_addresses_and_own_names_are_let_through(bare: Scene, host: str) -> None:
    """No page can make a browser send an address that it did not connect to."""
    assert bare.client.get("/api/v1/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:80"])
def test_a_page_of_another_site_is_refused(bare: Scene, origin: str) -> None:
    """A request from another site's page is refused, even with the token."""
    answer = bare.client.get("/api/v1/status", headers={**bare.trusted, "Origin": origin})
    assert (answer.status_code, answer.json()["error"]) == (403, "origin_not_allowed")


def test_the_own_page_may_ask(bare: Scene) -> None:
    """The origin that the API is served under is let through."""
    headers = {"Origin": "http://localhost:9465"}
    assert bare.client.get("/api/v1/status", headers=headers).status_code == 200


def test_changes_take_the_token_before_anything_else_is_looked_at(bare: Scene) -> None:
    """Without the token not even the path or the body of a change is judged."""
    for path in ("/api/v1/nowhere", "/api/v1/status"):
        answer = bare.client.post(path, content=b"{")
        assert (answer.status_code, answer.json()["error"]) == (401, "token_missing")


def test_large_bodies_are_refused(bare: Scene) -> None:
    """A body that says that it is too large is not read, and one that does not say is cut off."""

    async def endless() -> Iterator[bytes]:  # type: ignore[misc]
        for _ in range(LARGEST_BODY // 1024 + 1):
            yield b"x" * 1024

    for content in (b"x" * (LARGEST_BODY + 1), endless()):
        answer = bare.client.post("/api/v1/reload", headers=bare.trusted, content=content)
        assert (answer.status_code, answer.json()["error"]) == (413, "body_too_large")


def test_every_error_has_the_same_shape(bare: Scene) -> None:
    """Unknown paths and methods answer a problem as well."""
    missing = bare.get("/api/v2/status")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    method = bare.client.request("DELETE", "/api/v1/status", headers=bare.trusted)
    assert (method.status_code, method.json()["error"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "GET"
    for answer in (missing, method):
        assert answer.json().keys() == {"error", "message", "value", "next_step"}


def test_an_unforeseen_error_shows_nothing_of_itself(
    bare: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug is a 500 in the same shape, without a traceback or the error's text."""
    monkeypatch.setattr("headrace.ops.admin.reads.metrics_text", lambda _: 1 / 0)
    answer = bare.get("/metrics")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert "division" not in answer.text


def test_the_openapi_document_declares_what_the_guard_answers(bare: Scene) -> None:
    """Each endpoint names the statuses of refusals, and that it takes the token."""
    document = bare.client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"401", "403", "413", "500"} <= operation["responses"].keys()
            assert ("security" in operation) == (method == "post" or is_guarded_read(path))


def test_a_body_that_is_cut_off_changes_nothing(bare: Scene) -> None:
    """A request whose connection ends before its body is refused, and not done by its defaults."""
    answered: list[dict[str, Any]] = []
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    token = bare.trusted["Authorization"].encode()
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/stop",
        "raw_path": b"/api/v1/stop",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", token)],
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(bare.client.app(scope, receive, send))  # type: ignore[arg-type]
    assert answered[0]["status"] == 400
    assert b"body_cut_off" in answered[1]["body"]
    assert bare.stops == []


@pytest.mark.parametrize(
    ("host", "tls", "expected"),
    [
        ("127.0.0.1", False, None),
        ("::1", False, None),
        ("0.0.0.0", False, f"http://{socket.getfqdn()}:9465"),
        ("mill.example", True, "https://mill.example:9465"),
        ("2001:db8::1", True, "https://[2001:db8::1]:9465"),
    ],
)
def test_members_publish_where_other_machines_reach_the_api(
    host: str, expected: str | None, *, tls: bool
) -> None:
    """An address of this machine alone is not published."""
    given: dict[str, Any] = {"host": host, "plain_text": not tls}
    if tls:
        given["tls"] = {"certificate_file": "/c", "key_file": "/k"}
    assert public_url(AdminConfig.model_validate(given), 9465) == expected


def test_an_advertised_address_is_published_and_answers_to_its_name() -> None:
    """It takes the place of host and port, also on loopback, where a proxy is what others reach."""
    config = AdminConfig.model_validate({"advertised_url": "https://Mill.example/one/"})
    assert public_url(config, 9465) == "https://Mill.example/one"
    rules = Rules.of(config, "a-token-that-is-long-enough")
    rules.check_host(Headers({"host": "mill.example"}))
    with pytest.raises(ApiError, match=r"evil\.example"):
        rules.check_host(Headers({"host": "evil.example"}))

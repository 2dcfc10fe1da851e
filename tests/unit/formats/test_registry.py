from __future__ import annotations

import base64
import itertools
import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from headrace.config.models.registry import RegistryConfig
from headrace.formats import answers
from headrace.formats.errors import RegistryError, UnknownSchemaError
from headrace.formats.registry import (
    ASK_AGAIN,
    WAITS,
    RegistrySettings,
    SchemaRegistry,
    settings_of,
)
from headrace.testing import FakeClock
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def registry(server: RegistryServer, clock: FakeClock | None = None) -> SchemaRegistry:
    """Return a client of it."""
    return SchemaRegistry(RegistrySettings((server.url,)), clock or FakeClock())


def test_an_id_that_is_known_is_never_asked_for_again(server: RegistryServer) -> None:
    """A client asks for an id once, and knows it also after the registry has gone."""
    number = server.register("orders-value", TEXT)
    client = registry(server)
    assert client.schema(number).text == TEXT
    server.stop()
    assert client.schema(number).kind == "AVRO"
    assert server.asked == [f"/schemas/ids/{number}"]


def test_an_unknown_id_is_told_after_two_answers_half_a_minute_apart(
    server: RegistryServer,
) -> None:
    """The first answer that there is none makes the batch wait, and only the second one counts."""
    clock = FakeClock()
    client = registry(server, clock)
    for _ in range(2):
        with pytest.raises(RegistryError, match="to know schema id 5"):
            client.schema(5)
    assert len(server.asked) == 1
    clock.advance(ASK_AGAIN)
    for _ in range(2):
        with pytest.raises(UnknownSchemaError, match="is not known to the registry"):
            client.schema(5)
    assert len(server.asked) == 2


def test_an_id_that_is_registered_after_the_first_question_is_found(server: RegistryServer) -> None:
    """An id that was unknown at first is read as soon as the registry has it."""
    clock = FakeClock()
    client = registry(server, clock)
    with pytest.raises(RegistryError):
        client.schema(1)
    server.register("orders-value", TEXT)
    clock.advance(ASK_AGAIN)
    assert client.schema(1).text == TEXT


@pytest.mark.parametrize("status", [500, 503, 401, 403, 404, 429])
def test_a_registry_that_answers_with_an_error_makes_batches_wait(
    server: RegistryServer, status: int
) -> None:
    """An error of the registry's is no record's fault, whatever its number."""
    client = registry(server)
    server.status = HTTPStatus(status)
    with pytest.raises(RegistryError, match=str(status)):
        client.schema(1)


def test_a_registry_that_is_away_makes_batches_wait(server: RegistryServer) -> None:
    """A refused connection is an error that is tried again, and names the address."""
    server.stop()
    with pytest.raises(RegistryError, match=server.url):
        registry(server).schema(1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>Sign in</html>", "answered 200 OK with what is no object of JSON"),
        (b"", "answered 200 OK with what is no object of JSON"),
        (b"[1]", "answered 200 OK with what is no object of JSON"),
        (b"[" * 100_000, "answered 200 OK with what is no object of JSON"),
        (b"{}", "answered with no text of a schema"),
        (b'{"schema": {"type": "record"}}', "answered with no text of a schema"),
        (b'{"schema": "\\"long\\"", "schemaType": 5}', "answered with schemaType 5"),
        (b'{"schema": "\\"long\\"", "references": 5}', "answered with references that are no list"),
        (b'{"schema": "\\"long\\"", "references": [5]}', "a reference without a subject and a"),
        (
            b'{"schema": "\\"long\\"", "references": [{"subject": "s", "version": "x"}]}',
            "a reference without a subject and a version",
        ),
    ],
)
def test_an_answer_of_another_shape_makes_batches_wait(
    server: RegistryServer, body: bytes, words: str
) -> None:
    """Pages, texts and other objects are no record's fault, and the error says what came."""
    number = server.register("orders-value", TEXT)
    client = registry(server)
    server.body = body
    with pytest.raises(RegistryError, match=WAITS) as raised:
        client.schema(number)
    assert words in str(raised.value)
    server.body = None
    assert client.schema(number).text == TEXT


def test_a_version_without_an_id_is_no_schema(server: RegistryServer) -> None:
    """A subject's version comes with the number of its schema, or not at all."""
    server.register("orders-value", TEXT)
    server.body = json.dumps({"schema": TEXT, "id": "7"}).encode()
    with pytest.raises(RegistryError, match="answered with no id of a schema"):
        registry(server).version("orders-value", "latest")


def test_an_answer_in_small_parts_has_one_time_limit(server: RegistryServer) -> None:
    """An answer that never stops coming is given up when the time-out is over as a whole."""
    number = server.register("orders-value", TEXT)
    server.pause = 0.1
    client = SchemaRegistry(RegistrySettings((server.url,), timeout=1.0))
    with pytest.raises(RegistryError, match="no whole answer within 1 s"):
        client.schema(number)
    server.pause = 0.0
    assert client.schema(number).text == TEXT


def test_a_registry_is_asked_over_tls(tmp_path: Path) -> None:
    """The file of certificates is what it is trusted by, and an answer has its time there too."""
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with RegistryServer(tls=tls) as server:
        number = server.register("orders-value", TEXT)
        settings = RegistrySettings((server.url,), ca_file=trusted)
        assert SchemaRegistry(settings).schema(number).text == TEXT
        server.pause = 0.1
        with pytest.raises(RegistryError, match="no whole answer within 1 s"):
            SchemaRegistry(replace(settings, timeout=1.0)).schema(number)
        server.pause = 0.0
        with pytest.raises(RegistryError, match="certificate verify failed"):
            registry(server).schema(number)


def test_an_answer_without_an_end_is_given_up(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is read up to a number of bytes that no schema has."""
    number = server.register("orders-value", TEXT)
    monkeypatch.setattr(answers, "MOST_BYTES", len(TEXT))
    with pytest.raises(RegistryError, match="the answer has more than"):
        registry(server).schema(number)


def test_those_that_waited_for_a_question_share_its_failure() -> None:
    """Threads that need ids of a registry that is away do not ask it one after the other."""
    asking, both, looks = threading.Event(), threading.Event(), itertools.count(1)

    class Counted(FakeClock):
        def monotonic(self) -> float:
            # the first thread looks when it begins and when it asks, the second when it begins
            if next(looks) == 3:
                both.set()
            return super().monotonic()

    clock = Counted()

    class Slow(RegistryServer):
        def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
            asking.set()
            assert both.wait(10)
            clock.advance(1)
            return super().answer(method, path, body)

    with Slow() as slow, ThreadPoolExecutor(2) as pool:
        slow.status = HTTPStatus.SERVICE_UNAVAILABLE
        client = registry(slow, clock)
        first = pool.submit(client.schema, 1)
        assert asking.wait(10)
        second = pool.submit(client.schema, 2)
        for each in (first, second):
            with pytest.raises(RegistryError, match="503"):
                each.result(10)
        assert slow.asked == ["/schemas/ids/1"]


def test_the_second_address_is_asked_where_the_first_one_is_away(server: RegistryServer) -> None:
    """The first address that answers is taken."""
    number = server.register("orders-value", TEXT)
    with RegistryServer() as gone:
        away = gone.url
    client = SchemaRegistry(RegistrySettings((away, server.url)))
    assert client.schema(number).text == TEXT


def test_references_are_read_each_after_what_it_names(server: RegistryServer) -> None:
    """A schema comes with the texts of those that it refers to, also those of the references."""
    server.register("street", '"s"')
    street = {"name": "Street", "subject": "street", "version": 1}
    server.register("address", '"a"', references=[street])
    address = {"name": "Address", "subject": "address", "version": 1}
    number = server.register("person", '"p"', references=[address, street])
    assert registry(server).schema(number).references == ('"s"', '"a"')


def test_a_schema_is_read_by_its_guid(server: RegistryServer) -> None:
    """A GUID is known for ever too, and one that is unknown is told after two answers."""
    number = server.register("orders-value", TEXT)
    clock = FakeClock()
    client = registry(server, clock)
    assert client.schema(server.guid(number)).text == TEXT
    other = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(RegistryError, match=f"to know schema guid {other}"):
        client.schema(other)
    clock.advance(ASK_AGAIN)
    with pytest.raises(UnknownSchemaError):
        client.schema(other)


def test_a_subject_is_read_by_its_version(server: RegistryServer) -> None:
    """The latest version of a subject, or one by its number, comes with its id."""
    first, second = server.register("orders/a", TEXT), server.register("orders/a", '"long"')
    client = registry(server)
    assert client.version("orders/a", "latest").number == second
    assert client.version("orders/a", "1").number == first
    with pytest.raises(UnknownSchemaError, match="no version 3 of subject orders/a"):
        client.version("orders/a", "3")


@pytest.mark.parametrize(
    ("given", "header"),
    [
        (
            {"username": "key", "password": "secret"},
            "Basic " + base64.b64encode(b"key:secret").decode(),
        ),
        ({"token": "abc"}, "Bearer abc"),
    ],
)
def test_a_client_logs_in_as_configured(
    server: RegistryServer, given: dict[str, str], header: str
) -> None:
    """A name and a password, and a bearer token, are sent with each question."""
    server.login, number = header, server.register("orders-value", TEXT)
    settings = settings_of(RegistryConfig.model_validate({"url": server.url, **given}))
    assert SchemaRegistry(settings).schema(number).text == TEXT
    assert "secret" not in repr(settings)
    assert "abc" not in repr(settings)
    with pytest.raises(RegistryError, match="401"):
        registry(server).schema(number)


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A file that is no certificate makes batches wait, with a sentence that names the section."""
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    client = SchemaRegistry(RegistrySettings(("https://127.0.0.1:9",), ca_file=broken))
    with pytest.raises(RegistryError, match=r"files of registry\.tls cannot be used"):
        client.schema(1)
    trustme.CA().cert_pem.write_to_path(broken)
    with pytest.raises(RegistryError, match=r"https://127\.0\.0\.1:9: "):
        client.schema(1)

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
import trustme

from headrace.config.models.registry import RegistryConfig
from headrace.formats.errors import RegistryError, UnknownSchemaError
from headrace.formats.registry import (
    ASK_AGAIN,
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

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
from headrace.core.errors import StartError
from headrace.formats.avro.reader import decoder_of
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LATEST: dict[str, Any] = {"subject": "orders-value"}


def schema(*names: str) -> str:
    """Return a record of whole numbers."""
    fields = [{"name": name, "type": "long"} for name in names]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that has orders."""
    with RegistryServer() as made:
        made.register("orders-value", schema("id"))
        yield made


def columns(server: RegistryServer, chosen: dict[str, Any], **login: str) -> list[str]:
    """Return the columns of a channel that starts now."""
    registry = RegistryConfig.model_validate({"url": server.url, **login})
    decoder = decoder_of(ReaderSchemaConfig.model_validate(chosen), registry)
    decoder.load()
    assert decoder.kind is not None
    return [field.name for field in decoder.kind]


@pytest.mark.parametrize("chosen", [LATEST, {**LATEST, "version": 1}, {"id": 1}])
def test_a_channel_that_starts_again_needs_no_registry(
    server: RegistryServer, chosen: dict[str, Any]
) -> None:
    """While the registry is away the reader's schema is the one that was read before."""
    assert columns(server, chosen) == ["id"]
    server.stop()
    with capture_logs() as log:
        assert columns(server, chosen) == ["id"]
    assert [each["event"] for each in log] == ["reader_schema_kept"]


def test_a_channel_that_starts_again_takes_the_latest_version(server: RegistryServer) -> None:
    """A schema that was read before is for a registry that is away only."""
    assert columns(server, LATEST) == ["id"]
    server.register("orders-value", schema("id", "sum"))
    assert columns(server, LATEST) == ["id", "sum"]
    server.stop()
    assert columns(server, LATEST) == ["id", "sum"]


def test_another_login_is_tried_and_not_taken_on_trust(server: RegistryServer) -> None:
    """A reader's schema that was read with one login says nothing of another."""
    server.login = "Bearer right"
    assert columns(server, LATEST, token="right") == ["id"]
    with pytest.raises(StartError, match="401"):
        columns(server, LATEST, token="wrong")

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.schema_registry import Schema

from headrace.devstack.registry import SchemaRegistryServer
from headrace.formats.registry import RegistrySettings, SchemaRegistry
from headrace.testing import FakeClock
from tests.contracts.schema_registry import SchemaRegistryContract, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.schema_registry import SchemaRegistryClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryServer]:
    """A registry of others' in a process of its own."""
    server = SchemaRegistryServer(tmp_path_factory.mktemp("registry"))
    server.start()
    yield server
    server.kill()


class TestApicurio(SchemaRegistryContract):
    """Apicurio keeps the contract that the double is held to."""

    @pytest.fixture
    def url(self, apicurio: SchemaRegistryServer) -> str:
        """The address of Apicurio."""
        return apicurio.url

    def test_schemas_outlive_a_kill(
        self, producer: SchemaRegistryClient, apicurio: SchemaRegistryServer, subject: str
    ) -> None:
        """A schema has the same id after a kill and a start."""
        number = producer.register_schema(subject, Schema(record("B", ("id", "long")), "AVRO"))
        apicurio.kill()
        apicurio.start()
        client = SchemaRegistry(RegistrySettings((apicurio.url,)), FakeClock())
        assert client.schema(number).text == client.version(subject, "1").text

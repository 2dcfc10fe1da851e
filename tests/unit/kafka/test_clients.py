"""From the kafka section to client properties."""

from __future__ import annotations

import pytest

from headrace.config import KafkaConfig
from headrace.core.errors import ConfigError
from headrace.kafka.clients import client_properties, open_consumer


def section(**fields: object) -> KafkaConfig:
    """Return a kafka section."""
    return KafkaConfig.model_validate(fields)


def test_without_security_only_the_servers_and_the_user_s_properties_are_set() -> None:
    """Plain text is librdkafka's default and is not said again."""
    config = section(bootstrap_servers=["a:1", "b:2"], properties={"client.id": "me"})
    assert client_properties(config) == {"bootstrap.servers": "a:1,b:2", "client.id": "me"}


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        ({}, None, "SSL"),
        (None, {"mechanism": "PLAIN", "username": "u", "password": "p"}, "SASL_PLAINTEXT"),
        ({}, {"mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"}, "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_the_sections(tls: object, sasl: object, protocol: str) -> None:
    """Both sections together choose librdkafka's security.protocol."""
    properties = client_properties(section(tls=tls, sasl=sasl))
    assert properties["security.protocol"] == protocol
    if sasl is not None:
        assert properties["sasl.password"] == "p"


def test_tls_files_and_host_names() -> None:
    """Each field of kafka.tls becomes its property."""
    tls = {"ca_file": "/ca.pem", "verify_hostname": False}
    properties = client_properties(section(tls=tls))
    assert properties["ssl.ca.location"] == "/ca.pem"
    assert properties["ssl.endpoint.identification.algorithm"] == "none"


def test_a_property_that_librdkafka_refuses_is_the_configuration_s_fault() -> None:
    """The sentence names the property."""
    with pytest.raises(ConfigError, match=r"no\.such\.property.*kafka\.properties"):
        open_consumer({"group.id": "g", "no.such.property": 1})

"""From the ``kafka`` section to clients, or to a sentence about what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import KafkaConfig

_PROTOCOLS = {
    (False, False): "PLAINTEXT",
    (True, False): "SSL",
    (False, True): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}


def client_properties(config: KafkaConfig) -> dict[str, Any]:
    """Return librdkafka properties, secrets in plain text: for the clients only."""
    properties = config.client_properties()
    if config.tls is not None or config.sasl is not None:
        properties["security.protocol"] = _PROTOCOLS[
            config.tls is not None, config.sasl is not None
        ]
    properties |= _tls(config) | _sasl(config)
    properties["bootstrap.servers"] = ",".join(config.bootstrap_servers)
    return properties


def open_consumer(properties: Mapping[str, Any]) -> Consumer:
    """Make a consumer.

    Raises:
        ConfigError: librdkafka does not know a property, or refuses its value.
    """
    try:
        return Consumer(dict(properties))
    except KafkaException as error:
        raise refused(error.args[0].str()) from error


def refused(reason: str) -> ConfigError:
    """Return the error for properties that librdkafka does not take."""
    return ConfigError(
        [f"kafka: librdkafka refuses the settings: {reason}; correct kafka.properties"]
    )


def _tls(config: KafkaConfig) -> dict[str, Any]:
    tls = config.tls
    if tls is None:
        return {}
    found = {
        "ssl.ca.location": tls.ca_file,
        "ssl.certificate.location": tls.certificate_file,
        "ssl.key.location": tls.key_file,
        "ssl.key.password": tls.key_password and tls.key_password.get_secret_value(),
        "ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else "none",
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _sasl(config: KafkaConfig) -> dict[str, Any]:
    sasl = config.sasl
    if sasl is None:
        return {}
    return {
        "sasl.mechanism": sasl.mechanism,
        "sasl.username": sasl.username,
        "sasl.password": sasl.password.get_secret_value(),
    }

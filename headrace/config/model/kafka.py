"""The ``kafka`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.config.contradiction import Contradiction
from headrace.config.kinds.hosts import KafkaServers
from headrace.config.kinds.properties import Properties, PropertyValue
from headrace.config.kinds.secrets import SecretValue, reveal_all
from headrace.config.kinds.text import FreeText
from headrace.config.model.base import Cold, Section
from headrace.config.model.kafka_owned import owned, security
from headrace.config.model.tls import KafkaTls

if TYPE_CHECKING:
    from collections.abc import Iterator


class KafkaSasl(Section):
    """A user name and a password for the brokers."""

    mechanism: Cold[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]]
    """How the password is proved. PLAIN sends it, so combine PLAIN with tls."""

    username: Cold[FreeText]
    """The user's name."""

    password: Cold[SecretValue]
    """The user's password."""


class KafkaConfig(Section):
    """How to reach the Kafka cluster."""

    bootstrap_servers: Cold[KafkaServers] = ("localhost:9092",)
    """The brokers to ask for the cluster's layout."""

    tls: Cold[KafkaTls | None] = None
    """TLS to the brokers; null: none, {}: with the system's certificates."""

    sasl: Cold[KafkaSasl | None] = None
    """A user name and a password; null: none."""

    properties: Cold[Annotated[Mapping[str, PropertyValue], Properties(owned)]] = Field(default={})
    """Any property of librdkafka, except those that Headrace sets itself."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield properties that say again, or otherwise, what tls and sasl say."""
        for name in self.properties:
            sentence = security(name, tls=self.tls is not None, sasl=self.sasl is not None)
            if sentence is not None:
                yield Contradiction(("properties", name), sentence)

    def client_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for librdkafka only."""
        return reveal_all(self.properties)

"""The ``kafka`` section, and the librdkafka properties that Headrace sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import KafkaTls, Reconnects, Section
from headrace.config.types.addresses import KafkaServers
from headrace.config.types.scalars import FreeText
from headrace.config.types.secrets import Properties, PropertyValue, SecretValue, reveal_all

if TYPE_CHECKING:
    from collections.abc import Iterator


_COMMITS = (
    "is Headrace's own: only what a processor answered is committed; "
    "use commit_interval of the channel"
)
_MEMBERSHIP = (
    "is Headrace's own: partitions are assigned through ZooKeeper; use coordinator of the channel"
)
_IN_FLIGHT = (
    "is Headrace's own: with more than one request of a producer in flight, records can be lost "
    "without an error; leave it out"
)
_SERVERS = "is Headrace's own; use kafka.bootstrap_servers"
_CALLBACK = "is a callback, which a file cannot hold; leave it out"

_OWNED = {
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "group.id": "is Headrace's own, one for each channel; use group of the channel",
    "group.instance.id": _MEMBERSHIP,
    "group.protocol": _MEMBERSHIP,
    "group.remote.assignor": _MEMBERSHIP,
    "partition.assignment.strategy": _MEMBERSHIP,
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.offset.reset": (
        "is Headrace's own; use initial_offset and offset_out_of_range of the channel"
    ),
    "enable.partition.eof": (
        "is Headrace's own: it shows where a partition ends after transaction markers; leave it out"
    ),
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "max.in.flight": _IN_FLIGHT,
    "transactional.id": "is Headrace's own: it names its transactions itself; leave it out",
    "default.topic.config": "is obsolete; set the topic's properties here directly",
    "logger": _CALLBACK,
    "interceptors": _CALLBACK,
    "opaque": _CALLBACK,
}

_VERIFICATION = "enable.ssl.certificate.verification"

#: What kafka.tls and kafka.sasl set, and the field for each.
_TLS_FIELDS = {
    "ssl.ca.location": "ca_file",
    "ssl.ca.pem": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.certificate.pem": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.pem": "key_file",
    "ssl.key.password": "key_password",
    "ssl.endpoint.identification.algorithm": "verify_hostname",
    _VERIFICATION: "verify_hostname",
}
_SASL_FIELDS = {
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
}


def owned(name: str) -> str | None:
    """Return why ``name`` may not stand in kafka.properties, None where it may."""
    if name.endswith("_cb") or name.startswith("on_"):
        return _CALLBACK
    return _OWNED.get(name)


def security(name: str, *, tls: bool, sasl: bool) -> str | None:
    """Return what ``name`` contradicts, None where it does not.

    With kafka.tls or kafka.sasl Headrace sets the security of the connection; without either
    the properties do, for mechanisms that kafka.sasl does not have: OAUTHBEARER, and GSSAPI where
    the librdkafka that is installed has it, which that of confluent-kafka's wheels has not. What it
    was built without is told before a start (``headrace.kafka.features``).
    """
    if not tls and not sasl:
        return None
    if name == "security.protocol":
        return "contradicts kafka.tls and kafka.sasl, which say it; leave it out"
    if name.startswith("ssl.") or name in _TLS_FIELDS:
        if not tls:
            return "is of TLS, which a connection with kafka.sasl alone has not; add kafka.tls"
        section, field = "kafka.tls", _TLS_FIELDS.get(name)
    elif name.startswith("sasl."):
        if not sasl:
            return (
                "is of SASL, which a connection with kafka.tls alone has not; add kafka.sasl, or "
                "leave kafka.tls out and say all with properties"
            )
        section, field = "kafka.sasl", _SASL_FIELDS.get(name)
    else:
        return None
    return None if field is None else f"is said by {section}; use {section}.{field}"


#: Properties that mean the same to both clients, by librdkafka's name.
JAVA_NAMES = {
    "client.id": "client.id",
    "client.rack": "client.rack",
    "client.dns.lookup": "client.dns.lookup",
    "isolation.level": "isolation.level",
    "check.crcs": "check.crcs",
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.bytes": "fetch.max.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "security.protocol": "security.protocol",
    "ssl.key.password": "ssl.key.password",
}

_SECURITY = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")


def unknown_to_java(name: str) -> str | None:
    """Return why a property cannot be handed to Spark's own clients, None where nothing is lost.

    What tunes librdkafka is left out for them. What secures the connection may not be.
    """
    # of what kafka.tls and kafka.sasl set, the values are translated too
    known = JAVA_NAMES.keys() | _TLS_FIELDS.keys() | _SASL_FIELDS.keys()
    if name in known - {_VERIFICATION} or not name.startswith(_SECURITY):
        return None
    return (
        "has no counterpart in the Java client of Spark, which a channel with source: "
        "by_reference reads with; use kafka.tls and kafka.sasl, or source: by_value"
    )


class KafkaSasl(Section):
    """A user name and a password for the brokers."""

    mechanism: Reconnects[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]]
    """The SASL mechanism. PLAIN sends the password, so combine PLAIN with tls."""

    username: Reconnects[FreeText]
    """The user's name."""

    password: Reconnects[SecretValue]
    """The user's password."""


class KafkaConfig(Section):
    """The connection to the Kafka cluster."""

    bootstrap_servers: Reconnects[KafkaServers] = ("localhost:9092",)
    """The brokers to ask for the cluster's layout."""

    tls: Reconnects[KafkaTls | None] = None
    """TLS to the brokers; null: none, {}: with the system's certificates."""

    sasl: Reconnects[KafkaSasl | None] = None
    """A user name and a password; null: none."""

    properties: Reconnects[Annotated[Mapping[str, PropertyValue], Properties(owned)]] = Field(
        default={}
    )
    """Any property of librdkafka, except those that Headrace sets itself."""

    def conflicts(self) -> Iterator[FieldConflict]:
        for name in self.properties:
            sentence = security(name, tls=self.tls is not None, sasl=self.sasl is not None)
            if sentence is not None:
                yield FieldConflict(("properties", name), sentence)

    def client_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for librdkafka only."""
        return reveal_all(self.properties)

"""The ``kafka`` section, and the librdkafka properties that Headrace sets itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import KafkaTls, Reconnects, Section
from headrace.config.models.oauth import OauthTokens
from headrace.config.types.addresses import KafkaServers
from headrace.config.types.scalars import FreeText, LocalPath
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


#: What kafka.oauth sets, and the field for each. Of all that is about a login, the claim that names
#: the user is alone beside it.
_OAUTH_FIELDS = {
    "sasl.oauthbearer.token.endpoint.url": "token_url",
    "sasl.oauthbearer.client.id": "client_id",
    "sasl.oauthbearer.client.credentials.client.id": "client_id",
    "sasl.oauthbearer.client.secret": "client_secret",
    "sasl.oauthbearer.client.credentials.client.secret": "client_secret",
    "sasl.oauthbearer.scope": "scope",
    "sasl.oauthbearer.extensions": "extensions",
    "https.ca.location": "ca_file",
    "https.ca.pem": "ca_file",
}
_USER_CLAIM = "sasl.oauthbearer.sub.claim.name"


def owned(name: str) -> str | None:
    """Return why ``name`` may not stand in kafka.properties, None where it may."""
    if name.endswith("_cb") or name.startswith("on_"):
        return _CALLBACK
    return _OWNED.get(name)


def security(name: str, *, tls: bool, sasl: bool, oauth: bool) -> str | None:
    """Return what ``name`` contradicts, None where it does not.

    With kafka.tls, kafka.sasl or kafka.oauth Headrace sets the security of the connection; without
    any the properties do, for logins that neither section has: those of OAUTHBEARER with metadata
    or assertions, and GSSAPI where the librdkafka that is installed has it, which that of
    confluent-kafka's wheels has not. What it was built without is told before a start
    (``headrace.kafka.features``).
    """
    if name == "security.protocol" and (tls or sasl or oauth):
        return "contradicts kafka.tls, kafka.sasl and kafka.oauth, which say it; leave it out"
    if oauth and (name in _OAUTH_FIELDS or name.startswith("sasl.")):
        return _said_by_oauth(name)
    section, field = "", None
    if name.startswith("ssl.") or name in _TLS_FIELDS:
        section, field = "kafka.tls", _TLS_FIELDS.get(name)
        if not tls and (sasl or oauth):
            login = "kafka.sasl" if sasl else "kafka.oauth"
            return f"is of TLS, which a connection with {login} alone has not; add kafka.tls"
        known = tls
    elif name.startswith("sasl."):
        section, field = "kafka.sasl", _SASL_FIELDS.get(name)
        if not sasl and tls:
            return (
                "is of SASL, which a connection with kafka.tls alone has not; add kafka.sasl or "
                "kafka.oauth, or leave kafka.tls out and say all with properties"
            )
        known = sasl
    else:
        known = False
    return f"is said by {section}; use {section}.{field}" if known and field else None


def _said_by_oauth(name: str) -> str | None:
    if name == _USER_CLAIM:
        return None
    field = _OAUTH_FIELDS.get(name)
    if field is None:
        return "contradicts kafka.oauth, which says the whole login; leave it out"
    return f"is said by kafka.oauth; use kafka.oauth.{field}"


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
    _USER_CLAIM: _USER_CLAIM,
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
        "by_reference reads with; use kafka.tls and kafka.sasl or kafka.oauth, or source: by_value"
    )


class KafkaSasl(Section):
    """A user name and a password for the brokers."""

    mechanism: Reconnects[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]]
    """The SASL mechanism. PLAIN sends the password, so combine PLAIN with tls."""

    username: Reconnects[FreeText]
    """The user's name."""

    password: Reconnects[SecretValue]
    """The user's password."""


#: As RFC 7628 has them; Kafka's brokers take no other names.
_EXTENSION = re.compile(r"[A-Za-z]+")
_SERVER_S_OWN = "auth"


def _extension_fault(name: str) -> str | None:
    if name == _SERVER_S_OWN:
        return "is the name of the token itself; leave it out"
    return (
        None if _EXTENSION.fullmatch(name) else "is no name of an extension, which has letters only"
    )


class KafkaOauth(OauthTokens):
    """Tokens of OAuth 2.0 for the brokers (SASL OAUTHBEARER), for every client of the process.

    Either they are fetched from ``token_url`` with client credentials, or ``token_file`` has one.
    """

    extensions: Reconnects[Annotated[Mapping[str, PropertyValue], Properties(_extension_fault)]] = (
        Field(default={})
    )
    """Names and values for the brokers with the token, such as logicalCluster."""

    token_file: Reconnects[LocalPath | None] = None
    """A file with the token itself, a JWT that something else renews, as Kubernetes does; it is
    read again before the token ends. Not with source: by_reference."""

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from super().conflicts()
        for name, value in self.extension_texts().items():
            if "," in value:
                yield FieldConflict(
                    ("extensions", name), "has a comma, which librdkafka takes for the next one"
                )

    def extension_texts(self) -> dict[str, str]:
        """Return ``extensions`` as text, secrets in plain text: for the clients only."""
        return {name: str(value) for name, value in reveal_all(self.extensions).items()}


class KafkaConfig(Section):
    """The connection to the Kafka cluster."""

    bootstrap_servers: Reconnects[KafkaServers] = ("localhost:9092",)
    """The brokers to ask for the cluster's layout."""

    tls: Reconnects[KafkaTls | None] = None
    """TLS to the brokers; null: none, {}: with the system's certificates."""

    sasl: Reconnects[KafkaSasl | None] = None
    """A user name and a password; null: none."""

    oauth: Reconnects[KafkaOauth | None] = None
    """Tokens of OAuth 2.0 in place of a password; null: none."""

    properties: Reconnects[Annotated[Mapping[str, PropertyValue], Properties(owned)]] = Field(
        default={}
    )
    """Any property of librdkafka, except those that Headrace sets itself."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.sasl is not None and self.oauth is not None:
            yield FieldConflict(("oauth",), "is a login, and so is sasl; leave one of them out")
        tls, sasl, oauth = (each is not None for each in (self.tls, self.sasl, self.oauth))
        for name in self.properties:
            sentence = security(name, tls=tls, sasl=sasl, oauth=oauth)
            if sentence is not None:
                yield FieldConflict(("properties", name), sentence)

    def client_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for librdkafka only."""
        return reveal_all(self.properties)

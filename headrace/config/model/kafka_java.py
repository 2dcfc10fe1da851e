"""Which librdkafka properties a Java client has too, and under which names."""

from __future__ import annotations

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

#: Properties whose values are translated too.
TRANSLATED = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.endpoint.identification.algorithm",
    }
)

_SECURITY = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "https.")


def unknown_to_java(name: str) -> str | None:
    """Return why a property cannot be handed to Spark's own clients, None where nothing is lost.

    What tunes librdkafka is left out for them. What secures the connection may not be.
    """
    known = name in JAVA_NAMES or name in TRANSLATED
    if known or not name.startswith(_SECURITY):
        return None
    return (
        "has no counterpart in the Java client of Spark, which a channel with source: "
        "by_reference reads with; use kafka.tls and kafka.sasl, or source: by_value"
    )

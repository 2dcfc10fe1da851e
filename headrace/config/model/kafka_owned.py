"""The librdkafka properties that Headrace sets itself, and what to use in their place."""

from __future__ import annotations

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
        "is Headrace's own: it shows where a partition ends behind transaction markers; "
        "leave it out"
    ),
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "max.in.flight": _IN_FLIGHT,
    "transactional.id": "is Headrace's own: it names its transactions itself; leave it out",
    "default.topic.config": "is obsolete; set the topic's properties here directly",
    "logger": _CALLBACK,
    "interceptors": _CALLBACK,
    "opaque": _CALLBACK,
}

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
    "enable.ssl.certificate.verification": "verify_hostname",
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
    the properties do, so that mechanisms such as GSSAPI are within reach.
    """
    if not tls and not sasl:
        return None
    if name == "security.protocol":
        return "contradicts kafka.tls and kafka.sasl, which say it; leave it out"
    if name.startswith("ssl.") or name in _TLS_FIELDS:
        return _tls(name, given=tls)
    return _sasl(name, given=sasl) if name.startswith("sasl.") else None


def _tls(name: str, *, given: bool) -> str | None:
    if not given:
        return "has no effect, because kafka.sasl is given without kafka.tls; add kafka.tls"
    field = _TLS_FIELDS.get(name)
    return None if field is None else f"is said by kafka.tls; use kafka.tls.{field}"


def _sasl(name: str, *, given: bool) -> str | None:
    if not given:
        return (
            "has no effect, because kafka.tls is given without kafka.sasl; add kafka.sasl, or "
            "leave kafka.tls out and say all with properties"
        )
    field = _SASL_FIELDS.get(name)
    return None if field is None else f"is said by kafka.sasl; use kafka.sasl.{field}"

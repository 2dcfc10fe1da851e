"""From the ``kafka`` section to clients, or to a sentence about what is wrong with it."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException

from headrace.config.kinds.secrets import is_secret
from headrace.config.wording import MASK, subject
from headrace.errors import ConfigError
from headrace.kafka.properties import source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import KafkaConfig

_PLUGINS = "plugin.library.paths"

#: How librdkafka begins where a client could not be made, though each property by itself is one.
_NOT_CREATED = "Failed to create consumer: "
_ALLOWED = re.compile(r"outside allowed range (-?\d+)\.\.(-?\d+)")

#: What a client logs in with on a connection to a broker only. Others have it ask a server for a
#: token, or run a command, as soon as there is a client.
_LOGINS_ON_CONNECTIONS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")

#: Takes what clients of a check log, which would be printed otherwise where ``debug`` is set.
_NOWHERE = logging.getLogger("headrace.kafka.check")
_NOWHERE.addHandler(logging.NullHandler())
_NOWHERE.propagate = False

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


def refusals(config: KafkaConfig) -> Iterator[tuple[str, str]]:
    """Yield each of ``properties`` that librdkafka refuses, with a sentence on why.

    Each has a client of its own, which connects to nothing and logs nothing; no secret is named.
    """
    for name, value in _known_here(config).items():
        reason = _refusal({name: value})
        # what a client alone cannot do with it shows together with the others
        if reason is not None and not reason.startswith(_NOT_CREATED):
            yield name, _sentence(reason, value, secret=is_secret(config.properties[name]))


def refusal_together(config: KafkaConfig, prefetch: int) -> str | None:
    """Return why no consumer takes ``properties`` together, None if one does. As ``refusals``.

    Without the login where a client would begin with it by itself (OAUTHBEARER, GSSAPI): whether
    its properties go together shows at the start. ``prefetch`` is in bytes, as for
    ``headrace.kafka.properties.source``.
    """
    if _PLUGINS in config.properties:
        return None
    known = client_properties(config)
    given = {n: v for n, v in known.items() if not _is_elsewhere(n) and n != "bootstrap.servers"}
    reason = _refusal(source(_without_early_login(given), "headrace-check", prefetch))
    if reason is None:
        return None
    for name, value in config.properties.items():
        if is_secret(value):
            reason = reason.replace(str(given.get(name)), MASK)
    return reason.removeprefix(_NOT_CREATED)


def _known_here(config: KafkaConfig) -> dict[str, Any]:
    """Return the properties that say all by themselves: with a plugin, others may be known."""
    if _PLUGINS in config.properties:
        return {}
    properties = config.client_properties()
    return {name: value for name, value in properties.items() if not _is_elsewhere(name)}


def _is_elsewhere(name: str) -> bool:
    """Whether a property names a file, which may be on another machine than that of a check."""
    return name.endswith(".location") or name == _PLUGINS


def _without_early_login(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a client that does nothing about a login without a broker."""
    mechanisms = {str(properties[name]).upper() for name in _MECHANISMS if name in properties}
    if mechanisms and mechanisms <= _LOGINS_ON_CONNECTIONS:
        return dict(properties)
    others = {name: v for name, v in properties.items() if not name.startswith("sasl.")}
    if "security.protocol" in others:
        protocol = str(others["security.protocol"]).upper()
        others["security.protocol"] = protocol.replace("SASL_", "")
    return others


def _refusal(properties: Mapping[str, Any]) -> str | None:
    # PLAIN: with security.protocol alone, librdkafka's default may run kinit
    given = {"group.id": "headrace-check", "sasl.mechanism": "PLAIN", "log_level": 0, **properties}
    try:
        Consumer(given, logger=_NOWHERE).close()
    except KafkaException as error:
        return str(error.args[0].str()).strip()
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _sentence(reason: str, value: Any, *, secret: bool) -> str:
    if reason.startswith("No such configuration property"):
        return "is no property of librdkafka; see its CONFIGURATION.md"
    allowed = _ALLOWED.search(reason)
    return f"{subject(value, secret=secret)} is not what librdkafka takes" + (
        f", which is {allowed[1]} to {allowed[2]}" if allowed else ""
    )


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

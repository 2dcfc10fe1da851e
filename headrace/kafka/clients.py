"""From the ``kafka`` section to clients, or to a sentence about what is wrong with it."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException
from pydantic import ValidationError

from headrace.config.errors import MASK, subject
from headrace.config.models.kafka import KafkaConfig
from headrace.config.types.secrets import is_secret
from headrace.core.errors import ConfigError
from headrace.kafka.token_file import TOKEN_CALLBACK, TokenFile
from headrace.telemetry.logs import Repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.core.clock import Deadline


log = structlog.get_logger("headrace.kafka.client")

#: A client property map as librdkafka takes it.
ClientProperties = dict[str, Any]

#: The part of a channel's memory budget that librdkafka may fill with prefetched records.
PREFETCH_SHARE = 0.25

#: One property, by both its names.
_IN_FLIGHT, _IN_FLIGHT_TOO = "max.in.flight.requests.per.connection", "max.in.flight"

_KIB = 1024
_MIB = 1024 * _KIB

#: Records that a client holds before it asks for no more. Each costs some 300 bytes beside its key
#: and value, which are all that the budget counts: librdkafka's own 100,000 are more than a second
#: of tiny records, and half of them is what a fast reader takes in 20 ms or more.
_PREFETCHED = 50_000


def base(properties: Mapping[str, Any]) -> ClientProperties:
    """Return what every client starts from: the user's properties, and its log in ours."""
    bridge = _Bridge(Repeats())
    return {**properties, "logger": bridge, "log_level": 4, "error_cb": bridge.report}


def silent(properties: Mapping[str, Any]) -> ClientProperties:
    """Return what a client starts from that is not polled all the time.

    What it has to say would queue up until the next poll, at some 40 lines a second without a
    broker. The committer's client is polled at every interval and says the same.
    """
    return {**properties, "log_level": 0}


def consumer(properties: Mapping[str, Any], group: str) -> ClientProperties:
    """Return the properties of a consumer that never subscribes and never commits by itself.

    ``properties`` are those of ``base`` or ``silent``.
    """
    return {
        **properties,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def producer(properties: Mapping[str, Any]) -> ClientProperties:
    """Return the properties of a producer, whatever ``properties`` say of requests in flight.

    One at a time on each connection. A broker takes any sequence as the first one of a producer
    that it knows nothing of. So where it refuses a partition's first request, because it has not
    heard yet that it leads the partition, and then takes the next one, that was in flight already,
    librdkafka takes both for stored: the records of the first are lost, and reported as delivered.
    A broker answers the requests of a connection one after the other in any case.
    """
    given = {name: value for name, value in properties.items() if name != _IN_FLIGHT_TOO}
    return {**given, _IN_FLIGHT: 1}


def source(properties: Mapping[str, Any], group: str, budget: int) -> ClientProperties:
    """Return the properties of a fetching consumer with ``budget`` bytes for prefetched records.

    ``fetch.queue.backoff.ms``: when the prefetch queue is full, librdkafka waits a second before
    it fetches again; 10 ms keeps a fast reader fed (0.22 against 2.1 million records a second).
    ``fetch.wait.max.ms``: a broker that has nothing new keeps its answer back for so long, and the
    client asks it for nothing else meanwhile, so that a partition just assigned or resumed waits.
    librdkafka's 500 ms made a take-over 0.4 s longer; 100 ms cost ten small requests a second.
    ``auto.offset.reset=error``: out of range is reported, and the channel's policy decides.
    """
    queued = max(_MIB, int(budget))
    return {
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        "queued.min.messages": _PREFETCHED,
        "queued.max.messages.kbytes": queued // _KIB,
        "fetch.message.max.bytes": _MIB,
        "fetch.max.bytes": max(_MIB, min(50 * _MIB, queued // 2)),
        **consumer(silent(properties), group),
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


#: What the line begins with that says that a client cannot be used any more.
_FATAL = ("FATAL",)


class _Bridge:
    """Takes one client's log lines and errors into ours. Called on the thread that polls it."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats

    def log(self, level: int, message: str, *args: object) -> None:
        """Write one line; librdkafka's text is the ``detail`` of a stable event."""
        repeated = self._repeats.admit((level, args[:1]))
        if repeated is not None:
            detail = message % args if args else message
            if args[:1] != _FATAL:
                # it goes on by itself: with another connection, another token, later
                level = min(level, logging.WARNING)
            log.log(level, "kafka_client", detail=detail, repeated=repeated)

    def report(self, error: Any) -> None:
        """Write an error that concerns the client as a whole."""
        repeated = self._repeats.admit(error.code())
        if repeated is not None:
            log.warning("kafka_client_error", error=error.str(), repeated=repeated)


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


def client_properties(config: KafkaConfig) -> dict[str, Any]:
    """Return librdkafka properties, secrets in plain text: for the clients only."""
    properties = config.client_properties()
    has_login = config.sasl is not None or config.oauth is not None
    if config.tls is not None or has_login:
        login = "SASL_" if has_login else ""
        properties["security.protocol"] = login + ("PLAINTEXT" if config.tls is None else "SSL")
    properties |= _tls(config) | _sasl(config) | _oauth(config)
    properties["bootstrap.servers"] = ",".join(config.bootstrap_servers)
    return properties


def properties_of(
    brokers: str | Sequence[str], properties: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the properties of librdkafka for brokers, with those of a user.

    Raises:
        ConfigError: an address or a property cannot be used.
    """
    try:
        config = KafkaConfig.model_validate(
            {"bootstrap_servers": brokers, "properties": dict(properties or {})}
        )
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ConfigError([f"{'.'.join(map(str, first['loc']))}: {first['msg']}"]) from None
    if found := [f"{name}: {sentence}" for name, sentence in refusals(config)]:
        raise ConfigError(found)
    return client_properties(config)


def open_consumer(properties: Mapping[str, Any]) -> Consumer:
    """Make a consumer.

    Raises:
        ConfigError: librdkafka does not know a property, or refuses its value.
    """
    try:
        return Consumer(dict(properties))
    except KafkaException as error:
        raise refused(error.args[0].str()) from error


#: What brokers say to who may not.
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def is_denied(error: KafkaError) -> bool:
    """Return whether an error says that the user may not do what was asked."""
    return error.code() in _DENIED


#: What the client says where this user may not read a topic, or write to it.
_REFUSED_TOPIC = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED).str()


def is_refused_topic(text: str) -> bool:
    """Return whether an error of the client's says that this user may not use a topic."""
    return _REFUSED_TOPIC in text


def answer(future: Future[Any], deadline: Deadline) -> Any:
    """Return what a client's future comes to. Blocks until the deadline at most.

    Raises:
        KafkaException: the brokers or the client refused, or there was no answer in time.
    """
    try:
        return future.result(deadline.left)
    except TimeoutError as error:
        late = KafkaError(KafkaError._TIMED_OUT, "no answer in time")  # noqa: SLF001 - the client's public name for it
        raise KafkaException(late) from error


def refusals(config: KafkaConfig) -> Iterator[tuple[str, str]]:
    """Yield each of ``properties`` that librdkafka refuses, with a sentence on why.

    Each has a client of its own, which connects to nothing and logs nothing; no secret is named.
    """
    if _PLUGINS in config.properties:
        # with a plugin, others may be known
        return
    for name, value in config.client_properties().items():
        if _is_elsewhere(name):
            continue
        reason = _refusal({name: value})
        # what a client alone cannot do with it shows together with the others
        if reason is not None and not reason.startswith(_NOT_CREATED):
            yield name, _sentence(reason, value, secret=is_secret(config.properties[name]))


def refusal_together(config: KafkaConfig, prefetch: int) -> str | None:
    """Return why no consumer takes ``properties`` together, None if one does. As ``refusals``.

    Without the login where a client would begin with it by itself (OAUTHBEARER, GSSAPI): whether
    its properties go together shows at the start. ``prefetch`` is in bytes, as for
    ``headrace.kafka.clients.source``.
    """
    if _PLUGINS in config.properties:
        return None
    known = client_properties(config)
    given = {n: v for n, v in known.items() if not _is_elsewhere(n) and n != "bootstrap.servers"}
    reason = _refusal(source(_without_early_login(given), "headrace-check", prefetch))
    if reason is None:
        return None
    for name, value in config.properties.items():
        if is_secret(value) and (text := str(given.get(name, ""))):
            reason = reason.replace(text, MASK)
    return reason.removeprefix(_NOT_CREATED)


def _is_elsewhere(name: str) -> bool:
    """Return whether a property names a file, which a check on another machine may lack."""
    return name.endswith(".location") or name == _PLUGINS


def _without_early_login(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a client that does nothing about a login without a broker."""
    mechanisms = {str(properties[name]).upper() for name in _MECHANISMS if name in properties}
    if mechanisms and mechanisms <= _LOGINS_ON_CONNECTIONS:
        return dict(properties)
    others = {
        name: v
        for name, v in properties.items()
        if not name.startswith("sasl.") and name != TOKEN_CALLBACK
    }
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


def _oauth(config: KafkaConfig) -> dict[str, Any]:
    oauth = config.oauth
    if oauth is None:
        return {}
    found: dict[str, Any] = {"sasl.mechanism": "OAUTHBEARER"}
    extensions = oauth.extension_texts()
    if oauth.token_file is not None:
        # librdkafka reads no token from a file, only assertions that it exchanges for one
        return found | {TOKEN_CALLBACK: TokenFile(oauth.token_file, extensions)}
    assert oauth.client_secret is not None, "the section demands it with token_url"
    found |= {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        "sasl.oauthbearer.client.id": oauth.client_id,
        "sasl.oauthbearer.client.secret": oauth.client_secret.get_secret_value(),
    }
    listed = ",".join(f"{name}={value}" for name, value in extensions.items())
    optional = {
        "sasl.oauthbearer.scope": oauth.scope,
        "sasl.oauthbearer.extensions": listed or None,
        "https.ca.location": oauth.ca_file and str(oauth.ca_file),
    }
    return found | {name: value for name, value in optional.items() if value is not None}

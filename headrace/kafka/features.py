"""The features of the installed librdkafka, and those that a configuration takes and it lacks.

The wheels of confluent-kafka have a librdkafka without Kerberos; one that was built here may lack
anything. A client only says so when it is made, or when a broker wants it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

from confluent_kafka import cimpl, libversion

from headrace.config.errors import subject
from headrace.config.types.secrets import is_secret
from headrace.kafka.clients import client_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import KafkaConfig
    from headrace.config.errors import ConfigProblem, Steps

#: Bytes for the list of features, which has some 130.
_ROOM = 4096

#: What a login takes, by its mechanism.
_MECHANISMS = {
    "GSSAPI": "sasl_gssapi",
    "PLAIN": "sasl_plain",
    "SCRAM-SHA-256": "sasl_scram",
    "SCRAM-SHA-512": "sasl_scram",
    "OAUTHBEARER": "sasl_oauthbearer",
}

#: librdkafka's own, where there is a login and no mechanism is named.
_USUAL_MECHANISM = "GSSAPI"

_CODECS = {"gzip", "snappy", "lz4", "zstd"}

#: Properties that have two names.
_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
_CODEC = ("compression.type", "compression.codec")


@cache
def built_in() -> frozenset[str] | None:
    """Return ``builtin.features`` of the librdkafka in use; None where it cannot be asked."""
    try:
        library = ctypes.CDLL(cimpl.__file__)
        new, get, destroy = (
            getattr(library, f"rd_kafka_conf_{name}") for name in ("new", "get", "destroy")
        )
    except (OSError, AttributeError):
        # linked into the module, with its names hidden
        return None
    new.restype = ctypes.c_void_p
    get.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_size_t),
    )
    destroy.argtypes = (ctypes.c_void_p,)
    text, size = ctypes.create_string_buffer(_ROOM), ctypes.c_size_t(_ROOM)
    conf = new()
    try:
        failed = get(conf, b"builtin.features", text, ctypes.byref(size))
    finally:
        destroy(conf)
    return None if failed else frozenset(filter(None, text.value.decode("ascii").split(",")))


def missing_features(config: KafkaConfig) -> Iterator[ConfigProblem]:
    """Yield what the ``kafka`` section takes that the installed librdkafka was built without.

    Each with the place that asks for it, and the way there. Makes no client, and is done in no
    time.
    """
    features = built_in()
    if features is None:
        return
    for steps, what, feature in _needed_features(config):
        if feature is None:
            yield (
                steps,
                f"is {what}, which is no mechanism of librdkafka: {_known_mechanisms(features)}",
            )
        elif feature not in features:
            yield steps, f"takes {what}, which {_LACKS.format(libversion()[0])}{_way(feature)}"


_LACKS = "the installed librdkafka {} was built without"


def _known_mechanisms(features: frozenset[str]) -> str:
    names = [name for name, feature in _MECHANISMS.items() if feature in features]
    return f"take one of {', '.join(names)}" if names else "it was built without any"


def _way(feature: str) -> str:
    if feature == "sasl_gssapi":
        return (
            ", as that of the wheels is: install one of the same version or later that has it "
            "(Confluent's packages, or built with libsasl2), then pip install --force-reinstall "
            "--no-binary confluent-kafka confluent-kafka; or have the brokers take SCRAM or "
            "OAUTHBEARER"
        )
    return ": that of the wheels has it, so pip install --force-reinstall confluent-kafka"


def _needed_features(config: KafkaConfig) -> Iterator[tuple[Steps, str, str | None]]:
    """Yield the place, the name and the feature of each thing that may be missing."""
    given = {name: str(value) for name, value in client_properties(config).items()}
    protocol = given.get("security.protocol", "").upper()
    if protocol.endswith("SSL"):
        yield _place_of(config, "tls", "security.protocol"), "TLS", "ssl"
    if protocol.startswith("SASL_"):
        yield _place_of(config, _login_of(config), "security.protocol"), "a login by SASL", "sasl"
        yield from _login(config, given)
    for name in _CODEC:
        if (codec := given.get(name, "").lower()) in _CODECS:
            yield ("kafka", "properties", name), f"the compression {codec}", codec
    if "plugin.library.paths" in given:
        yield ("kafka", "properties", "plugin.library.paths"), "plug-ins", "plugins"


def _login(config: KafkaConfig, given: dict[str, str]) -> Iterator[tuple[Steps, str, str | None]]:
    named = next((name for name in _MECHANISM if name in given), None)
    mechanism = _USUAL_MECHANISM if named is None else given[named].upper()
    fields = () if config.sasl is None else ("mechanism",)
    at = _place_of(config, _login_of(config), named or "security.protocol", *fields)
    if mechanism in _MECHANISMS:
        usual = "" if named else ", where sasl.mechanism names no other"
        yield at, f"the login {mechanism}{usual}", _MECHANISMS[mechanism]
        if given.get("sasl.oauthbearer.method", "").lower() == "oidc":
            method = _place_of(config, "oauth", "sasl.oauthbearer.method", "token_url")
            yield method, "OpenID Connect", "oidc"
    else:
        assert named is not None, "the usual one is known"
        secret = is_secret(config.properties.get(named))
        yield at, subject(given[named], secret=secret), None


def _login_of(config: KafkaConfig) -> str:
    return "sasl" if config.oauth is None else "oauth"


def _place_of(config: KafkaConfig, section: str, name: str, *fields: str) -> Steps:
    """Return what says it: a section of ours, or a property."""
    if name not in config.properties and getattr(config, section) is not None:
        return ("kafka", section, *fields)
    return ("kafka", "properties", name)

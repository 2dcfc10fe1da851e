"""Features that a configuration needs and the installed librdkafka lacks."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import KafkaConfig
from headrace.kafka import features
from headrace.kafka.features import built_in, missing_features

ALL = frozenset(
    [
        "gzip",
        "snappy",
        "ssl",
        "sasl",
        "regex",
        "lz4",
        "sasl_gssapi",
        "sasl_plain",
        "sasl_scram",
        "plugins",
        "zstd",
        "sasl_oauthbearer",
        "http",
        "oidc",
    ]
)


def kafka(**section: Any) -> KafkaConfig:
    """Return a section as a file would have it."""
    return KafkaConfig.model_validate(section)


def properties(**given: Any) -> KafkaConfig:
    """Return a section with properties, whose names have _ in place of a dot."""
    return kafka(properties={name.replace("_", "."): value for name, value in given.items()})


def lacking(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """Stand for a librdkafka that was built without some features."""
    monkeypatch.setattr(features, "built_in", lambda: ALL - set(absent))


def test_the_installed_client_says_what_it_has() -> None:
    """Features that every build of librdkafka has are listed."""
    found = built_in()
    assert found is not None
    assert {"snappy", "lz4", "plugins"} & found


LOGINS = [
    ("GSSAPI", "sasl_gssapi"),
    ("gssapi", "sasl_gssapi"),
    ("PLAIN", "sasl_plain"),
    ("SCRAM-SHA-256", "sasl_scram"),
    ("SCRAM-SHA-512", "sasl_scram"),
    ("OAUTHBEARER", "sasl_oauthbearer"),
]


@pytest.mark.parametrize(("mechanism", "feature"), LOGINS)
@pytest.mark.parametrize("name", ["sasl_mechanism", "sasl_mechanisms"])
def test_a_mechanism_that_was_not_built_in_is_refused(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, feature: str, name: str
) -> None:
    """At its property, with the way there; and taken where it was built in."""
    config = properties(security_protocol="SASL_PLAINTEXT", **{name: mechanism})
    lacking(monkeypatch, feature)
    ((steps, sentence),) = missing_features(config)
    assert steps == ("kafka", "properties", name.replace("_", "."))
    assert sentence.startswith(
        f"takes the login {mechanism.upper()}, which the installed librdkafka"
    )
    assert "pip install" in sentence
    lacking(monkeypatch)
    assert list(missing_features(config)) == []


def test_kerberos_is_the_login_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol implies Kerberos in librdkafka."""
    lacking(monkeypatch, "sasl_gssapi")
    ((steps, sentence),) = missing_features(properties(security_protocol="sasl_ssl"))
    assert steps == ("kafka", "properties", "security.protocol")
    assert "GSSAPI, where sasl.mechanism names no other" in sentence
    assert "SCRAM or OAUTHBEARER" in sentence


def test_a_mechanism_that_no_build_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that this one has."""
    lacking(monkeypatch, "sasl_gssapi")
    config = properties(security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")
    ((_, sentence),) = missing_features(config)
    assert sentence == (
        "is 'AWS_MSK_IAM', which is no mechanism of librdkafka: take one of PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512, OAUTHBEARER"
    )


@pytest.mark.parametrize(
    ("config", "feature", "steps"),
    [
        (kafka(tls={}), "ssl", ("kafka", "tls")),
        (
            kafka(sasl={"mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"}),
            "sasl_scram",
            ("kafka", "sasl", "mechanism"),
        ),
        (properties(security_protocol="ssl"), "ssl", ("kafka", "properties", "security.protocol")),
        (properties(compression_type="zstd"), "zstd", ("kafka", "properties", "compression.type")),
        (properties(compression_codec="lz4"), "lz4", ("kafka", "properties", "compression.codec")),
        (
            properties(
                security_protocol="SASL_SSL",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauthbearer_method="oidc",
            ),
            "oidc",
            ("kafka", "properties", "sasl.oauthbearer.method"),
        ),
    ],
)
def test_a_missing_feature_is_refused_at_its_place(
    monkeypatch: pytest.MonkeyPatch, config: KafkaConfig, feature: str, steps: tuple[str, ...]
) -> None:
    """TLS, logins, compressions and OpenID Connect are checked."""
    lacking(monkeypatch, feature)
    assert [found for found, _ in missing_features(config)] == [steps]
    lacking(monkeypatch)
    assert list(missing_features(config)) == []


def test_no_word_of_a_client_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A librdkafka that hides its features is left to the start."""
    monkeypatch.setattr(features, "built_in", lambda: None)
    assert list(missing_features(properties(security_protocol="SASL_SSL"))) == []


@given(
    st.sampled_from(["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]),
    st.sampled_from([None, *(name for name, _ in LOGINS), "AWS_MSK_IAM", "DIGEST-MD5"]),
)
def test_a_login_is_refused_just_where_no_client_can_be_made(
    protocol: str, mechanism: str | None
) -> None:
    """The check agrees with the installed librdkafka for each protocol and mechanism."""
    named = {} if mechanism is None else {"sasl_mechanism": mechanism}
    config = properties(security_protocol=protocol, **named)
    login = {"sasl.username": "u", "sasl.password": "p", "group.id": "g", "log_level": 0}
    reason = ""
    try:
        Consumer({**config.properties, **login}).close()
    except KafkaException as error:
        reason = error.args[0].str()
    lacks = any(word in reason for word in ("No provider", "Unsupported SASL mechanism"))
    assert bool(list(missing_features(config))) == (lacks and protocol.startswith("sasl"))

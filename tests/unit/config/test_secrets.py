from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from headrace.config import KafkaConfig, KafkaSasl, show
from headrace.config.types.secrets import looks_secret
from headrace.processors.sections import CustomProcessorConfig
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN = "hunter2"

#: Every place for a secret, each by another way into the file.
EVERYWHERE = """
kafka:
  tls: {certificate_file: a, key_file: b, key_password: hunter2}
  sasl: {mechanism: PLAIN, username: u, password: "${PASSWORD}"}
  properties:
    ssl.keystore.password: hunter2
    ssl.truststore.location: ${file:secret}
zookeeper:
  sasl: {username: u, password: "${file:secret}"}
  digest: {username: u, password: "${MISSING:-hunter2}"}
  tls: {certificate_file: a, key_file: b, key_password: "x${PASSWORD}"}
spark:
  properties:
    spark.hadoop.fs.s3a.secret.key: hunter2
    spark.proxy: http://me:hunter2@proxy
channels:
  custom:
    topics: [a]
    group: g
    processor:
      type: custom
      factory: a:b
      options:
        api_key: hunter2
        nested: {credentials: {user: hunter2}, url: "https://me:hunter2@host", list: [1]}
        file: ${file:secret}
        max_tokens: 5
"""


def test_secrets_do_not_print(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No way to print a configuration shows a secret, whichever way it came into the file."""
    (tmp_path / "secret").write_text(f"{HIDDEN}\n", encoding="utf-8")
    config = loaded(tmp_path, EVERYWHERE, {"PASSWORD": HIDDEN})
    logging.getLogger("test").warning("configuration: %s", config)
    for printed in (
        repr(config),
        str(config),
        show(config),
        config.model_dump_json(),
        str(config.model_dump()),
        caplog.text,
    ):
        assert HIDDEN not in printed


def test_secrets_reach_those_who_need_them(tmp_path: Path) -> None:
    """The adapters can have the secrets in plain text, with their own types."""
    (tmp_path / "secret").write_text(f"{HIDDEN}\n", encoding="utf-8")
    config = loaded(tmp_path, EVERYWHERE, {"PASSWORD": HIDDEN})
    processor = config.channels["custom"].processor
    assert config.kafka.sasl is not None
    assert isinstance(processor, CustomProcessorConfig)
    assert config.kafka.sasl.password.get_secret_value() == HIDDEN
    assert config.kafka.client_properties() == {
        "ssl.keystore.password": HIDDEN,
        "ssl.truststore.location": HIDDEN,
    }
    assert config.spark.session_properties() == {
        "spark.hadoop.fs.s3a.secret.key": HIDDEN,
        "spark.proxy": f"http://me:{HIDDEN}@proxy",
    }
    assert processor.keyword_arguments() == {
        "api_key": HIDDEN,
        "nested": {
            "credentials": {"user": HIDDEN},
            "url": f"https://me:{HIDDEN}@host",
            "list": [1],
        },
        "file": HIDDEN,
        "max_tokens": 5,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "kafka: {sasl: {mechanism: PLAIN, username: u, password: 12345}}",
            "kafka.sasl.password (line 1): *** is not text; put it in quotes",
        ),
        (
            "kafka: {sasl: {mechanism: PLAIN, username: u, password: [hunter2]}}",
            "kafka.sasl.password (line 1): a list is not text; put it in quotes",
        ),
        (
            "kafka: {sasl: {mechanism: PLAIN, username: u, password: ''}}",
            "kafka.sasl.password (line 1): *** is empty",
        ),
        (
            "kafka: {sasl: {mechanism: PLAIN, username: u, password: x, pasword: hunter2}}",
            "kafka.sasl.pasword (line 1): is not a known key; did you mean password?",
        ),
        ("kafka: {sasl: hunter2}", "kafka.sasl (line 1): *** is not a mapping or null"),
        ("kafka: hunter2", "kafka (line 1): *** is not a mapping"),
        (
            "kafka: {properties: {sasl.password: [hunter2]}}",
            "kafka.properties.sasl.password (line 1): is not text, a number, true or false",
        ),
        (
            "zookeeper: {digest: hunter2}",
            "zookeeper.digest (line 1): *** is not a mapping or null",
        ),
        (
            "metrics: {port: '${PASSWORD}'}",
            (
                "metrics.port (line 1): ${PASSWORD} expands to something that is not "
                "a whole number from 0 to 65535"
            ),
        ),
        (
            "kafka: '${PASSWORD}'",
            "kafka (line 1): ${PASSWORD} expands to something that is not a mapping",
        ),
        (
            "kafka: '${PASSWORD:-hunter2}'",
            "kafka (line 1): *** expands to something that is not a mapping",
        ),
        (
            "kafka: |\n  sasl: {username: '${PASSWORD}', password: hunter2}\n",
            "kafka (line 1): *** expands to something that is not a mapping",
        ),
        (
            "zookeeper: {hosts: 'a,${PASSWORD}'}",
            (
                "zookeeper.hosts[1] (line 1): a,${PASSWORD} expands to something that is not "
                "a server as host:port (port 2181 by default)"
            ),
        ),
        (
            "logging: {level: '${file:secret}'}",
            (
                "logging.level (line 1): ${file:secret} expands to something that is not "
                "debug, info, warning or error"
            ),
        ),
    ],
)
def test_errors_do_not_quote_secrets(tmp_path: Path, text: str, problem: str) -> None:
    """A secret of a wrong type, or in a wrong place, is not quoted by the error about it."""
    (tmp_path / "secret").write_text(HIDDEN, encoding="utf-8")
    assert refused(tmp_path, text + CHANNELS, {"PASSWORD": "hunter 2"}) == [problem]


def test_errors_of_models_built_in_code_do_not_quote_values() -> None:
    """The text that pydantic gives an error leaves the values out."""
    with pytest.raises(ValidationError) as caught:
        KafkaSasl.model_validate({"mechanism": HIDDEN, "username": 1, "password": [HIDDEN]})
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.jaas.config",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.x",
        "api_key",
        "privateKey",
        "AUTH_TOKEN",
        "basic.auth.user.info",
    ],
)
def test_names_of_secrets_are_known(key: str) -> None:
    """Properties that are secrets by their name are told from others."""
    assert looks_secret(key)


@pytest.mark.parametrize("key", ["client.id", "ssl.certificate.pem", "fetch.min.bytes", "path"])
def test_names_of_other_properties_are_left_alone(key: str) -> None:
    """A property whose name says nothing of a secret is shown."""
    assert not looks_secret(key)


def test_plain_properties_are_shown() -> None:
    """Masking leaves other properties as they are."""
    config = KafkaConfig.model_validate({"properties": {"client.id": "x", "retries": 3}})
    assert "client.id: x" in show(config)
    assert "retries: 3" in show(config)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import KafkaConfig
from headrace.core.errors import ConfigError
from headrace.kafka.java_client import java_client_properties

if TYPE_CHECKING:
    from pathlib import Path

_KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


def translated(**section: Any) -> dict[str, str]:
    """Return what a Java client is told for a ``kafka`` section."""
    return java_client_properties(KafkaConfig.model_validate(section))


@pytest.fixture
def pems(tmp_path: Path) -> dict[str, str]:
    """Files of a TLS section."""
    texts = {"ca_file": "the authorities", "certificate_file": "the chain", "key_file": _KEY}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


def test_properties_of_both_clients_are_handed_over_under_java_names() -> None:
    """Numbers become text; properties that only tune librdkafka are left out."""
    properties = {
        "fetch.wait.max.ms": 100,
        "isolation.level": "read_uncommitted",
        "check.crcs": True,
        "queued.min.messages": 5,
        "security.protocol": "plaintext",
    }
    assert translated(bootstrap_servers=["a:1", "b:2"], properties=properties) == {
        "bootstrap.servers": "a:1,b:2",
        "fetch.max.wait.ms": "100",
        "isolation.level": "read_uncommitted",
        "check.crcs": "true",
        "security.protocol": "PLAINTEXT",
    }


def test_certificates_travel_as_text(pems: dict[str, str]) -> None:
    """Executors need no files, and the host name is verified unless the section says otherwise."""
    found = translated(tls={**pems, "key_password": "pw", "verify_hostname": False})
    assert found == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "the authorities",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.certificate.chain": "the chain",
        "ssl.keystore.key": _KEY,
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "pw",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_the_systems_certificates_stay_the_systems() -> None:
    """TLS without files leaves the trust to Java."""
    assert translated(tls={}) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SSL",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_a_password_becomes_a_login(mechanism: str, module: str) -> None:
    """Quotes and backslashes in it stay what they are."""
    found = translated(sasl={"mechanism": mechanism, "username": "me", "password": 'a"b\\c'})
    assert found["security.protocol"] == "SASL_PLAINTEXT"
    assert found["sasl.mechanism"] == mechanism
    login = r'username="me" password="a\"b\\c"'
    assert found["sasl.jaas.config"] == f"{module} required {login};"


def test_a_mechanism_without_counterpart_is_refused() -> None:
    """Kerberos, which librdkafka takes where none is named, needs more than properties in Java."""
    with pytest.raises(ConfigError, match=r"mechanism GSSAPI .* source: by_value"):
        translated(properties={"security.protocol": "sasl_ssl"})


def test_a_key_that_java_cannot_read_is_refused(pems: dict[str, str], tmp_path: Path) -> None:
    """The error says how to turn it into one that Java can read, and does not quote it."""
    (tmp_path / "key_file").write_text("-----BEGIN RSA PRIVATE KEY-----\nsecret")
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8") as raised:
        translated(tls=pems)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_missing_is_named(pems: dict[str, str], tmp_path: Path) -> None:
    """With the property that wants it."""
    (tmp_path / "ca_file").unlink()
    with pytest.raises(ConfigError, match=r"ca_file \(ssl\.ca\.location\) cannot be read"):
        translated(tls=pems)

"""The properties of librdkafka, as a Java client has them: for those that Spark reads with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config.models.kafka import JAVA_NAMES
from headrace.core.errors import ConfigError
from headrace.kafka.clients import client_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import KafkaConfig
    from headrace.config.models.kafka import KafkaOauth

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_TOKENS_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MODULES = {"PLAIN": _PLAIN, "SCRAM-SHA-256": _SCRAM, "SCRAM-SHA-512": _SCRAM}

#: librdkafka's names for a PEM text and for the file that has it, and Java's for the text. The
#: texts travel with each job, so that the files need not be on the executors' machines.
_PEM = {
    ("ssl.ca.pem", "ssl.ca.location"): "ssl.truststore.certificates",
    ("ssl.certificate.pem", "ssl.certificate.location"): "ssl.keystore.certificate.chain",
    ("ssl.key.pem", "ssl.key.location"): "ssl.keystore.key",
}
_KEY = "ssl.keystore.key"
_KEY_FORMS = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"


def java_client_properties(config: KafkaConfig) -> dict[str, str]:
    """Return the properties of a Java client for the same brokers, secrets in plain text.

    What tunes librdkafka and has no counterpart is left out.

    Raises:
        ConfigError: what secures the connection cannot be said to a Java client.
    """
    given = {name: _text(value) for name, value in client_properties(config).items()}
    found = {"bootstrap.servers": given["bootstrap.servers"]}
    found |= {java: given[name] for name, java in JAVA_NAMES.items() if name in given}
    if "security.protocol" in found:
        found["security.protocol"] = found["security.protocol"].upper()
    login = _sasl(given) if config.oauth is None else _oauth(config.oauth)
    return found | login | _tls(given)


def java_options(config: KafkaConfig) -> str:
    """Return what the command line of a JVM needs for the login, or nothing.

    Java's client takes tokens from no address that is not named there, from version 4.0 on.
    """
    address = None if config.oauth is None else config.oauth.token_url
    return "" if address is None else f"{_ALLOWED}={address}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    if "SASL" not in given.get("security.protocol", "").upper():
        return {}
    # librdkafka's own default
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI"))
    module = _MODULES.get(mechanism)
    if module is None:
        raise _refusal(
            f"the mechanism {mechanism} cannot be handed to Spark's Kafka source, only "
            f"{', '.join(_MODULES)} can; use kafka.sasl or kafka.oauth, or source: by_value"
        )
    login = f"username={_quoted(given, 'sasl.username')} password={_quoted(given, 'sasl.password')}"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {login};"}


def _oauth(oauth: KafkaOauth) -> dict[str, str]:
    if oauth.token_url is None:
        raise _refusal(
            "Spark's Kafka source reads kafka.oauth.token_file once, and would go on with a token "
            "that has ended; use kafka.oauth.token_url, or source: by_value"
        )
    login = {f"extension_{name}": value for name, value in oauth.extension_texts().items()}
    if oauth.client_id is not None and oauth.client_secret is not None:
        login |= {
            "clientId": oauth.client_id,
            "clientSecret": oauth.client_secret.get_secret_value(),
        }
    if oauth.scope is not None:
        login["scope"] = oauth.scope
    if oauth.ca_file is not None:
        # its text, as of other certificates: the file need not be on the executors' machines
        login |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _read_pem(oauth.ca_file, "kafka.oauth.ca_file"),
        }
    options = "".join(f" {name}={_quoted_text(value)}" for name, value in login.items())
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": _TOKENS_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        "sasl.jaas.config": f"{_TOKENS} required{options};",
    }


def _quoted(given: Mapping[str, str], name: str) -> str:
    return _quoted_text(given.get(name, ""))


def _quoted_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _tls(given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for names, java in _PEM.items():
        text = _pem(given, *names)
        if text is not None:
            found[java] = text
    if _KEY in found and not found[_KEY].lstrip().startswith(_KEY_FORMS):
        raise _refusal(
            "Spark's Kafka source reads private keys in the form PKCS #8 only, and the key is in "
            "another; turn it into that with: openssl pkcs8 -topk8 -in KEY -out NEW_KEY"
        )
    if "ssl.truststore.certificates" in found:
        found["ssl.truststore.type"] = "PEM"
    if _KEY in found:
        found["ssl.keystore.type"] = "PEM"
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _pem(given: Mapping[str, str], text: str, location: str) -> str | None:
    if text in given:
        return given[text]
    if location not in given:
        return None
    return _read_pem(Path(given[location]), location)


def _read_pem(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(
            f"{path} ({name}) cannot be read as a PEM file for Spark's Kafka source: {error}"
        ) from error


def _refusal(reason: str) -> ConfigError:
    return ConfigError([f"kafka: {reason}"])

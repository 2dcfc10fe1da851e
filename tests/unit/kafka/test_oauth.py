"""Logins by OAuth: the kafka section, and the clients of librdkafka and of Java."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer as PythonConsumer

from headrace.config import KafkaConfig
from headrace.config.show import show
from headrace.core.errors import ConfigError
from headrace.extensions.spark.settings import settings_of
from headrace.kafka import clients
from headrace.kafka.clients import client_properties
from headrace.kafka.columnar.source import Consumer
from headrace.kafka.errors import LibraryMissingError
from headrace.kafka.features import missing_features
from headrace.kafka.java_client import java_client_properties, java_options
from headrace.kafka.token_file import TokenFile
from headrace.ops.doctor.acls import principal
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://login.example/token"
FETCHED = {"token_url": URL, "client_id": "headrace", "client_secret": "hunter2"}
LOGIN = f"token_url: {URL}, client_id: headrace, client_secret: hunter2"


def section(**oauth: Any) -> KafkaConfig:
    """Return a kafka section with these fields of ``oauth``, and TLS."""
    return KafkaConfig.model_validate({"tls": {}, "oauth": oauth})


def jwt(claims: object) -> str:
    """Return an unsigned token with these claims."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return f"{'.'.join(encoded)}.signature"


def test_client_credentials_are_librdkafka_s_own_login() -> None:
    """Tokens are fetched by librdkafka itself, so that records still come in columns."""
    config = section(
        **FETCHED, scope="kafka", extensions={"logicalCluster": "lkc-1"}, ca_file="/ca.pem"
    )
    assert client_properties(config) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": URL,
        "sasl.oauthbearer.client.id": "headrace",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
        "https.ca.location": "/ca.pem",
    }


def test_without_tls_the_login_goes_in_plain_text() -> None:
    """The protocol follows from both sections, as with a password."""
    config = KafkaConfig.model_validate({"oauth": FETCHED})
    assert client_properties(config)["security.protocol"] == "SASL_PLAINTEXT"


def test_columns_are_read_with_client_credentials() -> None:
    """The client in C takes each property of the login."""
    config = KafkaConfig.model_validate(
        {"oauth": {**FETCHED, "token_url": "http://127.0.0.1:1/token", "scope": "kafka"}}
    )
    properties = clients.consumer(clients.silent(client_properties(config)), "group")
    Consumer(properties).close()


def test_columns_are_not_read_with_a_token_file(tmp_path: Path) -> None:
    """The client in C has no callback, and the channel reads record by record."""
    properties = client_properties(section(token_file=str(tmp_path / "token")))
    with pytest.raises(LibraryMissingError, match="token_file"):
        Consumer(clients.consumer(clients.silent(properties), "group"))


def test_java_s_client_logs_in_alike(tmp_path: Path) -> None:
    """Secrets are quoted as JAAS has it, and the certificates travel as text on one line."""
    authority = tmp_path / "ca.pem"
    authority.write_text("the\nauthorities\n")
    config = section(
        **{**FETCHED, "client_secret": 'a"b\\c'},
        scope="kafka",
        extensions={"logicalCluster": "lkc-1"},
        ca_file=str(authority),
    )
    found = java_client_properties(config)
    package = "org.apache.kafka.common.security.oauthbearer"
    assert found["sasl.mechanism"] == "OAUTHBEARER"
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.oauthbearer.token.endpoint.url"] == URL
    assert (
        found["sasl.login.callback.handler.class"] == f"{package}.OAuthBearerLoginCallbackHandler"
    )
    assert found["sasl.jaas.config"] == (
        f"{package}.OAuthBearerLoginModule required "
        'extension_logicalCluster="lkc-1" clientId="headrace" clientSecret="a\\"b\\\\c" '
        'scope="kafka" ssl.truststore.type="PEM" '
        'ssl.truststore.certificates="the\\nauthorities\\n";'
    )


def test_a_token_file_is_refused_by_reference(tmp_path: Path) -> None:
    """Java's clients of Spark's connectors read it once, and the token ends."""
    with pytest.raises(ConfigError, match=r"token_file once.*use kafka\.oauth\.token_url"):
        java_client_properties(section(token_file=str(tmp_path / "token")))


def test_jvms_may_take_tokens_from_the_section_s_address_only(tmp_path: Path) -> None:
    """The address is allowed by name; a file and no section at all need nothing."""
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    assert java_options(KafkaConfig()) == ""
    assert java_options(section(**FETCHED)) == f"{allowed}.urls={URL}"
    assert java_options(section(token_file=str(tmp_path / "token"))) == ""


def test_spark_s_jvms_have_the_options_beside_those_of_the_user(tmp_path: Path) -> None:
    """Driver and executors have them, before the user's own, which win."""
    properties = "spark: {properties: {spark.executor.extraJavaOptions: -Dmine=1}}\n"
    plain = settings_of(loaded(tmp_path, properties + CHANNELS)).effective()
    text = f"kafka: {{oauth: {{{LOGIN}}}}}\n{properties}{CHANNELS}"
    found = settings_of(loaded(tmp_path, text)).effective()
    option = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={URL}"
    driver, executor = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
    assert found[driver] == f"{plain[driver]} {option}"
    assert found[executor] == f"{option} -Dmine=1"
    assert {name: v for name, v in found.items() if name not in {driver, executor}} == {
        name: v for name, v in plain.items() if name not in {driver, executor}
    }


@pytest.mark.parametrize(
    ("fields", "place", "said"),
    [
        ("{}", "kafka.oauth", "says no token; give token_url, or token_file"),
        (f"{{{LOGIN}, token_file: t}}", "kafka.oauth.token_file", "leave one of them out"),
        (
            "{token_file: t, client_secret: hunter2}",
            "kafka.oauth.client_secret",
            "exists only with token_url",
        ),
        (f"{{token_url: {URL}, client_secret: hunter2}}", "kafka.oauth.client_id", "is missing"),
        (f"{{token_url: {URL}, client_id: a}}", "kafka.oauth.client_secret", "is missing"),
        (f"{{{LOGIN}, extensions: {{a-b: x}}}}", "kafka.oauth.extensions.a-b", "letters only"),
        (f"{{{LOGIN}, extensions: {{auth: x}}}}", "kafka.oauth.extensions.auth", "token itself"),
        (f"{{{LOGIN}, extensions: {{a: 'b,c'}}}}", "kafka.oauth.extensions.a", "has a comma"),
        ("{token_url: login.example}", "kafka.oauth.token_url", "is not an address such as"),
    ],
)
def test_a_login_that_is_not_whole_is_refused(
    tmp_path: Path, fields: str, place: str, said: str
) -> None:
    """The problem is told at its place, and no secret with it."""
    found = refused(tmp_path, f"kafka:\n  oauth: {fields}\n{CHANNELS}")
    assert any(each.startswith(f"{place} (line 2): ") and said in each for each in found), found
    assert "hunter2" not in "".join(found)


def test_two_logins_are_refused(tmp_path: Path) -> None:
    """A connection has one of them."""
    sasl = "sasl: {mechanism: PLAIN, username: u, password: p}"
    (problem,) = refused(tmp_path, f"kafka:\n  {sasl}\n  oauth: {{{LOGIN}}}\n{CHANNELS}")
    assert problem == ("kafka.oauth (line 3): is a login, and so is sasl; leave one of them out")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("security.protocol", "contradicts kafka.tls, kafka.sasl and kafka.oauth"),
        ("sasl.mechanism", "contradicts kafka.oauth, which says the whole login"),
        ("sasl.password", "contradicts kafka.oauth, which says the whole login"),
        ("sasl.oauthbearer.method", "contradicts kafka.oauth, which says the whole login"),
        ("sasl.oauthbearer.client.secret", "use kafka.oauth.client_secret"),
        ("sasl.oauthbearer.token.endpoint.url", "use kafka.oauth.token_url"),
        ("https.ca.pem", "use kafka.oauth.ca_file"),
        ("ssl.ca.location", "which a connection with kafka.oauth alone has not; add kafka.tls"),
    ],
)
def test_a_property_beside_the_login_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    """A property that the section sets is told with the field to use."""
    text = f"kafka:\n  oauth: {{{LOGIN}}}\n  properties:\n    {name}: x{CHANNELS}"
    (problem,) = refused(tmp_path, text)
    assert problem.startswith(f"kafka.properties.{name} (line 4): ")
    assert sentence in problem


def test_the_claim_of_the_user_is_a_property_of_both_clients(tmp_path: Path) -> None:
    """It is the only one of a login that the section does not have."""
    claim = "sasl.oauthbearer.sub.claim.name"
    text = f"kafka:\n  oauth: {{{LOGIN}}}\n  properties: {{{claim}: azp}}\n{CHANNELS}"
    kafka = loaded(tmp_path, text).kafka
    assert client_properties(kafka)[claim] == "azp"
    assert java_client_properties(kafka)[claim] == "azp"


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    """The text of a configuration and that of its section are without it."""
    config = loaded(tmp_path, f"kafka: {{oauth: {{{LOGIN}}}}}\n{CHANNELS}")
    assert "hunter2" not in show(config) + repr(config) + str(config.kafka.oauth)
    assert URL in show(config)


@pytest.mark.parametrize(
    ("absent", "steps"),
    [
        ("oidc", ("kafka", "oauth", "token_url")),
        ("sasl_oauthbearer", ("kafka", "oauth")),
        ("sasl", ("kafka", "oauth")),
    ],
)
def test_a_login_that_librdkafka_lacks_is_refused_at_its_section(
    monkeypatch: pytest.MonkeyPatch, absent: str, steps: tuple[str, ...]
) -> None:
    """A librdkafka that was built without it is told before a client is made."""
    has = {"ssl", "sasl", "sasl_oauthbearer", "oidc"} - {absent}
    monkeypatch.setattr("headrace.kafka.features.built_in", lambda: frozenset(has))
    assert [found for found, _ in missing_features(section(**FETCHED))] == [steps]


def test_rights_are_told_for_the_subject_of_the_token() -> None:
    """The configuration does not have the name."""
    assert principal(section(**FETCHED)) == "User:<subject of the token of kafka.oauth>"


def test_a_token_is_read_again_each_time(tmp_path: Path) -> None:
    """A file that something else has renewed is read without a reload."""
    file = tmp_path / "token"
    first, second = jwt({"exp": 4_000_000_000, "sub": "me"}), jwt({"exp": 4_000_000_000.5})
    read = TokenFile(file, {"a": "b"})
    file.write_text(f"{first}\n")
    assert read("") == (first, 4_000_000_000.0, "me", {"a": "b"})
    file.write_text(second)
    assert read("") == (second, 4_000_000_000.5, "", {"a": "b"})


@pytest.mark.parametrize(
    "text",
    ["", "opaque", "a.b", "a.$$$.c", "a.bm90anNvbg.c", jwt([1]), jwt({"sub": "me"}), "t\xe9.a.b"],
)
def test_a_file_without_a_token_is_told_without_its_text(tmp_path: Path, text: str) -> None:
    """The file is named, and nothing of what it holds."""
    file = tmp_path / "token"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError) as caught:
        TokenFile(file, {})("")
    assert str(file) in str(caught.value)
    assert not text or text not in str(caught.value)


def test_a_token_that_has_ended_is_told_with_its_file(tmp_path: Path) -> None:
    """The message says for how long, so that it leads to what renews the file."""
    file = tmp_path / "token"
    token = jwt({"exp": time.time() - 100, "sub": "me"})
    file.write_text(token)
    with pytest.raises(ConfigError, match=r"token that ended 1\d\d s ago") as caught:
        TokenFile(file, {})("")
    assert str(file) in str(caught.value)
    assert token not in str(caught.value)


def test_a_file_that_is_away_for_a_while_is_read_when_it_is_back(tmp_path: Path) -> None:
    """A missing file, a folder in its place and half a token are faults of that moment alone."""
    file, whole = tmp_path / "token", jwt({"exp": 4_000_000_000, "sub": "me"})
    read = TokenFile(file, {})
    with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
        read("")
    file.mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        read("")
    file.rmdir()
    file.write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="holds no JWT"):
        read("")
    file.write_text(whole)
    assert read("")[0] == whole


def test_a_client_without_a_poll_asks_for_the_token(tmp_path: Path) -> None:
    """The callback is called on a thread of the client's own."""
    file = tmp_path / "token"
    file.write_text(jwt({"exp": 4_000_000_000, "sub": "me"}))
    asked = []

    class Watched(TokenFile):
        """Notes that the client has asked."""

        def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
            asked.append(1)
            return super().__call__(_)

    settings = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "g",
        "log_level": 0,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": Watched(file, {}),
    }
    PythonConsumer(settings).close()
    assert asked

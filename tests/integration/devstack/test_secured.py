"""The secured door of the local stack: TLS, a user with rights, SCRAM and tokens."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from joserfc import jwt
from joserfc.errors import BadSignatureError
from joserfc.jwk import KeySet, RSAKey

from headrace.config import KafkaConfig
from headrace.core.clock import Deadline
from headrace.devstack.issuer import AUDIENCE, CLIENT
from headrace.devstack.secured import Secured, SecuredAccess
from headrace.devstack.server import ProcessState
from headrace.devstack.stack import Blueprint, LocalStack, StackState
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.survey import KafkaSurvey
from headrace.kafka.users import put_password

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 30.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack with both doors."""
    blueprint = Blueprint(short_lived=True, secured=Secured(token_seconds=60))
    with LocalStack.start(tmp_path_factory.mktemp("secured"), blueprint=blueprint) as stack:
        yield stack


@pytest.fixture
def access(stack: LocalStack) -> SecuredAccess:
    """The way through the second door."""
    assert stack.secured is not None
    return stack.secured


def section(access: SecuredAccess, *, oauth: bool, **other: Any) -> KafkaConfig:
    """Return the section as a file has it, with secrets filled in."""
    found: dict[str, Any] = {**access.section(oauth=oauth)}
    login, secret = ("oauth", "client_secret") if oauth else ("sasl", "password")
    file = Path(found[login][secret].removeprefix("${file:").removesuffix("}"))
    found[login] = {**found[login], secret: file.read_text().strip(), **other}
    return KafkaConfig.model_validate(found)


def enters(config: KafkaConfig, seconds: float = WAIT) -> bool:
    """Return whether a client is let in."""
    try:
        KafkaSurvey(client_properties(config) | {"log_level": 0}).cluster(Deadline.after(seconds))
    except KafkaUnavailableError:
        return False
    return True


@pytest.mark.parametrize("oauth", [False, True], ids=["scram", "oauth"])
def test_the_door_lets_the_user_in(access: SecuredAccess, oauth: bool) -> None:
    """Both logins of the user are taken over TLS."""
    assert enters(section(access, oauth=oauth))


@pytest.mark.parametrize("oauth", [False, True], ids=["scram", "oauth"])
def test_the_door_stays_shut_for_another_secret(access: SecuredAccess, oauth: bool) -> None:
    """A wrong secret lets no client in."""
    wrong = {"client_secret" if oauth else "password": "guessed"}
    assert not enters(section(access, oauth=oauth, **wrong), 5.0)


def test_a_new_password_is_taken_and_the_former_one_is_not(
    stack: LocalStack, access: SecuredAccess
) -> None:
    """A password that was rotated counts for connections that begin afterwards."""
    operator = {"bootstrap.servers": stack.bootstrap_servers}
    former = section(access, oauth=False)
    assert former.sasl is not None
    put_password(operator, CLIENT, "rotated", Deadline.after(WAIT))
    try:
        assert enters(section(access, oauth=False, password="rotated"))
        assert not enters(former, 5.0)
    finally:
        password = former.sasl.password.get_secret_value()
        put_password(operator, CLIENT, password, Deadline.after(WAIT))
    assert enters(former)


def fetch(stack: LocalStack, **form: str) -> httpx.Response:
    """Request a token with the client's secret in the form, as ``form`` changes it."""
    issuer = stack.issuer
    assert issuer is not None
    right = {
        "grant_type": "client_credentials",
        "client_id": CLIENT,
        "client_secret": issuer.secret_file.read_text().strip(),
    }
    return httpx.post(issuer.token_url, data={**right, **form}, trust_env=False)


def keys(stack: LocalStack) -> KeySet:
    """Return the keys that the issuer publishes."""
    assert stack.issuer is not None
    about = httpx.get(f"{stack.issuer.url}/.well-known/openid-configuration", trust_env=False)
    published = httpx.get(about.json()["jwks_uri"], trust_env=False).json()
    assert not any("d" in key for key in published["keys"])
    return KeySet.import_key_set(published)


def test_a_token_is_signed_by_a_published_key(stack: LocalStack) -> None:
    """The claims name the issuer, the client and the brokers, and the end is as configured."""
    answer = fetch(stack).json()
    claims = jwt.decode(answer["access_token"], keys(stack), algorithms=["RS256"]).claims
    assert stack.issuer is not None
    assert (claims["iss"], claims["sub"], claims["aud"]) == (stack.issuer.url, CLIENT, AUDIENCE)
    assert claims["exp"] - claims["iat"] == answer["expires_in"] == 60
    (key,) = keys(stack).keys
    assert key.kid is not None
    stranger = KeySet([RSAKey.generate_key(2048, {"kid": key.kid})])
    with pytest.raises(BadSignatureError):
        jwt.decode(answer["access_token"], stranger, algorithms=["RS256"])


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        ({"client_secret": "guessed"}, 401, "invalid_client"),
        ({"client_id": "other"}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
    ],
)
def test_a_request_for_a_token_is_refused(
    stack: LocalStack, form: dict[str, str], status: int, error: str
) -> None:
    """The error is one of OAuth's own."""
    answer = fetch(stack, **form)
    assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_an_issuer_that_comes_back_signs_with_the_same_key(stack: LocalStack) -> None:
    """Tokens outlive a restart of the issuer."""
    assert stack.issuer is not None
    token = fetch(stack).json()["access_token"]
    stack.issuer.kill()
    stack.issuer.start()
    assert jwt.decode(token, keys(stack), algorithms=["RS256"]).claims["sub"] == CLIENT


def test_secrets_are_readable_by_their_owner_alone(
    stack: LocalStack, access: SecuredAccess
) -> None:
    """The key of the certificate, the password, the client's secret and the signing key are."""
    folder = stack.directory
    files = [Path(access.password_file), Path(access.secret_file)]
    for file in [*files, folder / "issuer" / "key.json", folder / "secured" / "server.pem"]:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_sections_are_those_of_a_configuration(access: SecuredAccess) -> None:
    """The text has two sections, each with one login and no secret."""
    printed = access.sections()
    first, second = (yaml.safe_load(f"kafka:{each}") for each in printed.split("kafka:")[1:])
    assert {"sasl", "tls", "bootstrap_servers"} == first["kafka"].keys()
    assert {"oauth", "tls", "bootstrap_servers"} == second["kafka"].keys()
    for file in (access.password_file, access.secret_file):
        assert Path(file).read_text().strip() not in printed


def test_the_issuer_ends_with_the_stack(tmp_path: Path) -> None:
    """It is a server of the stack as the others are, and the folder can be used again."""
    blueprint = Blueprint(short_lived=True, secured=Secured())
    first = LocalStack.start(tmp_path, blueprint=blueprint)
    with first:
        state = StackState.of(first)
    assert [entry.name for entry in state.servers] == ["zookeeper-1", "kafka-1", "issuer"]
    assert all(entry.process.state is ProcessState.GONE for entry in state.servers)
    with LocalStack.start(tmp_path, blueprint=blueprint) as again:
        assert again.secured == state.secured
        assert again.secured is not None
        assert enters(section(again.secured, oauth=True))

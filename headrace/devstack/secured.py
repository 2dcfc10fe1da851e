"""Another door of the brokers: TLS, a user with rights, and logins by SCRAM and by tokens.

The brokers' first door stays as it is: plain text on loopback, for operators, who may do all. The
user of the second one may do what its rights say, and nothing without a login.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import yaml

from headrace.core.extras import Extra, required
from headrace.core.files import write_whole
from headrace.devstack.issuer import AUDIENCE, CLIENT
from headrace.devstack.server import LOOPBACK
from headrace.kafka.users import MECHANISM, allow_all, put_password

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.core.clock import Deadline
    from headrace.devstack.issuer import TokenIssuer

#: What the JVM of a broker is told of the addresses that keys may be fetched from.
ALLOWED_URLS = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"

_LOGINS = "org.apache.kafka.common.security"
_DOOR = "SECURED"
_FOLDER, _AUTHORITY, _SERVER, _PASSWORD = "secured", "ca.pem", "server.pem", "password"

#: How long certificates are good for; each start of a stack makes others.
_GOOD_FOR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Secured:
    """A door with logins. Tokens live for ``token_seconds``."""

    token_seconds: int = 300


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The ports of one broker: the plain door, the secured one, and that of the controller."""

    plain: int
    secured: int
    controller: int


@dataclass(frozen=True, slots=True)
class SecuredAccess:
    """The way through the door: addresses, and files with the certificate and the secrets."""

    bootstrap_servers: str
    token_url: str
    ca_file: str
    password_file: str
    secret_file: str

    @classmethod
    def of(cls, directory: Path, ports: Sequence[int], issuer: TokenIssuer) -> SecuredAccess:
        """Return the access to brokers with doors on these ports."""
        folder = directory / _FOLDER
        return cls(
            ",".join(f"{LOOPBACK}:{port}" for port in ports),
            issuer.token_url,
            str(folder / _AUTHORITY),
            str(folder / _PASSWORD),
            str(issuer.secret_file),
        )

    def section(self, *, oauth: bool) -> dict[str, object]:
        """Return the ``kafka`` section of a configuration, which names files for the secrets."""
        tls = {"ca_file": self.ca_file}
        section: dict[str, object] = {"bootstrap_servers": self.bootstrap_servers, "tls": tls}
        if oauth:
            secret = f"${{file:{self.secret_file}}}"
            login = {"token_url": self.token_url, "client_id": CLIENT, "client_secret": secret}
            return {**section, "oauth": login}
        password = f"${{file:{self.password_file}}}"
        return {
            **section,
            "sasl": {"mechanism": MECHANISM, "username": CLIENT, "password": password},
        }

    def sections(self) -> str:
        """Return both sections as YAML, one after the other."""
        both = [{"kafka": self.section(oauth=oauth)} for oauth in (False, True)]
        return "".join(yaml.safe_dump(each, sort_keys=False, width=1000) for each in both)


def door_properties(directory: Path, ports: BrokerPorts, issuer: TokenIssuer) -> dict[str, str]:
    """Return the properties of a broker with both doors.

    A connection ends with the token it was opened with, unless the client brings another one: the
    limit of an hour only makes the broker look at the token's end at all.
    """
    plain, door = f"PLAINTEXT://{LOOPBACK}:{ports.plain}", f"{_DOOR}://{LOOPBACK}:{ports.secured}"
    listener = f"listener.name.{_DOOR.lower()}"
    tokens = f"{listener}.oauthbearer"
    return {
        "listeners": f"{plain},{door},CONTROLLER://{LOOPBACK}:{ports.controller}",
        "advertised.listeners": f"{plain},{door}",
        "listener.security.protocol.map": (
            f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{_DOOR}:SASL_SSL"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(directory / _FOLDER / _SERVER),
        f"{listener}.sasl.enabled.mechanisms": f"{MECHANISM},OAUTHBEARER",
        f"{listener}.{MECHANISM.lower()}.sasl.jaas.config": (
            f"{_LOGINS}.scram.ScramLoginModule required;"
        ),
        f"{tokens}.sasl.jaas.config": (f"{_LOGINS}.oauthbearer.OAuthBearerLoginModule required;"),
        f"{tokens}.sasl.server.callback.handler.class": (
            f"{_LOGINS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{tokens}.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.keys_url,
        "sasl.oauthbearer.expected.issuer": issuer.url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def admit_user(directory: Path, bootstrap_servers: str, deadline: Deadline) -> None:
    """Set the user's password and rights, by the plain door. Blocks.

    Raises:
        KafkaUnavailableError: the brokers did not take them by the deadline.
    """
    file = directory / _FOLDER / _PASSWORD
    if not file.exists():
        write_whole(file, f"{secrets.token_urlsafe(24)}\n")
    password = file.read_text(encoding="ascii").strip()
    put_password({"bootstrap.servers": bootstrap_servers}, CLIENT, password, deadline)
    allow_all({"bootstrap.servers": bootstrap_servers}, CLIENT, deadline)


def make_certificates(directory: Path) -> None:
    """Write an authority's certificate, and one with its key for the brokers.

    Raises:
        StartError: what signs certificates is not installed.
    """
    with required(Extra.TOKENS, "a secured door"):
        from cryptography import x509  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - an extra
            Encoding,
            NoEncryption,
            PrivateFormat,
        )
        from cryptography.x509.oid import NameOID  # noqa: PLC0415 - an extra

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    now = datetime.now(UTC)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issued_by = named("Headrace local stack")
    common = (
        x509.CertificateBuilder()
        .issuer_name(issued_by)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _GOOD_FOR)
    )
    root = (
        common.subject_name(issued_by)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address(LOOPBACK))]
    certificate = (
        common.subject_name(named("localhost"))
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    key = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [each.public_bytes(Encoding.PEM) for each in (certificate, root)]
    write_whole(folder / _SERVER, b"".join([key, *chain]).decode())
    write_whole(folder / _AUTHORITY, root.public_bytes(Encoding.PEM).decode())

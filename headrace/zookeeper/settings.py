"""What a ZooKeeper session is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import SecretStr

    from headrace.config import ZooKeeperConfig


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS towards the servers; files are PEM. Without ``ca_file`` the system's roots are used."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL towards the servers; needs the package ``pure-sasl``.

    ``options`` are further keyword arguments of its client, such as ``service`` or ``principal``.
    """

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DigestAuth:
    """A user of ZooKeeper's own digest scheme; the password travels in clear without TLS."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One permission set on every node that is created.

    ``scheme`` and ``identity`` as ZooKeeper names them: ``auth`` with an empty identity stands
    for the session's own credentials, ``world``/``anyone`` for everybody, ``digest`` takes
    ``user:base64(sha1)``. ``permissions`` is a subset of the letters ``rwcda``.
    """

    scheme: str
    identity: str = ""
    permissions: str = "rwcda"


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the servers are and how to speak to them. Times are in seconds.

    ``session_timeout`` is what is asked for; the servers bound it to between 2 and 20 of their
    ticks, and the session tells what was agreed on. ``operation_timeout`` bounds each call; None
    means a quarter of the agreed time-out, so that a caller that makes one call at a time still
    turns twice in half a session, the most that liveness allows. ``read_only`` is for a look from
    outside: the chroot is not created, and a server that has lost its ensemble will do as well,
    where servers are set up to answer then (``readonlymode.enabled``).
    """

    hosts: str
    chroot: str = ""
    session_timeout: float = 12.0
    connect_timeout: float = 15.0
    operation_timeout: float | None = None
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    digest: DigestAuth | None = None
    acl: tuple[AclEntry, ...] = ()
    read_only: bool = False


_ACLS = {
    "open": (),
    "creator": (AclEntry("auth"),),
    "creator-read-world": (AclEntry("auth"), AclEntry("world", "anyone", "r")),
}


def session_settings(config: ZooKeeperConfig) -> ZooKeeperSettings:
    """Return the settings, secrets in plain text: for the session only."""
    return ZooKeeperSettings(
        hosts=",".join(config.hosts),
        chroot=config.chroot,
        session_timeout=config.session_timeout,
        connect_timeout=config.connect_timeout,
        tls=_tls(config),
        sasl=_sasl(config),
        digest=_digest(config),
        acl=_ACLS[config.node_acl],
    )


def _tls(config: ZooKeeperConfig) -> TlsSettings | None:
    tls = config.tls
    if tls is None:
        return None
    return TlsSettings(
        ca_file=_text(tls.ca_file),
        cert_file=_text(tls.certificate_file),
        key_file=_text(tls.key_file),
        key_password=_plain(tls.key_password),
        verify=tls.verify,
        check_hostname=tls.verify,
    )


def _sasl(config: ZooKeeperConfig) -> SaslSettings | None:
    sasl = config.sasl
    if sasl is None:
        return None
    return SaslSettings(sasl.mechanism, sasl.username, sasl.password.get_secret_value())


def _digest(config: ZooKeeperConfig) -> DigestAuth | None:
    digest = config.digest
    if digest is None:
        return None
    return DigestAuth(digest.username, digest.password.get_secret_value())


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

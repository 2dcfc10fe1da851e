"""From the ``zookeeper`` section to the settings of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.zookeeper.settings import (
    AclEntry,
    DigestAuth,
    SaslSettings,
    TlsSettings,
    ZooKeeperSettings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import SecretStr

    from headrace.config import ZooKeeperConfig

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

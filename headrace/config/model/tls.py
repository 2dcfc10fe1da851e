"""TLS, the same for Kafka and ZooKeeper as far as the files go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.contradiction import Contradiction
from headrace.config.kinds.paths import LocalPath
from headrace.config.kinds.scalars import Flag
from headrace.config.kinds.secrets import SecretValue
from headrace.config.model.base import Cold, Section

if TYPE_CHECKING:
    from collections.abc import Iterator


class TlsFiles(Section):
    """The files of a TLS connection, all in PEM form."""

    ca_file: Cold[LocalPath | None] = None
    """The certificates that servers are trusted by; null: those of the system."""

    certificate_file: Cold[LocalPath | None] = None
    """The certificate that Headrace shows, for servers that ask for one."""

    key_file: Cold[LocalPath | None] = None
    """The private key of certificate_file."""

    key_password: Cold[SecretValue | None] = None
    """The password of key_file; null: the key is not encrypted."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield halves of pairs."""
        if self.certificate_file is not None and self.key_file is None:
            yield Contradiction(("certificate_file",), "needs key_file, its private key")
        if self.key_file is not None and self.certificate_file is None:
            yield Contradiction(("key_file",), "needs certificate_file, which it is the key of")
        if self.key_password is not None and self.key_file is None:
            yield Contradiction(("key_password",), "needs key_file, which it is the password of")


class KafkaTls(TlsFiles):
    """TLS to the brokers."""

    verify_hostname: Cold[Flag] = True
    """Whether a broker's certificate must name the host that was connected to."""


class ZooKeeperTls(TlsFiles):
    """TLS to the ZooKeeper servers."""

    verify: Cold[Flag] = True
    """Whether a server's certificate must be trusted and name the host that was connected to."""

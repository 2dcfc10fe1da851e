"""The certificate that the API shows, and another one in its place when that is renewed."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import structlog

from headrace.errors import StartError
from headrace.files import digest

if TYPE_CHECKING:
    from headrace.config import AdminTls

log = structlog.get_logger(__name__)


class Certificate:
    """What ``admin.tls`` names, as a context that connections are made with.

    Raises:
        StartError: a file cannot be used.
    """

    def __init__(self, config: AdminTls) -> None:
        self._config = config
        self._seen = self._digests()
        self.context = _context(config)

    def look(self) -> None:
        """Take up certificate and key where their files have changed; else keep the former.

        For the thread that makes connections: nobody else may touch a context in use. Blocks for
        as long as it takes to read two small files. Connections go on with what they began with.
        """
        found = self._digests()
        if found == self._seen:
            return
        self._seen = found
        try:
            # a key that does not fit would leave a context without any, so another one tries it
            _context(self._config)
            _load(self.context, self._config)
        except StartError as error:
            log.error("admin_certificate_refused", error=str(error))  # noqa: TRY400 - the reason says it all
        else:
            log.info("admin_certificate_renewed", file=str(self._config.certificate_file))

    def _digests(self) -> tuple[str, str]:
        return digest(self._config.certificate_file), digest(self._config.key_file)


def _context(config: AdminTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    try:
        if config.client_ca_file is not None:
            context.load_verify_locations(config.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error) from error
    return context


def _load(context: ssl.SSLContext, config: AdminTls) -> None:
    password = config.key_password
    try:
        context.load_cert_chain(
            config.certificate_file,
            config.key_file,
            # an empty one, because None has OpenSSL ask on the terminal
            "" if password is None else password.get_secret_value(),
        )
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> StartError:
    return StartError(f"admin.tls cannot be used: {error}; check its files and key_password")

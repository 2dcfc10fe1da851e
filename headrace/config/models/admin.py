"""The ``admin`` and ``tracing`` sections, and collectors for metrics and logs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Fixed, Section
from headrace.config.types.addresses import Network
from headrace.config.types.scalars import (
    Distinct,
    FieldType,
    Flag,
    FreeText,
    LocalPath,
    OneOrMore,
    Port,
    Text,
    WholeNumber,
)
from headrace.config.types.secrets import SecretValue
from headrace.config.types.units import NonNegativeSeconds, PositiveSeconds

if TYPE_CHECKING:
    from collections.abc import Iterator


_ADVERTISED = Text(
    "an address such as https://one.example:9465", r"https?://[^\s/?#@]+(/[^\s?#]*)?"
)


@dataclass(frozen=True, slots=True)
class _Collector(FieldType):
    """The address of a collector for one signal of OpenTelemetry's, read with its path filled in.

    One without a path is a base endpoint, which is the same for all signals.
    """

    signal: str

    @property
    def description(self) -> str:
        return f"an address such as http://127.0.0.1:4318/v1/{self.signal}"

    def read(self, value: Any) -> str:
        address = Text(self.description, r"https?://\S+").read(value)
        try:
            parts = urlsplit(address)
        except ValueError:
            raise self.not_accepted() from None
        if parts.path not in {"", "/"}:
            return address
        return parts._replace(path=f"/v1/{self.signal}").geturl()


class TracingConfig(Section):
    """Traces of batches for OpenTelemetry; they need the extra headrace[otel]."""

    endpoint: Fixed[Annotated[str, _Collector("traces")] | None] = None
    """The collector's address for OTLP over HTTP; without a path, /v1/traces is used. null: nothing
    is traced, and it costs nothing."""

    sample_one_in: Fixed[Annotated[int, WholeNumber(1)]] = 1
    """Of how many batches one is traced."""

    service_name: Fixed[FreeText] = "headrace"
    """The name of the process in traces, and in metrics and logs that go by OTLP."""

    timeout: Fixed[NonNegativeSeconds] = 10.0
    """Longest time the collector may take to answer; traces it does not take are dropped."""

    propagate: Fixed[Flag] = True
    """Add the W3C headers traceparent and tracestate to records that are produced for a traced
    batch, which name the span that made them. Records for a batch of one record name the trace that
    this record is part of, also where it is not sampled."""


class LogsOtlpConfig(Section):
    """A collector of OpenTelemetry's for lines of the log; it needs the extra headrace[otel]."""

    endpoint: Fixed[Annotated[str, _Collector("logs")]]
    """The collector's address for OTLP over HTTP; without a path, /v1/logs is used."""

    timeout: Fixed[NonNegativeSeconds] = 10.0
    """Longest time it may take to answer; lines it does not take are dropped there, and counted."""


class MetricsOtlpConfig(Section):
    """A collector of OpenTelemetry's for all metrics; it needs the extra headrace[otel]."""

    endpoint: Fixed[Annotated[str, _Collector("metrics")]]
    """The collector's address for OTLP over HTTP; without a path, /v1/metrics is used."""

    interval: Fixed[PositiveSeconds] = 60.0
    """Interval at which all metrics are sent; they are sent once more at the end."""

    timeout: Fixed[NonNegativeSeconds] = 10.0
    """Longest time it may take to answer; metrics it does not take come with the next interval."""


_REDACTED = Text(
    "key, value, value.<member> or headers.<name>", r"key|value(\.[^.]+)*|headers\.(?s:.+)"
)

#: Characters of the shortest token that is accepted: 16 random bytes take so many in base 64.
SHORTEST_TOKEN = 22


def is_loopback(host: str) -> bool:
    """Return whether only this machine gets through to ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AdminTls(Section):
    """HTTPS for the admin API, all files in PEM form."""

    certificate_file: Fixed[LocalPath]
    """The certificate that the API shows, with those between it and its authority."""

    key_file: Fixed[LocalPath]
    """The private key of certificate_file."""

    key_password: Fixed[SecretValue | None] = None
    """The password of key_file; null: the key is not encrypted."""

    client_ca_file: Fixed[LocalPath | None] = None
    """The authorities whose certificates let a client in, in place of the token; null: none."""


class AdminConfig(Section):
    """The admin API: what the process is doing, and changes to it."""

    enabled: Fixed[Flag] = True
    """Serve the admin API."""

    host: Fixed[FreeText] = "127.0.0.1"
    """The address to listen on; '::': all of IPv6 and IPv4."""

    port: Fixed[Port | None] = None
    """The port to listen on; 0: any free one; null: 9465, or any free one where that is taken.
    The commands find it by the configuration file."""

    advertised_url: Fixed[Annotated[str, _ADVERTISED] | None] = None
    """The URL at which others reach the API, as behind a proxy or from outside a container's
    network. Members publish it, and redirect requests to it that only this member can answer. null:
    host and port, where host is not loopback."""

    token: Fixed[SecretValue | None] = None
    """The bearer token that clients have to send, at least 22 characters, best as ${file:...};
    null: the one in the file admin-token of the process's folder in state_dir, which the first
    start makes."""

    tls: Fixed[AdminTls | None] = None
    """HTTPS; null: none."""

    plain_text: Fixed[Flag] = False
    """Listen for other machines without tls, as where something in between encrypts."""

    allowed_hosts: Fixed[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """Names under which clients reach the API besides addresses, localhost, the host's name and
    that in advertised_url."""

    trusted_proxies: Fixed[Annotated[tuple[Annotated[str, Network()], ...], OneOrMore]] = ()
    """Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto say who asks,
    for the log, and whether by https. Of all others these headers are ignored."""

    redact: Fixed[Annotated[tuple[Annotated[str, _REDACTED], ...], Distinct, OneOrMore]] = ()
    """Parts of records that taps and headrace dead-letters list do not show: key, value, a member
    of values that are JSON objects, as value.card.number, also within lists, or a header, as
    headers.authorization."""

    @property
    def on_loopback(self) -> bool:
        """Return whether only this machine gets through."""
        return is_loopback(self.host)

    def conflicts(self) -> Iterator[FieldConflict]:
        token = None if self.token is None else self.token.get_secret_value()
        if token is not None and len(token) < SHORTEST_TOKEN:
            yield FieldConflict(
                ("token",),
                f"is shorter than {SHORTEST_TOKEN} characters; make one with: openssl rand -hex 32",
            )
        elif token is not None and not (
            token.isascii() and token.isprintable() and token == token.strip()
        ):
            yield FieldConflict(
                ("token",),
                "has a line break, a blank at an end, or a character that is not ASCII, which no "
                "client can send; make one with: openssl rand -hex 32",
            )
        if self.enabled and not self.on_loopback and self.tls is None and not self.plain_text:
            yield FieldConflict(
                ("host",),
                f"is {self.host}, which other machines reach, and without tls they send the token "
                "in plain text; set tls, or plain_text: true where something in between encrypts",
            )

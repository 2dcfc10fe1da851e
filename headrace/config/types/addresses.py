"""The types of addresses: servers, databases and connectors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from headrace.config.errors import origin_of
from headrace.config.expand import Expanded
from headrace.config.types.scalars import FieldType, Text, absolute, refuse
from headrace.config.types.secrets import SecretText

#: A name, an IPv4 address, or an IPv6 address in brackets; then perhaps a port.
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Za-z:.%]+\])(?::(?P<port>[0-9]{1,5}))?")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Server(FieldType):
    """One ``host[:port]``, read with its port filled in."""

    default_port: int

    @property
    def description(self) -> str:
        return f"a server as host:port (port {self.default_port} by default)"

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self.not_accepted()
        if "://" in value:
            raise refuse("has a protocol; name host and port only")
        if "/" in value:
            raise refuse("has a path; name host and port only (ZooKeeper's path goes into chroot)")
        match = _SERVER.fullmatch(value)
        if match is None:
            raise self.not_accepted()
        port = int(match["port"] or self.default_port)
        if not 1 <= port <= _MAX_PORT:
            raise refuse(f"has a port that is not from 1 to {_MAX_PORT}")
        return f"{match['host']}:{port}"


@dataclass(frozen=True, slots=True)
class Network(FieldType):
    """One address, or a network of them."""

    description = "an address such as 10.0.0.7, or a network such as 10.0.0.0/8"

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self.not_accepted()
        try:
            return str(ip_network(value))
        except ValueError:
            raise self.not_accepted() from None


def _split(value: Any) -> Any:
    """Split text with commas into a list."""
    if isinstance(value, Expanded):
        parts = [part.strip() for part in value.split(",")]
        return [Expanded.of(p, value.source, from_file=value.from_file) for p in parts]
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


_TEXT_OR_LIST = BeforeValidator(_split, str | tuple[str, ...])

KafkaServers = Annotated[
    tuple[Annotated[str, Server(9092)], ...], Field(min_length=1), _TEXT_OR_LIST
]
ZooKeeperServers = Annotated[
    tuple[Annotated[str, Server(2181)], ...], Field(min_length=1), _TEXT_OR_LIST
]


#: The drivers that are taken where a URL names none, by the dialect.
DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}

_SCHEME = re.compile(r"(?P<dialect>[a-z][a-z0-9_]*)(\+[a-z0-9_]+)?://")
_SQLITE_FILE = re.compile(r"sqlite(\+[a-z0-9_]+)?:///")


#: What stands after the scheme, as SQLAlchemy reads it.
_AUTHORITY = re.compile(
    r"(?:[^:/]*(?::(?P<password>[^@]*))?@)?(?:\[[^/?]+\]|[^/:?]*)(?::(?P<port>[^/?]*))?"
)

_KIND = SecretText("a URL such as postgresql+psycopg://user@host/database")


def _check_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    """Return the URL; a relative file of SQLite starts from the configuration's folder."""
    text = url.get_secret_value()
    if _SCHEME.match(text) is None:
        raise _KIND.not_accepted()
    port = _authority(text)["port"]
    if port and not (port.isdecimal() and int(port) <= _MAX_PORT):
        raise refuse(f"has a port that is not a whole number from 0 to {_MAX_PORT}")
    match = _SQLITE_FILE.match(text)
    file = text[match.end() :] if match else ""
    if match is None or file.startswith(("/", "file:", ":", "?")) or not file:
        return url
    folder = PurePosixPath(origin_of(info).folder)
    return SecretStr(f"{match[0]}{folder / file}")


def _authority(text: str) -> re.Match[str]:
    _, _, rest = text.partition("://")
    match = _AUTHORITY.match(rest)
    assert match is not None, "each part of it may be missing"
    return match


def has_own_password(url: SecretStr) -> bool:
    """Return whether the URL says a password."""
    return bool(_authority(url.get_secret_value())["password"])


def scheme_of(url: SecretStr) -> str:
    """Return the name of the dialect, which is no secret."""
    match = _SCHEME.match(url.get_secret_value())
    assert match is not None, "the URL was checked"
    return match["dialect"]


def driver_of(url: SecretStr) -> str:
    """Return the name of the driver that the URL takes: ours where it names none, or empty."""
    scheme, _, _ = url.get_secret_value().partition("://")
    dialect, _, driver = scheme.partition("+")
    return driver or DRIVERS.get(dialect, "")


DatabaseUrl = Annotated[SecretStr, _KIND, AfterValidator(_check_url)]


#: Stands for the coordinate that fits the pyspark that is installed.
MAVEN = "maven"

_COORDINATE = r"[^/:\s]+:[^/:\s]+:[^/:\s]+"


def is_coordinate(text: str) -> bool:
    """Return whether the text is what Maven calls an artifact, and not a folder."""
    return re.fullmatch(_COORDINATE, text) is not None


def _resolve(text: str, info: ValidationInfo) -> str:
    return text if text == MAVEN or is_coordinate(text) else absolute(text, info)


Connector = Annotated[
    str,
    Text("maven, a coordinate such as group:artifact:version, or a folder of jars"),
    AfterValidator(_resolve),
]

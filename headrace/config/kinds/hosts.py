"""Lists of servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from headrace.config.expand import Expanded
from headrace.config.kinds.base import Kind, refuse

#: A name, an IPv4 address, or an IPv6 address in brackets; then perhaps a port.
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Za-z:.%]+\])(?::(?P<port>[0-9]{1,5}))?")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Server(Kind):
    """One ``host[:port]``, read with its port filled in."""

    default_port: int

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return f"a server as host:port (port {self.default_port} by default)"

    def read(self, value: Any) -> str:
        """Return ``host:port``."""
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

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Network(Kind):
    """One address, or a network of them."""

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return "an address such as 10.0.0.7, or a network such as 10.0.0.0/8"

    def read(self, value: Any) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise self.not_accepted()
        try:
            return str(ip_network(value))
        except ValueError:
            raise self.not_accepted() from None

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "string"}


def _split(value: Any) -> Any:
    """Let text with commas stand for a list."""
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

"""A real ZooKeeper server on loopback, from the jars that pyspark brings."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.devstack.jvm import LOGGING_JARS, SHORT_LIVED, java_command, log4j_flag, pick_jars
from headrace.devstack.server import LOOPBACK, LocalServer, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.core.clock import Deadline

_STANDALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

#: What the server loads when it keeps to file storage.
_JARS = (
    "zookeeper-",
    "zookeeper-jute-",
    "metrics-core-",
    "snappy-java-",
    "commons-io-",
    "netty-handler-",
    "netty-common-",
    "netty-buffer-",
    "netty-transport-",
    "netty-transport-classes-epoll-",
    "netty-transport-native-unix-common-",
    "netty-codec-",
    "netty-resolver-",
    *LOGGING_JARS,
)

#: What Netty has divided since 4.2, which Spark has since 4.2 too: TLS needs it.
_NEWER_JARS = ("netty-codec-base-",)

#: Short ticks, so that a test's session can be as short as a second.
_SETTINGS = {
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "clientPortAddress": LOOPBACK,
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "standaloneEnabled": "true",
    "4lw.commands.whitelist": "*",
}

#: Ticks that a member of an ensemble may take to connect to its leader, and to fall behind it.
_ENSEMBLE = {"initLimit": "20", "syncLimit": "8"}

#: Seconds for one question to a server, unless said otherwise.
_PROBE_TIMEOUT_S = 2.0


class ZooKeeperServer(LocalServer):
    """One ZooKeeper server. Data, settings and log live in ``directory`` and survive a restart.

    ``peers`` are the members of its ensemble by server id, itself included, each as
    ``host:port:election-port``; without any it stands alone.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        server_id: int = 1,
        peers: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(f"zookeeper-{server_id}", directory)
        self.server_id = server_id
        self._peers = dict(peers or {})
        self.port = free_port() if port is None else port
        self._settings = dict(settings or {})

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def mode(self, seconds: float = _PROBE_TIMEOUT_S) -> str | None:
        """Ask the server what it is: standalone, leader or follower; None if it does not serve."""
        for line in four_letter_word(self.port, b"srvr", seconds).decode().splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _command(self, deadline: Deadline) -> list[str]:
        del deadline  # nothing to wait for
        path, data = self.directory / "zoo.cfg", self.directory / "data"
        settings = {**_SETTINGS, "dataDir": str(data), "clientPort": str(self.port)}
        if self._peers:
            settings |= _ENSEMBLE | {f"server.{n}": peer for n, peer in self._peers.items()}
            data.mkdir(exist_ok=True)
            (data / "myid").write_text(str(self.server_id), encoding="utf-8")
        settings |= self._settings
        path.write_text("".join(f"{k}={v}\n" for k, v in settings.items()), encoding="utf-8")
        return java_command(
            _MEMBER if self._peers else _STANDALONE,
            [str(path)],
            class_path=pick_jars(_JARS, where_there=_NEWER_JARS),
            heap="256m",
            flags=[SHORT_LIVED, log4j_flag(self.directory)],
        )

    def _answers(self, seconds: float) -> bool:
        return self.mode(seconds) is not None


def four_letter_word(port: int, word: bytes, seconds: float = _PROBE_TIMEOUT_S) -> bytes:
    """Send one of ZooKeeper's four-letter words and return the answer; b"" if there is none.

    Always sends: a bare connect and close while the server starts can break it for good.
    """
    try:
        with socket.create_connection((LOOPBACK, port), seconds) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return b""

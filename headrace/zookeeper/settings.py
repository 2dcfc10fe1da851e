"""The settings of a ZooKeeper session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config import ZooKeeperConfig, ZooKeeperDigest, ZooKeeperSasl, ZooKeeperTls
    from headrace.config.models.zookeeper import NodeAcl


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """The addresses of the servers, and the settings of sessions with them. Times are in seconds.

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
    tls: ZooKeeperTls | None = None
    sasl: ZooKeeperSasl | None = None
    digest: ZooKeeperDigest | None = None
    acl: NodeAcl = "open"
    read_only: bool = False


def session_settings(config: ZooKeeperConfig) -> ZooKeeperSettings:
    """Return the settings of the process's session."""
    return ZooKeeperSettings(
        hosts=",".join(config.hosts),
        chroot=config.chroot,
        session_timeout=config.session_timeout,
        connect_timeout=config.connect_timeout,
        tls=config.tls,
        sasl=config.sasl,
        digest=config.digest,
        acl=config.node_acl,
    )

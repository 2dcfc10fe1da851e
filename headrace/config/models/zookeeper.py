"""The ``zookeeper`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Reconnects, Section, ZooKeeperTls
from headrace.config.types.addresses import ZooKeeperServers
from headrace.config.types.scalars import FreeText, Text
from headrace.config.types.secrets import SecretValue
from headrace.config.types.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

Chroot = Annotated[
    str,
    Text(
        'a path such as /headrace, or "" for the root',
        r"(?:/(?!\.{1,2}(?:/|$))[^/\s\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)*",
    ),
]
NodeAcl = Literal["open", "creator", "creator-read-world"]
UserName = Annotated[str, Text("a user name without ':'", r"[^:\s](?:[^:]*[^:\s])?")]


class ZooKeeperSasl(Section):
    """A user name and a password for SASL."""

    mechanism: Reconnects[Literal["DIGEST-MD5"]] = "DIGEST-MD5"
    """The one mechanism that ZooKeeper and its Python client share without Kerberos."""

    username: Reconnects[FreeText]
    """The user's name in the server's JAAS file."""

    password: Reconnects[SecretValue]
    """The user's password."""


class ZooKeeperDigest(Section):
    """A user name and a password for ZooKeeper's own digest scheme."""

    username: Reconnects[UserName]
    """The user's name."""

    password: Reconnects[SecretValue]
    """The user's password."""


class ZooKeeperConfig(Section):
    """The connection to ZooKeeper, where ownership of partitions is kept."""

    hosts: Reconnects[ZooKeeperServers] = ("localhost:2181",)
    """The servers of the ensemble."""

    chroot: Reconnects[Chroot] = ""
    """The node under which all of Headrace's nodes are; made at the start where it is missing."""

    session_timeout: Reconnects[Annotated[float, Duration(1, 60)]] = 10.0
    """Time after which a silent member loses its claims. The servers may negotiate another
    value."""

    connect_timeout: Reconnects[Annotated[float, Duration(0.1)]] = 15.0
    """Longest time that the start waits for a session."""

    tls: Reconnects[ZooKeeperTls | None] = None
    """TLS to the servers; null: none, {}: with the system's certificates."""

    sasl: Reconnects[ZooKeeperSasl | None] = None
    """A user name and a password for SASL; null: none."""

    digest: Reconnects[ZooKeeperDigest | None] = None
    """A user name and a password for the digest scheme; null: none."""

    acl: Reconnects[NodeAcl | None] = None
    """The ACL of the nodes that Headrace creates. open: everybody may use them. creator: only the
    identity that made them. creator-read-world: that identity, while everybody may read. null:
    creator with digest or sasl, else open. All members of a group need one identity."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.acl not in {None, "open"} and not self.has_identity:
            yield FieldConflict(
                ("acl",),
                f"is {self.acl}, which needs an identity; "
                "add zookeeper.sasl, zookeeper.digest or a certificate in zookeeper.tls",
            )

    @property
    def node_acl(self) -> NodeAcl:
        """Return who may use the nodes.

        A certificate is no reason to close them by itself: each member may have its own, and the
        servers may not look at it.
        """
        if self.acl is not None:
            return self.acl
        return "open" if self.sasl is None and self.digest is None else "creator"

    @property
    def has_identity(self) -> bool:
        """Return whether the servers learn who Headrace is."""
        certificate = self.tls is not None and self.tls.certificate_file is not None
        return certificate or self.sasl is not None or self.digest is not None

"""The registry of a group: its members, the owners of partitions, and the members' nodes.

Each member has one ephemeral node, which it writes again as a heartbeat.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.errors import (
    BadDocumentError,
    Holder,
    MemberExistsError,
    MembershipLostError,
)
from headrace.coordinators.group_nodes import read_documents
from headrace.coordinators.znodes import GroupPaths, MemberDocument, decode_name
from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.version import VERSION
from headrace.zookeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    ZooKeeperError,
    ZooKeeperUnavailableError,
)
from headrace.zookeeper.identity import is_ours
from headrace.zookeeper.nodes import ANY_VERSION, SetData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.coordinators.claims import Claim
    from headrace.coordinators.member_info import MemberInfo
    from headrace.zookeeper.nodes import Operation
    from headrace.zookeeper.protocol import Session


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership of the group.

    ``epoch`` is the transaction that created our node among the members: higher at each start.
    """

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of a partition's owner node.

    ``member`` is None where the node cannot be read. ``ours`` says that it belongs to our present
    session, whatever it says; with our name but another session it is not ours.
    """

    member: str | None
    epoch: int | None
    ours: bool

    def stands_for(self, claim: Claim) -> bool:
        """Return whether it is what our claim wrote; another may have written over it since."""
        return self.ours and (self.member, self.epoch) == (claim.member, claim.epoch)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The members that can be understood, and what was found wrong with the others' nodes."""

    members: Mapping[str, MemberInfo]
    problems: Mapping[str, str]


log = structlog.get_logger(__name__)


@contextmanager
def answered() -> Iterator[None]:
    """Translate ZooKeeper errors that stand for no useful answer.

    Answers that have a meaning were taken before; what is left is a lost connection, a time-out,
    a node that changed twice while we looked, or denied access, which no waiting fixes.
    """
    try:
        yield
    except AccessDeniedError:
        raise
    except ZooKeeperError as error:
        raise ZooKeeperUnavailableError(str(error)) from error


class MemberNodes:
    """A session, our own member node, and the reading of all."""

    def __init__(
        self,
        session: Session,
        group: str,
        member: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        admin_url: str | None = None,
    ) -> None:
        self.session = session
        self._paths = GroupPaths(group)
        self._path = self._paths.member(member)
        self._host = socket.gethostname()
        self._clock = clock
        self._admin_url = admin_url
        self._document: MemberDocument | None = None
        self._version = ANY_VERSION
        self._membership: Membership | None = None
        self._on_change: Callable[[], None] | None = None
        #: Our name in the group.
        self.member = member

    def watch(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` after changes to what ``members`` or ``owners`` last read.

        Reading again arms the call again. None removes the callback.
        """
        self._on_change = callback

    def _changed(self) -> None:
        """Pass a fired watch on.

        ZooKeeper's client keeps what it is to call until the watch fires, which in a group that
        no member joins any more is never. So it is given this, and not a whole channel.
        """
        if (callback := self._on_change) is not None:
            callback()

    @property
    def membership(self) -> Membership:
        """Return the present membership."""
        if self._membership is None:
            raise MembershipLostError(f"member {self.member!r} is not in the group; join first")
        return self._membership

    @answered()
    def join(self, info: MemberInfo) -> Membership:
        """Enter the group; raises MemberExistsError."""
        document = MemberDocument(
            info=info,
            host=self._host,
            pid=os.getpid(),
            since=self._clock.time(),
            software=VERSION,
            admin=self._admin_url,
        )
        self.session.ensure(self._paths.ids)
        try:
            stat = self.session.create(self._path, document.encode(), ephemeral=True)
        except NodeExistsError:
            self._remove_own_or_refuse()
            stat = self.session.create(self._path, document.encode(), ephemeral=True)
        if stat.owner_session is None or not is_ours(self.session, self._path, stat):
            raise ZooKeeperUnavailableError(f"the session changed while {self._path} was created")
        self._document, self._version = document, stat.version
        self._membership = Membership(stat.czxid, stat.owner_session)
        return self._membership

    def _remove_own_or_refuse(self) -> None:
        """Remove what a request of ours created unheard of; leave anybody else's node."""
        node = self.session.get(self._path)
        if is_ours(self.session, self._path, node.stat):
            self.session.delete(self._path, node.stat.version)
            return
        try:
            document = MemberDocument.decode(self._path, node.data)
            holder = Holder(document.host, document.pid, node.stat.version)
        except BadDocumentError:
            holder = Holder("an unknown host", 0, node.stat.version)
        raise MemberExistsError(self.member, holder)

    @answered()
    def heartbeat(self) -> None:
        """Write our node: its success proves the session. Raises MembershipLostError."""
        self._write(self._present_document(), [])

    @answered()
    def publish(self, info: MemberInfo) -> None:
        """Replace what we publish and tell the others. Raises MembershipLostError."""
        document = replace(self._present_document(), info=info)
        # every member watches the parent
        self._write(document, [SetData(self._paths.ids, b"")])

    def _present_document(self) -> MemberDocument:
        if self.session.session_id not in {None, self.membership.session_id}:
            raise MembershipLostError(f"{self._path} was of a session that is over")
        assert self._document is not None, "there is a document wherever there is a membership"
        return self._document

    def _write(self, document: MemberDocument, more: list[Operation]) -> None:
        try:
            self._set(document, more)
        except (BadVersionError, NoNodeError):
            self._version = self._present_version()
            self._set(document, more)
        self._document = document

    def _set(self, document: MemberDocument, more: list[Operation]) -> None:
        write = SetData(self._path, document.encode(), self._version)
        stat = self.session.multi([write, *more])[0]
        assert stat is not None, "setting data answers with the node's state"
        self._version = stat.version

    def _present_version(self) -> int:
        """Return our node's version after a missed answer or an edit by hand."""
        stat = self.session.exists(self._path)
        if stat is None or stat.czxid != self.membership.epoch:
            raise MembershipLostError(
                f"{self._path} is gone or another session's; the member joins again"
            )
        return stat.version

    @answered()
    def leave(self) -> None:
        """Delete our node, if it is ours."""
        if self._membership is None:
            return
        try:
            self.session.delete(self._path, self._present_version())
        except (NoNodeError, MembershipLostError):
            log.debug("member_node_already_deleted", path=self._path)
        self._membership = None

    @answered()
    def members(self) -> GroupView:
        """Read who is in the group."""
        try:
            # the parent's data tells of members that publish again, its children of the others
            self.session.get(self._paths.ids, self._changed)
            names = self.session.children(self._paths.ids, self._changed)
        except NoNodeError as error:
            raise MembershipLostError(
                f"{self._paths.ids} is gone; the member joins again"
            ) from error
        paths = {decode_name(name): f"{self._paths.ids}/{name}" for name in names}
        found = read_documents(self.session, paths, MemberDocument.decode)
        return GroupView(
            {name: each.document.info for name, each in found.items() if each.document},
            {name: each.problem for name, each in found.items() if each.problem},
        )

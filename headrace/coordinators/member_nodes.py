"""The nodes of a group's members: one ephemeral node each, rewritten as a sign of life."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.registry import (
    GroupView,
    Holder,
    MemberExistsError,
    Membership,
    MembershipLostError,
    RegistryUnavailableError,
)
from headrace.coordinators.znodes import BadDocumentError, MemberDocument, decode_name
from headrace.version import VERSION
from headrace.zookeeper.identity import is_ours
from headrace.zookeeper.nodes import ANY_VERSION, SetData
from headrace.zookeeper.protocol import BadVersionError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.coordinators.member_info import MemberInfo
    from headrace.coordinators.znodes import GroupPaths
    from headrace.core.clock import Clock
    from headrace.zookeeper.nodes import Operation
    from headrace.zookeeper.protocol import Session

log = structlog.get_logger(__name__)


class MemberNodes:
    """Our own member node, and the reading of all. Errors are those of the session."""

    def __init__(
        self, session: Session, paths: GroupPaths, member: str, host: str, clock: Clock
    ) -> None:
        self._session = session
        self._paths = paths
        self._member = member
        self._path = paths.member(member)
        self._host = host
        self._clock = clock
        self._document: MemberDocument | None = None
        self._version = ANY_VERSION
        self._membership: Membership | None = None

    @property
    def membership(self) -> Membership:
        """The present membership."""
        if self._membership is None:
            raise MembershipLostError(f"member {self._member!r} is not in the group; join first")
        return self._membership

    def join(self, info: MemberInfo) -> Membership:
        """Create our node; raises MemberExistsError."""
        document = self._document_of(info)
        self._session.ensure(self._paths.ids)
        try:
            stat = self._session.create(self._path, document.encode(), ephemeral=True)
        except NodeExistsError:
            self._remove_own_or_refuse()
            stat = self._session.create(self._path, document.encode(), ephemeral=True)
        if stat.owner_session is None or not is_ours(self._session, self._path, stat):
            raise RegistryUnavailableError(f"the session changed while {self._path} was created")
        self._document, self._version = document, stat.version
        self._membership = Membership(stat.czxid, stat.owner_session)
        return self._membership

    def _document_of(self, info: MemberInfo) -> MemberDocument:
        return MemberDocument(
            info=info,
            host=self._host,
            pid=os.getpid(),
            since=self._clock.time(),
            software=VERSION,
        )

    def _remove_own_or_refuse(self) -> None:
        """Remove what a request of ours created unheard of; leave anybody else's node."""
        node = self._session.get(self._path)
        if is_ours(self._session, self._path, node.stat):
            self._session.delete(self._path, node.stat.version)
            return
        try:
            document = MemberDocument.decode(self._path, node.data)
            holder = Holder(document.host, document.pid, node.stat.version)
        except BadDocumentError:
            holder = Holder("an unknown host", 0, node.stat.version)
        raise MemberExistsError(self._member, holder)

    def heartbeat(self) -> None:
        """Write our node as it is."""
        self._write(self._present_document(), [])

    def publish(self, info: MemberInfo) -> None:
        """Write our node again, and its parent, which every member watches."""
        document = replace(self._present_document(), info=info)
        self._write(document, [SetData(self._paths.ids, b"")])

    def _present_document(self) -> MemberDocument:
        if self._session.session_id not in {None, self.membership.session_id}:
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
        stat = self._session.multi([write, *more])[0]
        assert stat is not None, "setting data answers with the node's state"
        self._version = stat.version

    def _present_version(self) -> int:
        """Return our node's version after a missed answer or an edit by hand."""
        stat = self._session.exists(self._path)
        if stat is None or stat.czxid != self.membership.epoch:
            raise MembershipLostError(
                f"{self._path} is gone or another session's; the member joins again"
            )
        return stat.version

    def leave(self) -> None:
        """Delete our node, if it is ours."""
        if self._membership is None:
            return
        try:
            self._session.delete(self._path, self._present_version())
        except (NoNodeError, MembershipLostError):
            log.debug("member_node_already_deleted", path=self._path)
        self._membership = None

    def read(self, changed: Callable[[], None] | None) -> GroupView:
        """Read all members, and have ``changed`` called after the next change."""
        try:
            # the parent's data tells of members that publish again, its children of the others
            self._session.get(self._paths.ids, changed)
            names = self._session.children(self._paths.ids, changed)
        except NoNodeError as error:
            raise MembershipLostError(
                f"{self._paths.ids} is gone; the member joins again"
            ) from error
        paths = [f"{self._paths.ids}/{name}" for name in names]
        members: dict[str, MemberInfo] = {}
        problems: dict[str, str] = {}
        for name, path, node in zip(names, paths, self._session.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                members[decode_name(name)] = MemberDocument.decode(path, node.data).info
            except BadDocumentError as error:
                problems[decode_name(name)] = str(error)
        return GroupView(members, problems)

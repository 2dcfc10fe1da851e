"""A look at ZooKeeper from where a member will run, for ``headrace doctor``."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.security import Permissions

from headrace.zookeeper.client import ClientClose, build_client
from headrace.zookeeper.errors import ZooKeeperUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.zookeeper.settings import ZooKeeperSettings

_VERSION = re.compile(r"Zookeeper version: ([\d.]+)")
_MODE = re.compile(r"Mode: (\w+)")

#: Seconds for one question, and for the end of the session.
_ANSWER = 5.0

MOST_LOOKED_AT = 5000
"""The most nodes that are asked for their ACLs: an answer takes some 0.1 ms."""


@dataclass(frozen=True, slots=True)
class ZooKeeperFacts:
    """The findings of a survey. Times are in seconds.

    ``version`` and ``mode`` are None where the servers do not answer ``srvr``. ``skew`` is how far
    the server's clock is ahead of ours, give or take ``skew_error``; None where no node could be
    made: because there is no chroot yet, or ``denied`` names the nodes to which access is denied.
    ``opened`` are nodes that everybody may change, of those that were looked at. ``children`` says
    how many nodes are right below those that there are.
    """

    session_timeout: float
    version: str | None
    mode: str | None
    chroot_exists: bool
    skew: float | None
    skew_error: float
    denied: tuple[str, ...]
    opened: tuple[str, ...] = ()
    children: Mapping[str, int] = field(default_factory=dict)


def survey(settings: ZooKeeperSettings, paths: Collection[str]) -> ZooKeeperFacts:
    """Open a session, look at ``paths``, make and delete one ephemeral node, and end the session.

    Blocks for ``connect_timeout`` and a few answers at most. Makes no chroot.

    Raises:
        ZooKeeperUnavailableError: no server let us in, or one did not answer.
    """
    client, negotiated, _ = build_client(settings)
    where = settings.hosts + settings.chroot
    try:
        if not client.start_async().wait(settings.connect_timeout):
            refused = client.client_state == KeeperState.AUTH_FAILED
            reason = "the credentials were refused" if refused else "no server let us in"
            raise ZooKeeperUnavailableError(
                f"no session at {where} within {settings.connect_timeout:g} s: {reason}"
            )
        return _survey_server(client, settings, negotiated(), paths)
    except (KazooException, KazooTimeoutError) as problem:
        reason = f"{type(problem).__name__} {problem}".strip()
        raise ZooKeeperUnavailableError(f"{where} did not answer: {reason}") from problem
    finally:
        ClientClose(client).wait(_ANSWER)


def _survey_server(
    client: Any, settings: ZooKeeperSettings, session_timeout: float, paths: Collection[str]
) -> ZooKeeperFacts:
    srvr, denied = "", []
    skew, skew_error = None, 0.0
    # servers may be set up not to say it
    with suppress(KazooException, OSError):
        srvr = str(client.command(b"srvr"))
    try:
        exists = client.exists_async("/").get(timeout=_ANSWER) is not None
        if exists:
            skew, skew_error = _skew(client)
    except NoAuthError:
        exists = True
        denied.append(settings.chroot or "/")
    children: dict[str, int] = {}
    for path in paths if exists else ():
        try:
            with suppress(NoNodeError):
                children[path] = len(client.get_children_async(path).get(timeout=_ANSWER))
        except NoAuthError:
            denied.append(path)
    version, mode = _VERSION.search(srvr), _MODE.search(srvr)
    return ZooKeeperFacts(
        session_timeout=session_timeout,
        version=version and version[1],
        mode=mode and mode[1],
        chroot_exists=exists,
        skew=skew,
        skew_error=skew_error,
        denied=tuple(denied),
        opened=tuple(_open_nodes(client, [path for path in paths if exists])),
        children=children,
    )


def _open_nodes(client: Any, roots: Collection[str]) -> Iterator[str]:
    """Yield the nodes at and below the roots that everybody may change.

    Level by level, so that where there are many the upper ones are looked at.
    """
    level, seen = list(roots), set[str]()
    while level and len(seen) < MOST_LOOKED_AT:
        fresh = [path for path in dict.fromkeys(level) if path not in seen]
        looked_at = fresh[: MOST_LOOKED_AT - len(seen)]
        seen.update(looked_at)
        acls = [(path, client.get_acls_async(path)) for path in looked_at]
        for path, asked in acls:
            with suppress(NoNodeError, NoAuthError):
                entries, _ = asked.get(timeout=_ANSWER)
                granted = [each.perms for each in entries if each.id.scheme == "world"]
                if any(perms & ~Permissions.READ for perms in granted):
                    yield path
        below = [(path, client.get_children_async(path)) for path in looked_at]
        level = []
        for path, asked in below:
            with suppress(NoNodeError, NoAuthError):
                level += [f"{path}/{name}" for name in asked.get(timeout=_ANSWER)]


def _skew(client: Any) -> tuple[float, float]:
    """Return by how many seconds the server's clock is ahead, and how wrong that may be."""
    path = f"/headrace-doctor-{uuid.uuid4().hex}"
    before = time.time()
    _, stat = client.create_async(path, b"", ephemeral=True, include_data=True).get(timeout=_ANSWER)
    after = time.time()
    client.delete_async(path).get(timeout=_ANSWER)
    return stat.ctime / 1000 - (before + after) / 2, (after - before) / 2

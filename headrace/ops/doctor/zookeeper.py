"""Checks of ZooKeeper: versions, time-outs, permissions, clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordinators.znodes import GroupPaths
from headrace.core.errors import HeadraceError
from headrace.core.findings import error, ok, warning
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.zookeeper.settings import session_settings
from headrace.zookeeper.survey import survey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.config import Config, ZooKeeperConfig
    from headrace.core.findings import Finding
    from headrace.zookeeper.survey import ZooKeeperFacts


#: The oldest servers that tell the state of a node with its creation, as each claim wants to know.
OLDEST = (3, 5)


#: Seconds that clocks may differ: what people compare in logs, and what --until goes by.
SKEW = 2.0


def check_zookeeper(config: Config) -> Iterator[Finding]:
    """Open a session, and look at the nodes of the channels' groups."""
    groups = [channel.group for channel in config.channels.values()]
    paths = [path for group in groups for path in (GroupPaths(group).root, GroupPaths(group).ids)]
    try:
        facts = survey(session_settings(config.zookeeper), paths)
    except HeadraceError as problem:
        advice = "check that the servers run, zookeeper.hosts, and TLS and credentials"
        yield error("zookeeper", str(problem), advice)
        return
    yield from judge(facts, config)


def judge(facts: ZooKeeperFacts, config: Config) -> Iterator[Finding]:
    """Yield findings on what the facts mean for the configuration."""
    wanted, where = config.zookeeper, ",".join(config.zookeeper.hosts)
    yield _version(facts, where)
    if facts.mode == "standalone":
        advice = "for production run three or five servers"
        yield warning("zookeeper ensemble", "one server alone: its loss stops delivery", advice)
    if facts.chroot_exists:
        yield ok("zookeeper chroot", wanted.chroot or "/")
    else:
        yield ok("zookeeper chroot", f"{wanted.chroot} is made at the first start")
    for path in facts.denied:
        advice = (
            "correct zookeeper.digest or .sasl, or the node's ACL; all members need one identity"
        )
        yield error("zookeeper access", f"{path} is denied to this identity", advice)
    yield _acl(facts.opened, wanted)
    yield _timeout(facts.session_timeout, wanted.session_timeout)
    yield from check_standbys(facts, config)
    if facts.skew is not None:
        yield _skew(facts.skew, facts.skew_error)


def check_standbys(facts: ZooKeeperFacts, config: Config) -> Iterator[Finding]:
    """Check that groups that run have enough members for the copies of their state."""
    for name, channel in config.channels.items():
        chosen = channel.processor
        members = facts.children.get(GroupPaths(channel.group).ids, 0)
        if not isinstance(chosen, StateProcessorConfig) or not chosen.state.standbys or not members:
            continue
        check, wanted = f"standbys of channel {name}", chosen.state.standbys
        if members > wanted:
            yield ok(check, f"{wanted} for each task, of {members} members")
        else:
            seen = f"state.standbys is {wanted}, and the group has {members} members"
            advice = f"run {wanted + 1} or more: a task has its owner, and others as standbys"
            yield warning(check, seen, advice)


def _version(facts: ZooKeeperFacts, where: str) -> Finding:
    if facts.version is None:
        return ok(
            "zookeeper", f"{where} answers; it does not tell its version (srvr is not allowed)"
        )
    seen = f"{where} is ZooKeeper {facts.version}, {facts.mode or 'mode unknown'}"
    if tuple(int(part) for part in facts.version.split(".")[:2]) < OLDEST:
        return error("zookeeper", seen, "take ZooKeeper 3.5 or later")
    return ok("zookeeper", seen)


def _acl(opened: Collection[str], wanted: ZooKeeperConfig) -> Finding:
    check, ways = "zookeeper acl", "take partitions away, or move offsets"
    if wanted.node_acl == "open":
        advice = (
            "set zookeeper.acl: creator, if all members have one identity"
            if wanted.has_identity
            else "give zookeeper.digest or .sasl, which closes nodes to everybody else"
        )
        seen = f"nodes are made open: all clients of ZooKeeper may {ways}"
        return warning(check, seen, advice)
    if opened:
        seen = f"{len(opened)} nodes are open, such as {min(opened)}: everybody may {ways}"
        return warning(check, seen, "close them with setAcl -R, as docs/upgrade.md says")
    return ok(check, f"{wanted.node_acl}")


def _timeout(agreed: float, asked: float) -> Finding:
    if abs(agreed - asked) < 0.001:  # noqa: PLR2004 - milliseconds
        return ok("zookeeper session", f"{agreed:g} s, as asked for")
    return warning(
        "zookeeper session",
        f"{agreed:g} s instead of the {asked:g} s asked for",
        "the servers bound sessions to 2 to 20 ticks: change zookeeper.session_timeout, or their "
        "minSessionTimeout and maxSessionTimeout",
    )


def _skew(skew: float, wrong_by: float) -> Finding:
    seen = f"this machine and ZooKeeper's differ by {abs(skew):.1f} s"
    if abs(skew) > SKEW + wrong_by:
        return warning("clock", seen, "synchronize both clocks (chrony, systemd-timesyncd)")
    return ok("clock", seen)

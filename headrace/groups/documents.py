"""A group's report as JSON. The keys are stable; later versions may add some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config.kinds.moments import format_moment
from headrace.groups.report import Standing
from headrace.offsets.views import lag

if TYPE_CHECKING:
    from headrace.groups.report import GroupReport, MemberReport, PartitionReport
    from headrace.records import TopicPartition


def document(report: GroupReport) -> dict[str, Any]:
    """Return the report for scripts; null where something is not known or not there."""
    return {
        "channel": report.channel,
        "group": report.group,
        "taken_at": moment(report.taken_at),
        "state": report.activity.value,
        "members": [_member(each) for each in report.members],
        "partitions": [_partition(each, report.taken_at) for each in report.partitions],
        "unowned": [_name(p.partition) for p in report.standing(Standing.UNOWNED)],
        "pending": [
            {**_name(p.partition), "member": p.meant_for} for p in report.standing(Standing.PENDING)
        ],
        "moving": [
            {**_name(p.partition), "owner": p.owner, "member": p.meant_for}
            for p in report.standing(Standing.MOVING)
        ],
        "contended": [{**_name(p), "members": list(m)} for p, m in report.contended.items()],
        "missing": [
            {**_name(p), "member": member} for member, ps in report.missing.items() for p in ps
        ],
        "foreign": [{**_name(p), "owner": owner} for p, owner in report.foreign.items()],
        "modes": sorted(mode.value for mode in report.modes),
        "mixed_modes": len(report.modes) > 1,
        "unknown_topics": list(report.unknown_topics),
        "errors": list(report.errors),
        "notes": list(report.notes),
    }


def moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return format_moment(int(seconds) * 1000)


def _member(member: MemberReport) -> dict[str, Any]:
    found = member.document
    info = None if found is None else found.info
    return {
        "name": member.name,
        "host": None if found is None else found.host,
        "pid": None if found is None else found.pid,
        "software": None if found is None else found.software,
        "since": None if found is None else moment(found.since),
        "mode": None if info is None else info.mode.value,
        "topics": None if info is None else sorted(info.topics),
        "weight": None if info is None else info.weight,
        "partitions_per_topic": None if info is None else info.partitions_per_topic,
        "lists": None if info is None else {t: list(n) for t, n in sorted(info.lists.items())},
        "draining": None if info is None else info.draining,
        "owned": member.owned,
        "problem": member.problem,
    }


def _partition(found: PartitionReport, now: float) -> dict[str, Any]:
    claim, latest, offsets = found.claim, found.latest, found.offsets
    return {
        **_name(found.partition),
        "state": found.standing.value,
        "owner": found.owner,
        "member": found.meant_for,
        "epoch": found.epoch,
        "claimed_at": None if claim is None else moment(claim.since),
        "claim_age_s": None if claim is None else claim_age(now, claim.since),
        "last_owner": None if latest is None else latest.member,
        "clean_end": None if latest is None or found.owner is not None else latest.clean_end,
        "committed_offset": None if offsets is None else offsets.next,
        "committed_in": None if found.kept_in is None else found.kept_in.value,
        "log_start": None if offsets is None else offsets.low,
        "log_end": None if offsets is None else offsets.high,
        "lag": None if offsets is None else lag(offsets),
        "notes": list(found.notes),
    }


def claim_age(now: float, since: float) -> int:
    """Return whole seconds; the owner's clock may be ahead of ours."""
    return max(0, int(now - since))


def _name(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}

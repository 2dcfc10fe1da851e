"""A group's report as plain lines: the kind, the name, then ``key=value``. Fit for grep and awk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.groups.documents import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.groups.report import GroupReport

_MEMBER = ("host", "pid", "software", "since", "mode", "draining", "owned", "problem")
_PARTITION = (
    "state",
    "owner",
    "member",
    "epoch",
    "claimed_at",
    "claim_age_s",
    "clean_end",
    "committed_offset",
    "committed_in",
    "log_end",
    "lag",
)


def lines(report: GroupReport) -> Iterator[str]:
    """Yield one line for the group, for each member and partition, and for each finding.

    Values without blanks and quotes stand as they are, others as JSON strings; "-" is nothing.
    """
    found = document(report)
    channel = {"channel": report.channel}
    members, partitions = found["members"], found["partitions"]
    yield _line(
        "group",
        report.group,
        channel
        | {"state": found["state"], "members": len(members), "partitions": len(partitions)}
        | {"lag": total_lag(report), "modes": ",".join(found["modes"])},
    )
    for member in members:
        yield _line("member", member["name"], channel | _chosen(member, _MEMBER))
    for each in partitions:
        notes = {"note": "; ".join(each["notes"])} if each["notes"] else {}
        yield _line("partition", _named(each), channel | _chosen(each, _PARTITION) | notes)
    yield from findings(report, channel)


def findings(report: GroupReport, channel: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield one line for each thing that somebody may have to look into."""
    found, more = document(report), channel or {}
    for kind in ("unowned", "pending", "moving", "contended", "missing", "foreign"):
        for each in found[kind]:
            rest = {k: v for k, v in each.items() if k not in {"topic", "partition"}}
            yield _line(kind, _named(each), more | rest)
    if found["mixed_modes"]:
        yield _line("mixed_modes", ",".join(found["modes"]), more)
    for topic in found["unknown_topics"]:
        yield _line("unknown_topic", topic, more)
    for note in found["notes"]:
        yield _line("note", note, more)


def total_lag(report: GroupReport) -> int | None:
    """Return the lag of all partitions, None where that of any is not known."""
    lags = [each["lag"] for each in document(report)["partitions"]]
    return None if None in lags else sum(lags)


def text(value: Any) -> str:
    """Return a value as it stands in a line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return text(",".join(value))
    written = str(value)
    plain = written.isprintable() and not set(written) & set(" \"'=")
    return written if plain else json.dumps(written, ensure_ascii=False)


def _line(kind: str, name: str, values: dict[str, Any]) -> str:
    return " ".join([kind, text(name), *(f"{k}={text(v)}" for k, v in values.items())])


def _named(each: dict[str, Any]) -> str:
    return f"{each['topic']}-{each['partition']}"


def _chosen(values: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: values[key] for key in keys}

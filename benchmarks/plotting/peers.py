"""Rates, memory and threads of a channel and of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.sides import SIDES, Role
from benchmarks.plotting.charts import CEILING, OURS, PEER, Bar, bars
from benchmarks.plotting.section import Section, heading, table, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    Line = Mapping[str, Any]

_WORKS = {"sum": "Summing value lengths", "json": "Counting JSON by key"}

_COLOURS = {Role.OURS: OURS, Role.PEER: PEER, Role.CEILING: CEILING}

_ROLES = {side.name: side.role for side in SIDES}

#: What a side takes, and what that is called.
_TAKEN = {
    "memory_mib": "memory",
    "threads": "threads",
    "cpu_s_per_million": "processor time per record",
}

_METHOD = """\
One broker and one ZooKeeper on the same machine, {partitions} partitions, values of {size} bytes,
{rounds} rounds in alternating order, a process for each side and round (with Spark one for all
rounds); counts, keys and commits checked. Each side reads a topic that takes it about four
seconds. A ratio is the median of the rounds' ratios.
"""


def section(line: Line) -> Section:
    """Return what was compared, the targets, all sides, and where a peer is better."""
    works = [work for work in _WORKS if f"{work}_raw" in line]
    charts = {f"peers-{work}.svg": _chart(line, work) for work in works}
    parts = [heading(line), _METHOD.format(**line), _versions(line), _targets(line, works)]
    for work in works:
        parts += [
            f"### {_WORKS[work]}\n",
            f"![{_WORKS[work]}: rates](results/peers-{work}.svg)\n",
            _sides(line, work),
            _better(line, work),
        ]
    return Section("\n".join(part for part in parts if part), charts)


def _of(line: Line, work: str) -> dict[str, dict[str, Any]]:
    """Return the sides of one kind of work, in the order of the comparison."""
    sides = {side.name: line.get(f"{work}_{side.name}") for side in SIDES}
    return {name: found for name, found in sides.items() if found}


def _chart(line: Line, work: str) -> bytes:
    sides = _of(line, work)
    entries = [
        Bar(name, found["rate"] / 1000, _COLOURS[_ROLES[name]])
        for name, found in sorted(sides.items(), key=lambda side: -side[1]["rate"])
    ]
    return bars(f"{_WORKS[work]}: thousand records a second", entries)


def _versions(line: Line) -> str:
    listed = [
        f"{name} with {', '.join(f'{package} {each}' for package, each in found.items())}"
        for name, found in line["versions"].items()
    ]
    left_out = f" Left out: {', '.join(line['left_out'])}." if line["left_out"] else ""
    return f"Versions: {'; '.join(listed)}.{left_out}\n"


def _targets(line: Line, works: list[str]) -> str:
    rows = []
    for work in works:
        prefix = "" if work == "sum" else f"{work}_"
        for name, target in (
            ("ratio_to_raw", line["target_to_raw"]),
            ("ratio_to_fastest_peer", line["target_to_fastest_peer"]),
        ):
            figure = line.get(prefix + name)
            said = f"`{prefix}{name}`"
            if name == "ratio_to_fastest_peer":
                said += f" ({line[f'{prefix}fastest_peer']})"
            rows.append((said, figure, target, verdict(figure, target, at_least=True)))
    return table(("figure", "measured", "target", ""), rows)


def _sides(line: Line, work: str) -> str:
    prefix = "" if work == "sum" else f"{work}_"
    rows = []
    for name, found in _of(line, work).items():
        ratio = line.get(f"{prefix}ratio_to_{name}", "")
        rounds = ", ".join(f"{rate / 1000:,.0f}" for rate in found["rates"])
        taken = (found["cpu_s_per_million"], found["cores"], found["memory_mib"], found["threads"])
        rows.append((name, round(found["rate"] / 1000), rounds, ratio, *taken))
    head = (
        "side",
        "1,000 records/s",
        "rounds",
        "`headrace` is faster by",
        "processor s per million",
        "cores busy",
        "MiB",
        "threads",
    )
    return table(head, rows)


def _better(line: Line, work: str) -> str:
    """Return where a peer takes less or is faster than the fastest of the channels."""
    sides = _of(line, work)
    ours = {name: found for name, found in sides.items() if _ROLES[name] is Role.OURS}
    peers = {name: found for name, found in sides.items() if _ROLES[name] is Role.PEER}
    if not ours or not peers:
        return ""
    best = max(ours, key=lambda name: ours[name]["rate"])
    said = [
        f"{name} is faster than `{other}`."
        for other in ours
        for name in peers
        if peers[name]["rate"] > ours[other]["rate"]
    ]
    for key, what in _TAKEN.items():
        names = [name for name in peers if peers[name][key] < ours[best][key]]
        if names:
            values = ", ".join(f"{name} {peers[name][key]:,}" for name in names)
            said.append(f"Less {what} than `{best}` ({ours[best][key]:,}) take {values}.")
    if not said:
        return ""
    return "Where a peer is better:\n\n" + "\n".join(f"* {each}" for each in said) + "\n"

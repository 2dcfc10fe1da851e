"""From rounds to what the comparison says."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.environments import versions
from benchmarks.peers.sides import SIDES, Role

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from benchmarks.peers.run import Plan
    from benchmarks.rounds import Rounds

TARGET_TO_RAW = 0.9
TARGET_TO_FASTEST = 2.0

#: The side that runs without reducer, whose ratios come without a name before them.
_INLINE = "headrace"

#: What a plan says of how the figures came about.
_OF_PLAN = ("rounds", "size", "partitions")


def figures(plan: Plan, rounds: Mapping[str, Rounds], without: Collection[str]) -> dict[str, Any]:
    """Return ratios first, then what each side took, then how it was measured."""
    found: dict[str, Any] = {}
    for work, measured in rounds.items():
        found |= _ratios(_prefix(work), measured)
    found |= {"target_to_raw": TARGET_TO_RAW, "target_to_fastest_peer": TARGET_TO_FASTEST}
    for work, measured in rounds.items():
        found |= {f"{work}_{side}": _side(measured, side) for side in measured.results}
    return found | _conditions(plan, rounds, without)


def by_round(rounds: Mapping[str, Rounds]) -> dict[str, list[float]]:
    """Return what each ratio to the bare loop and to the fastest peer was round by round."""
    return {
        name: ratios
        for work, measured in rounds.items()
        for name, ratios in _compared(_prefix(work), measured).items()
    }


def _prefix(work: str) -> str:
    return "" if work == "sum" else f"{work}_"


def _named(rounds: Rounds, role: Role) -> list[str]:
    roles = {side.name: side.role for side in SIDES}
    return [name for name in rounds.results if roles[name] is role]


def _fastest(rounds: Rounds) -> str | None:
    """Return the peer with the highest median, None without peers."""
    peers = _named(rounds, Role.PEER)
    return max(peers, key=lambda name: rounds.median(name, "rate"), default=None)


def _compared(prefix: str, rounds: Rounds) -> dict[str, list[float]]:
    others = {"raw": "raw", "fastest_peer": _fastest(rounds)}
    found = {}
    for name in _named(rounds, Role.OURS):
        kind = name.removeprefix(_INLINE).lstrip("_")
        place = f"{prefix}{kind}_" if kind else prefix
        for called, other in others.items():
            if other is not None:
                found[f"{place}ratio_to_{called}"] = rounds.ratios(name, other, "rate")
    return found


def _ratios(prefix: str, rounds: Rounds) -> dict[str, Any]:
    """Return medians of the rounds' ratios, and of those to the bare loop the rounds' own."""
    found: dict[str, Any] = {}
    for name, ratios in _compared(prefix, rounds).items():
        found[name] = round(median(ratios), 3)
        if name.endswith("_to_raw"):
            each = [round(ratio, 3) for ratio in ratios]
            found[name.replace("ratio_to_raw", "ratios_to_raw")] = each
    ours = _named(rounds, Role.OURS)
    for peer in _named(rounds, Role.PEER):
        found[f"{prefix}ratio_to_{peer}"] = round(rounds.ratio(ours[0], peer, "rate"), 3)
    return found | {f"{prefix}fastest_peer": _fastest(rounds)}


def _side(rounds: Rounds, name: str) -> dict[str, Any]:
    """Return medians, and the rates round by round."""
    records = rounds.median(name, "records")
    seconds = rounds.median(name, "seconds")
    used = rounds.median(name, "cpu_seconds")
    return {
        "rate": round(rounds.median(name, "rate")),
        "rates": rounds.values(name, "rate"),
        "records": round(records),
        "seconds": seconds,
        "first_batch_s": rounds.median(name, "first_batch_s"),
        "cores": round(used / seconds, 2),
        "cpu_s_per_million": round(used / records * 1e6, 2),
        "memory_mib": round(max(rounds.values(name, "memory_mib"))),
        "threads": max(rounds.values(name, "threads")),
    }


def _conditions(
    plan: Plan, rounds: Mapping[str, Rounds], without: Collection[str]
) -> dict[str, Any]:
    sides: Sequence[str] = list(next(iter(rounds.values())).results)
    peers = [side.name for side in SIDES if side.role is Role.PEER and side.name in sides]
    return {
        **{name: value for name, value in asdict(plan).items() if name in _OF_PLAN},
        "left_out": sorted(without),
        "versions": {
            "headrace": {name: version(name) for name in ("confluent-kafka", "pyspark", "pyarrow")},
            **{peer: versions(peer) for peer in peers},
        },
    }

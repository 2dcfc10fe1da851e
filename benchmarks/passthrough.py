"""What a channel keeps of the rate at which records can be read at all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.raw_loop import RawLoop
from benchmarks.report import Report, say
from benchmarks.rounds import MARGIN, SHORTEST, alternate
from benchmarks.sides import Side
from benchmarks.summing import BY_RECORDS, BY_TABLES, RecordSummingChannel, SummingChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack

TARGET = 0.8

_TOPIC = "passthrough"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is read: ``size`` in bytes; a round of the raw loop lasts ``seconds`` or longer.

    One of less than ``shortest`` seconds is refused.
    """

    rounds: int = 5
    seconds: float = 6.0
    shortest: float = SHORTEST
    probe: int = 1_000_000
    partitions: int = 4
    size: int = 160


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with (
        stack.servers() as servers,
        Side("raw", RawLoop, _settings(servers, "raw", {})) as raw,
        Side("channel", SummingChannel, _settings(servers, "channel", BY_TABLES)) as channel,
        Side("records", RecordSummingChannel, _settings(servers, "records", BY_RECORDS)) as records,
        Side("defaults", SummingChannel, _settings(servers, "defaults", {})) as defaults,
    ):
        return _compare(plan, servers, raw, (channel, records, defaults))


def _settings(servers: LocalStack, name: str, changed: dict[str, Any]) -> dict[str, str]:
    config = stack.configuration(
        servers.directory / name,
        stack.addresses(servers),
        {
            "topics": [_TOPIC],
            "group": "bench",
            "processor": {"type": "custom", "factory": "benchmarks.summing:SummingProcessor"},
            **changed,
        },
    )
    return {"config": str(config)}


def _compare(plan: Plan, servers: LocalStack, raw: Side, channels: tuple[Side, ...]) -> Report:
    stack.fill(servers, _TOPIC, records=plan.probe, size=plan.size, partitions=plan.partitions)
    raw.round(_request(servers, plan, "probe-0"))
    probed = raw.round(_request(servers, plan, "probe-1"))
    wanted = int(probed["rate"] * plan.seconds)
    say(f"raw loop reads {probed['rate']:,} records a second; a round takes {wanted:,}")
    if wanted > plan.probe:
        stack.append(servers, _TOPIC, records=wanted - plan.probe, size=plan.size)

    groups = count()

    def one(side: Side) -> Callable[[], Measured]:
        return lambda: side.round(_request(servers, plan, f"{side.name}-{next(groups)}"))

    sides = {side.name: one(side) for side in (raw, *channels)}
    warm = alternate(sides, 1, say=lambda line: say(f"warm-up, not counted: {line}"), shortest=0.0)
    quickest = min(warm.median(name, "seconds") for name in sides)
    lacking = plan.shortest * MARGIN / quickest - 1
    if lacking > 0:
        more = int(warm.median("raw", "records") * lacking)
        say(f"a side took {quickest} s, so {more:,} records are added")
        stack.append(servers, _TOPIC, records=more, size=plan.size)
    rounds = alternate(sides, plan.rounds, say=say, shortest=plan.shortest)
    return Report(
        "passthrough",
        {
            "ratio_to_raw": round(rounds.ratio("channel", "raw", "rate"), 3),
            "target": TARGET,
            "ratio_by_records": round(rounds.ratio("records", "raw", "rate"), 3),
            "ratio_with_defaults": round(rounds.ratio("defaults", "raw", "rate"), 3),
            "raw_records_per_second": round(rounds.median("raw", "rate")),
            "channel_records_per_second": round(rounds.median("channel", "rate")),
            "rounds": plan.rounds,
            "records": round(rounds.median("channel", "records")),
            "record_bytes": plan.size,
            "partitions": plan.partitions,
            "channel_settings": BY_TABLES,
            "ratios": [round(ratio, 3) for ratio in rounds.ratios("channel", "raw", "rate")],
            "raw_seconds": rounds.values("raw", "seconds"),
            "channel_seconds": rounds.values("channel", "seconds"),
            "raw_cpu_seconds": rounds.median("raw", "cpu_seconds"),
            "channel_cpu_seconds": rounds.median("channel", "cpu_seconds"),
            "commits_per_round": rounds.values("channel", "commits"),
        },
        {
            "ratio_to_raw": rounds.ratios("channel", "raw", "rate"),
            "ratio_by_records": rounds.ratios("records", "raw", "rate"),
            "ratio_with_defaults": rounds.ratios("defaults", "raw", "rate"),
        },
    )


def _request(servers: LocalStack, plan: Plan, group: str) -> dict[str, Any]:
    ends = stack.ends(servers, _TOPIC, plan.partitions)
    return {"topic": _TOPIC, "group": group, "ends": ends}

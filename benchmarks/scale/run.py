"""All numbers of daemons, workers and partitions on one broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, require_long
from benchmarks.scale.daemons import read_together
from benchmarks.scale.figures import figures
from benchmarks.scale.rest import at_rest
from benchmarks.scale.spark import reduce_on
from benchmarks.scale.used import Usage

if TYPE_CHECKING:
    from headrace.devstack import LocalStack


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried. ``size`` of the values in bytes, ``batch`` a micro-batch's most records.

    Topics of ``spark_partitions`` are among those of ``partitions``; no ``workers``, no Spark. A
    round that takes less than ``shortest`` seconds is refused: four daemons on two cores read 1.7
    million records a second.
    """

    partitions: tuple[int, ...] = (4, 32, 250, 1000)
    daemons: tuple[int, ...] = (1, 2, 4)
    spark_partitions: tuple[int, ...] = (4, 32, 250)
    workers: tuple[int, ...] = (1, 2)
    records: int = 8_000_000
    size: int = 160
    batch: int = 250_000
    shortest: float = SHORTEST


def run(plan: Plan | None = None) -> Report:
    """Measure. Blocks for some minutes.

    Raises:
        ShortRoundError: a round was too short to say anything.
    """
    plan = plan or Plan()
    with stack.servers() as servers:
        usage = Usage()
        for partitions in plan.partitions:
            _fill(servers, plan, partitions)
        daemons = {
            str(number): _with_daemons(servers, plan, usage, number) for number in plan.daemons
        }
        rest = {str(number): _at_rest(servers, plan, number) for number in plan.daemons}
        workers = {
            str(number): _with_workers(servers, plan, usage, number) for number in plan.workers
        }
    return Report("scale", figures(plan, daemons, rest, workers))


def _fill(servers: LocalStack, plan: Plan, partitions: int) -> None:
    stack.fill(
        servers,
        _name(partitions),
        records=plan.records,
        size=plan.size,
        partitions=partitions,
        keyed=True,
    )


def _topic(servers: LocalStack, plan: Plan, partitions: int) -> stack.Topic:
    """Return a topic as it is now: each round of daemons leaves a few more records there."""
    ends = stack.ends(servers, _name(partitions), partitions)
    records = sum(ends.values())
    return stack.Topic(_name(partitions), records, records * plan.size, ends)


def _name(partitions: int) -> str:
    return f"scale-{partitions}"


def _with_daemons(
    servers: LocalStack, plan: Plan, usage: Usage, number: int
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for partitions in plan.partitions:
        topic, group = _topic(servers, plan, partitions), f"daemons-{number}-{partitions}"
        measured = read_together(servers, topic, usage, group, number)
        name = f"{number} daemons, {partitions} partitions"
        say(f"{name}: {measured}")
        require_long(name, measured, plan.shortest)
        found[str(partitions)] = measured
    return found


def _at_rest(servers: LocalStack, plan: Plan, number: int) -> dict[str, Any]:
    topic = _topic(servers, plan, max(plan.partitions))
    found = at_rest(servers, topic, f"rest-{number}", number)
    say(f"{number} daemons at rest: {found}")
    return found


def _with_workers(
    servers: LocalStack, plan: Plan, usage: Usage, number: int
) -> dict[str, dict[str, Any]]:
    topics = [_topic(servers, plan, partitions) for partitions in plan.spark_partitions]
    found = reduce_on(servers, topics, usage, workers=number, batch=plan.batch)
    for partitions, each in found.items():
        require_long(f"{number} workers, {partitions} partitions", each, plan.shortest)
    return {str(partitions): each for partitions, each in found.items()}

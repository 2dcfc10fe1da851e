"""Rounds of all sides on one broker, for both kinds of work."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import stack
from benchmarks.peers.environments import python_of
from benchmarks.peers.figures import by_round, figures
from benchmarks.peers.process import PeerError
from benchmarks.peers.sides import PEERS, SIDES, Role, Runner
from benchmarks.peers.topics import Topics
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, alternate, long_enough

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.peers.sides import Side
    from benchmarks.rounds import Measured, Rounds

#: What the sides do: sum the lengths of values, and count JSON by a field.
WORKS = ("sum", "json")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is read. ``size`` in bytes; a side's round is to take about ``seconds``.

    The first round of each side, of ``probe`` records and not counted, is cold. Others follow, with
    more, until one takes long enough for the rounds that count: those of less than ``shortest``
    seconds are refused. Without ``ours`` there are all channels.
    """

    rounds: int = 3
    seconds: float = 6.0
    shortest: float = SHORTEST
    probe: int = 100_000
    most: int = 12_800_000
    partitions: int = 4
    size: int = 160
    works: Sequence[str] = WORKS
    ours: Sequence[str] = ()


def run(without: Collection[str] = (), plan: Plan | None = None) -> Report:
    """Compare, round by round. Blocks for some minutes, and longer where peers are installed first.

    Raises:
        PeerError: a peer cannot be installed or run; ``without`` leaves it out.
    """
    plan = plan or Plan()
    sides = _wanted(plan, without)
    for side in sides:
        if side.role is Role.PEER:
            python_of(side.name)  # nothing else is begun while one of them cannot be had
    with stack.servers() as servers, ExitStack() as closing:
        topics = Topics(servers, size=plan.size, partitions=plan.partitions, most=plan.most)
        rounds = {}
        for work in plan.works:
            runners = [Runner(side, work, servers) for side in sides]
            for runner in runners:
                closing.callback(runner.close)
            rounds[work] = _compare(plan, runners, topics)
    return Report("peers", figures(plan, rounds, without), by_round(rounds))


def _wanted(plan: Plan, without: Collection[str]) -> list[Side]:
    unknown = sorted(set(without) - set(PEERS))
    if unknown:
        raise PeerError(f"{', '.join(unknown)} is no peer; there are {', '.join(PEERS)}")
    ours = plan.ours or [side.name for side in SIDES if side.role is Role.OURS]
    return [
        side
        for side in SIDES
        if side.name not in without and (side.role is not Role.OURS or side.name in ours)
    ]


def _compare(plan: Plan, runners: Sequence[Runner], topics: Topics) -> Rounds:
    """Find out how much each side is to read, then measure."""
    chosen = {
        runner: long_enough(runner.name, runner.round, topics.of, plan, say=say)
        for runner in runners
    }

    def one(runner: Runner) -> Callable[[], Measured]:
        return lambda: runner.round(chosen[runner])

    sides = {runner.side.name: one(runner) for runner in runners}
    return alternate(sides, plan.rounds, say=say, shortest=plan.shortest)

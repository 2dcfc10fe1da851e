"""How long a group of daemons takes to share its partitions anew after each kind of change."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import stack
from benchmarks.allocation import allocate_ms
from benchmarks.members import Member, await_shares, await_true
from benchmarks.report import Report, say
from headrace.devstack.zookeeper import four_letter_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.devstack import LocalStack

#: The most that each figure may be.
TARGETS = {
    "join_stable_s": 2.0,
    "moves_over_minimum": 0,
    "failover_over_session_s": 1.0,
    "restart_takeover_s": 0.5,
    "leave_s": 2.0,
    "join_1000_s": 5.0,
    "allocate_10k_ms": 100.0,
    "threads_growth": 0,
}

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried. ``session`` is in seconds; ``sizes`` are what one member owns alone."""

    rounds: int = 3
    partitions: int = 16
    session: float = 4.0
    sizes: tuple[int, ...] = (10, 100, 1000)
    records: int = 2000


def run(plan: Plan | None = None) -> Report:
    """Measure on one ZooKeeper and one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        rounds = [_round(plan, servers, number) for number in range(plan.rounds)]
        sizes = {size: _size(plan, servers, size) for size in plan.sizes}
    large = sizes[max(plan.sizes)]
    small = sizes[min(plan.sizes)]
    by_round = {
        name: [each[name] for each in rounds]
        for name in (
            "join_stable_s",
            "failover_over_session_s",
            "restart_takeover_s",
            "leave_s",
        )
    }
    figures: dict[str, Any] = {name: round(median(values), 3) for name, values in by_round.items()}
    figures["moves_over_minimum"] = max(
        each["moves_over_minimum"] for each in [*rounds, *sizes.values()]
    )
    figures[f"join_{max(plan.sizes)}_s"] = large["join_s"]
    figures["allocate_10k_ms"] = allocate_ms(10_000, 200)
    figures["threads_growth"] = large["threads"] - small["threads"]
    missed = [name for name, most in TARGETS.items() if figures.get(name, 0) > most]
    return Report(
        "coordination",
        {
            **figures,
            "missed": missed,
            "zk_ops_per_partition": large["zk_ops_per_partition"],
            "threads": {str(size): each["threads"] for size, each in sizes.items()},
            "memory_mib": {str(size): each["memory_mib"] for size, each in sizes.items()},
            "targets": TARGETS,
            "rounds": rounds,
            "sizes": {str(size): each for size, each in sizes.items()},
            "session_s": plan.session,
            "partitions": plan.partitions,
        },
        by_round,
    )


def _round(plan: Plan, servers: LocalStack, number: int) -> dict[str, Any]:
    """Let two members go through each kind of change once."""
    topic = f"round-{number}"
    records = plan.partitions * plan.records
    stack.fill(servers, topic, records=records, size=16, partitions=plan.partitions, keyed=True)
    with _members(plan, servers, topic, {}) as (one, two):
        half = plan.partitions // 2
        one.start()
        await_shares([one], [plan.partitions])
        joined, join_moves = _join(one, two, half)
        failover, kill_moves = _failover(plan, one, two, half)
        _, again_moves = _join(two, one, half)
        restart = _restart(plan, one, two, half)
        leave = _leave(one, two, half)
        measured = {
            "join_stable_s": round(joined, 3),
            "moves_over_minimum": join_moves + kill_moves + again_moves + restart[1] + leave[1],
            "failover_over_session_s": round(failover, 3),
            "restart_takeover_s": round(restart[0], 3),
            "leave_s": round(leave[0], 3),
            "process_start_s": round(restart[2], 3),
        }
    say(f"{topic}: {measured}")
    return measured


@contextmanager
def _members(
    plan: Plan, servers: LocalStack, topic: str, options: dict[str, Any]
) -> Iterator[tuple[Member, Member]]:
    with ExitStack() as ending:
        one, two = (Member(servers, topic, n, plan.session, options) for n in ("one", "two"))
        ending.callback(one.kill)
        ending.callback(two.kill)
        yield one, two


def _join(old: Member, new: Member, share: int) -> tuple[float, int]:
    """Let a second member join: seconds until both deliver what is theirs, and needless moves."""
    new.start()
    at = new.ready()
    await_shares([old, new], [share, share])
    return _last_delivery(at, old, new) - at, _moves(at, old, new) - share


def _failover(plan: Plan, dying: Member, heir: Member, share: int) -> tuple[float, int]:
    """Kill a member: seconds beyond the session, and needless moves."""
    at = dying.kill()
    await_shares([heir], [2 * share])
    return _last_delivery(at, heir) - at - plan.session, _moves(at, heir) - share


def _restart(plan: Plan, dying: Member, other: Member, share: int) -> tuple[float, int, float]:
    """Kill a member and start it at once.

    Returns the seconds to its first delivery, less the start's; the needless moves; and the
    start's seconds. A start that outlasts the session has the other member take over, which is
    not needless then; the last heartbeat may have been given a sixth of a session before.
    """
    at = dying.kill()
    dying.start()
    ready = dying.ready()
    await_shares([dying, other], [share, share])
    first = dying.since(ready, "delivered")[0].at
    start = ready - dying.started
    moves = _moves(at, dying, other) - share if ready - at < plan.session * 2 / 3 else 0
    return first - at - start, moves, start


def _leave(leaving: Member, heir: Member, share: int) -> tuple[float, int]:
    """Stop a member: seconds until the other delivers everything, and needless moves."""
    at = leaving.stop()
    await_shares([heir], [2 * share])
    return _last_delivery(at, heir) - at, _moves(at, heir) - share


def _last_delivery(at: float, *members: Member) -> float:
    return max(note.at for member in members for note in member.since(at, "delivered"))


def _moves(at: float, *members: Member) -> int:
    return sum(len(member.since(at, "assigned")) for member in members)


def _size(plan: Plan, servers: LocalStack, size: int) -> dict[str, Any]:
    """Let one member own ``size`` partitions, then another one join."""
    topic = f"size-{size}"
    stack.fill(servers, topic, records=size * 30, size=16, partitions=size, keyed=True)
    with _members(plan, servers, topic, {"rest": 10.0}) as (one, two):
        one.start()
        begun = one.ready()
        await_true(lambda: len(one.held()) == size, f"{topic} to be owned")
        alone = _last_delivery(begun, one) - begun
        await_shares([one], [size])
        process = psutil.Process(one.pid)
        threads, memory = process.num_threads(), process.memory_info().rss
        before = requests(servers)
        joined, moves = _join(one, two, size // 2)
        operations = requests(servers) - before
        measured = {
            "threads": threads,
            "memory_mib": round(memory / _MIB, 1),
            "alone_s": round(alone, 3),
            "join_s": round(joined, 3),
            "moves_over_minimum": moves,
            "zk_ops_per_partition": round(operations / (size // 2), 2),
        }
    say(f"{topic}: {measured}")
    return measured


def requests(servers: LocalStack) -> int:
    """Return how many requests ZooKeeper has had from all clients, signs of life among them."""
    answer = four_letter_word(servers.zookeeper.port, b"mntr").decode()
    facts = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    return int(facts["zk_packets_received"])

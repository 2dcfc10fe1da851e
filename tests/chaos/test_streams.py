"""A topology of three parts over three members, which are killed and frozen; the broker, too."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from functools import partial
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.chaos import topology
from benchmarks.chaos.attack import Attack
from benchmarks.chaos.keyed import compared_rows
from benchmarks.chaos.producer import NumberedProducer
from benchmarks.chaos.schedule import Fault, Kind, Schedule
from benchmarks.chaos.topology import (
    AHEAD,
    CLOSING,
    CLOSING_JOINS,
    CLOSING_WINDOWS,
    PAIRS,
    STATEFUL,
    WINDOWS,
    conservation,
    is_paid,
    read_pairs,
    read_windows,
    wanted_pairs,
    wanted_windows,
)
from benchmarks.chaos.world import TOPIC, Setting, World
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.progress import Silence
from headrace.devstack.wait import FAR_S, wait_for
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from tests.chaos import seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

_MEMBERS = ("member-1", "member-2", "member-3")

_PARTITIONS = 4

#: Those of the input, of both sides of the join, and of the topic of the windows.
_CLAIMS = 4 * _PARTITIONS

_RATE = 400

#: Seconds without anything new after which the rest is taken to never come.
_DRAINED = 150.0

_SETTING = Setting(partitions=_PARTITIONS, channels={}, sections={"topologies": topology.section()})

#: Seconds that each kind of fault lasts: a member that is frozen stands beyond its session of 4 s.
_LASTS = {Kind.KILL: (0.0, 5.0), Kind.FREEZE: (6.0, 9.0), Kind.KILL_BROKER: (1.0, 4.0)}

#: Orders that have to be told between two faults: a machine decides how long that takes.
_BETWEEN = 400


def _drawn(seed: int, faults: int = 6) -> list[Schedule]:
    """Return a schedule for each fault; each kind comes as often as the others."""
    random = Random(seed)
    kinds = [*_LASTS] * (faults // len(_LASTS))
    random.shuffle(kinds)
    found = []
    for kind in kinds:
        target = "" if kind is Kind.KILL_BROKER else random.choice(_MEMBERS)
        lasts = round(random.uniform(*_LASTS[kind]), 1)
        fault = Fault(0.0, kind, target, lasts)
        found.append(Schedule(seed, lasts, 0.0, _MEMBERS, _MEMBERS, (fault,)))
    return found


class _Source:
    """Produces numbers on a thread, no further ahead than the topology's graces allow.

    It reads what is told of orders: the first one with a payment of which nothing is told is the
    one that the topology is known to be at.
    """

    def __init__(self, servers: str, ledger: Path) -> None:
        self._stopped = Event()
        self._ledger = ledger.open("w", encoding="utf-8")
        self._producer = NumberedProducer(servers, TOPIC, _PARTITIONS, self._ledger)
        # a broker that starts again may not know its end yet; what is read twice counts once
        settings = {"group.id": "chaos-source", "auto.offset.reset": "earliest", "log_level": 0}
        self._reader = Consumer({"bootstrap.servers": servers, **settings})
        self._reader.assign([TopicPartition(PAIRS, n, OFFSET_BEGINNING) for n in range(4)])
        self._told: set[int] = set()
        self._first = 0
        self._thread = Thread(target=self._run, name="chaos-source", daemon=True)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    @property
    def told(self) -> int:
        """Return of how many orders something was told."""
        return len(self._told)

    def stop(self) -> int:
        """Return how many numbers were produced, once all are stored. Blocks."""
        self._stopped.set()
        self._thread.join()
        assert self._producer.finish() == 0
        return self._producer.next_number

    def close_with(self, first: int) -> None:
        """Produce numbers that end joins or windows. Blocks."""
        self._producer.next_number = first
        self._producer.send_up_to(first + CLOSING)
        assert self._producer.finish() == 0

    def close(self) -> None:
        """End the thread, and release the clients."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()
        self._ledger.close()

    def _run(self) -> None:
        begun = SYSTEM_CLOCK.monotonic()
        while not self._stopped.wait(0.05):
            due = int((SYSTEM_CLOCK.monotonic() - begun) * _RATE)
            self._producer.send_up_to(min(due, self._limit()))

    def _limit(self) -> int:
        messages = self._reader.consume(1_000, 0)
        values = [each.value() for each in messages if each.error() is None]
        self._told.update(json.loads(value or b"")["pair"] for value in values)
        # of an order without a payment nothing is told before those after it
        while self._first in self._told or not is_paid(self._first, CLOSING_JOINS):
            self._first += 1
        return 2 * self._first + AHEAD


def _await(attack: Attack, done: Callable[[], bool], signs: Callable[[], Hashable]) -> bool:
    """Wait for as long as something new comes; members that ended are started again."""
    silence = Silence(signs, _DRAINED)

    def look() -> bool:
        attack.supervise()
        return done()

    return bool(wait_for(look, Deadline.after(FAR_S), silence))


def _has_told(source: _Source, orders: int) -> bool:
    return source.told >= orders


def _create(servers: str) -> None:
    """Create the topics that are written, whose records are of years ago."""
    with closing(KafkaTopicCatalog({"bootstrap.servers": servers}, "chaos")) as catalog:
        for topic in (PAIRS, WINDOWS):
            wanted = NewTopic(topic, _PARTITIONS, {"retention.ms": "-1"})
            catalog.create(wanted, Deadline.after(60))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds.TOPOLOGY)
def test_a_topology_conserves_its_records_under_faults(seed: int, tmp_path: Path) -> None:
    """Each order is told once, none alone that has a partner, and windows count each once.

    What the members' stores have is in the changelogs.
    """
    world = World(tmp_path, _MEMBERS, _SETTING)
    daemons = world.daemons
    with ExitStack() as ending:
        ending.callback(world.close)
        world.start()
        servers = world.broker.address
        _create(servers)
        for daemon in daemons.values():
            daemon.lane.do(daemon.start)
        first, *others = [Attack(world, each) for each in _drawn(seed)]

        def owned() -> int:
            return sum(each.owns() for each in daemons.values())

        assert _await(first, lambda: owned() == _CLAIMS, lambda: (owned(), world.starting()))
        source = _Source(servers, tmp_path / "acknowledged")
        ending.callback(source.close)
        source.start()
        for attack in (first, *others):
            more = source.told + _BETWEEN
            going_on = partial(_has_told, source, more)
            assert _await(attack, going_on, lambda: (source.told, world.starting()))
            attack.run()
        numbers = source.stop()
        paid = sum(pair is not None for _, pair in wanted_pairs(numbers))

        def told() -> int:
            return read_pairs(servers).total()

        def counted() -> int:
            return read_windows(servers).total()

        # the payments come last: all that is told with one is told by then
        assert _await(attack, lambda: told() >= paid, lambda: (told(), world.starting()))
        source.close_with(CLOSING_JOINS)
        orders = wanted_pairs(numbers).total()
        assert _await(attack, lambda: told() >= orders, lambda: (told(), world.starting()))
        source.close_with(CLOSING_WINDOWS)
        windows = wanted_windows(numbers).total()
        assert _await(attack, lambda: counted() >= windows, lambda: (counted(), world.starting()))
        for daemon in daemons.values():
            daemon.lane.do(daemon.stop)
        for daemon in daemons.values():
            daemon.lane.settle()
        found = conservation(numbers, read_pairs(servers), read_windows(servers))
        compared = {
            name: [compared_rows(each) for each in world.verified(name)] for name in STATEFUL
        }
    said = f"seed {seed}: {numbers} numbers, {found}, rows compared and different: {compared}"
    print(said)  # noqa: T201 - the verdict
    assert found.holds, said
    for rows in compared.values():
        assert sum(count for count, _ in rows) > 0, said
        assert sum(wrong for _, wrong in rows) == 0, said

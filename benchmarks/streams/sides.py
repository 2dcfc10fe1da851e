"""The sides of the comparison: what each is run with, and what its outputs have to be."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.keyed.sides import CHANNEL, kafka_streams_command
from benchmarks.peer_sides.wire import Request
from benchmarks.peers.environments import python_of
from benchmarks.peers.process import PeerError, Program, SideProcess
from benchmarks.streams.topics import key_of, last_counts, other_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.rounds import Measured
    from benchmarks.streams.topics import StreamTopics
    from headrace.devstack import LocalStack

_SOURCE = Path(__file__).with_name("KafkaStreamsTopologies.java")

#: Figures of a round that are taken over as a side says them.
_TAKEN = ("cpu_seconds", "memory_mib", "threads")


#: The kinds of topologies that are in windows of a fixed length.
_WINDOWS = frozenset({"tumbling", "hopping"})


@dataclass(frozen=True, slots=True)
class Side:
    """One program. ``is_ours``: its channels are those of a topology.

    ``kinds`` are those that it does as we do, None: all. ``stays``: one process serves all rounds.
    """

    name: str
    is_ours: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    kinds: frozenset[str] | None = None
    stays: bool = True

    def does(self, kind: str) -> bool:
        """Return whether it has topologies of a kind."""
        return self.kinds is None or kind in self.kinds


SIDES = (
    Side("headrace", is_ours=True),
    # of two topics one that is at its end is waited for as long as ours does
    Side(
        "kafka_streams",
        settings={"properties": {"num.stream.threads": 2, "max.task.idle.ms": 1000}},
    ),
    Side(
        "quix",
        settings={"properties": {"fetch.queue.backoff.ms": 10}},
        kinds=_WINDOWS,
        stays=False,
    ),
    Side("structured_streaming", kinds=_WINDOWS | {"spark"}),
)

#: What the other systems are called in figures, in their order.
OTHERS = tuple(side.name for side in SIDES if not side.is_ours)

#: The kind of topology that one is which differs in its engine alone.
_SAME = {"spark": "tumbling"}

_GROUPS = count()


def command_of(side: Side) -> Sequence[str]:
    """Return the command of a side, with what it needs fetched first.

    Raises:
        LocalStackError: it cannot be fetched.
    """
    if side.is_ours:
        return (sys.executable, "-m", "benchmarks.peer_sides.streams_headrace")
    if side.name == "quix":
        return (str(python_of("quix")), "-m", "benchmarks.peer_sides.streams_quix")
    if side.name == "structured_streaming":
        return (sys.executable, "-m", "benchmarks.peer_sides.streams_structured")
    return kafka_streams_command(_SOURCE)


class Runner:
    """Runs the rounds of one side with topologies of one kind, and checks what it counted.

    Raises:
        PeerError: it cannot be run, or its counts are wrong.
    """

    def __init__(self, side: Side, kind: str, servers: LocalStack, topics: StreamTopics) -> None:
        self.side, self.name = side, f"{kind}_{side.name}"
        self.kind = _SAME.get(kind, kind)
        self._engine = "spark" if kind == "spark" else "arrow"
        self._servers = servers
        self._topics = topics
        self._folder = servers.directory / "streams" / self.name
        self._program = Program(self.name, command_of(side), self._folder)
        self._process: SideProcess | None = None

    def round(self, topic: stack.Topic) -> Measured:
        """Have the side read a topic. Blocks."""
        group = f"{self.name}-{next(_GROUPS)}".replace("_", "-")
        output = f"{group}.counts"
        stack.create(self._servers, output, len(topic.ends))
        settings = {
            **self.side.settings,
            "directory": str(self._folder / "state"),
            "kind": self.kind,
            "output": output,
            "other": other_of(topic.name),
            "counted": self._topics.counted(topic.records),
        }
        if self.side.is_ours:
            settings["config"] = str(self._configured(group, topic.name, output))
        elif self.side.name == "structured_streaming":
            settings["config"] = str(self._configured_session())
        request = Request(
            "count", self._servers.bootstrap_servers, topic.name, group, topic.records, settings
        )
        process = self._process or SideProcess(self._program)
        self._process = process
        try:
            measured = process.round(request)
            if self.side.stays:
                process.stopped()
            else:
                self.close()
        except BaseException:
            process.kill()
            self._process = None
            raise
        return self._figures(measured, topic, self._check(output, topic))

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _configured(self, group: str, topic: str, output: str) -> Path:
        """Write the configuration of a round."""
        section = {
            "code": "benchmarks.peer_sides.streams_work:topology",
            "group": group,
            "options": {
                "kind": self.kind,
                "topic": topic,
                "other": other_of(topic),
                "output": output,
            },
            "engine": self._engine,
            "channel": dict(CHANNEL),
        }
        addresses = stack.addresses(self._servers)
        return stack.configuration(self._folder, addresses, topologies={"bench": section})

    def _configured_session(self) -> Path:
        """Write a configuration whose session and source of records another system uses."""
        processor = {"type": "spark", "sql": "select * from records"}
        channel = {"topics": ["visits"], "group": "bench", **CHANNEL, "processor": processor}
        addresses = stack.addresses(self._servers)
        return stack.configuration(self._folder, addresses, {**channel, "sink": "noop"}, spark={})

    def _check(self, output: str, topic: stack.Topic) -> int:
        """Compare the last count of each key and window with what is there; return the outputs."""
        wanted = self._topics.counts(topic.records, self.kind)
        servers, partitions = self._servers.bootstrap_servers, len(topic.ends)
        found, outputs = last_counts(servers, output, partitions, adds=self.kind == "join")
        if found != wanted:
            wrong = sorted(
                place
                for place in wanted.keys() | found.keys()
                if found.get(place) != wanted.get(place)
            )
            shown = ", ".join(
                f"{key_of(key).decode()} from {begin} {found.get((key, begin))} of "
                f"{wanted.get((key, begin))}"
                for key, begin in wrong[:5]
            )
            raise PeerError(f"{self.name} has {len(wrong)} of {len(wanted)} counts wrong: {shown}")
        return outputs

    def _figures(self, measured: Measured, topic: stack.Topic, outputs: int) -> Measured:
        """Return what counts of a round: another system's clock begins with its first record.

        What it does between its assignment and its first record is thereby left out.
        """
        seconds = measured["from_assignment" if self.side.is_ours else "from_first"]
        found = {
            "rate": round(topic.records / seconds),
            "records": topic.records,
            "seconds": round(seconds, 3),
            "cpu_us": round(measured["cpu_seconds"] / topic.records * 1e6, 2),
            "outputs": outputs,
            **{name: measured[name] for name in _TAKEN},
        }
        if measured.get("micro_batches"):
            found["touched"] = round(measured["touched"] / measured["micro_batches"])
            found["commits"] = measured["commits"]
        return found

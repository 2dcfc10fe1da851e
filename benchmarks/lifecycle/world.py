"""The servers, the load, the sinks and the daemons of one run."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.chaos import oracle
from benchmarks.chaos.producer import NumberedProducer
from benchmarks.lifecycle.daemon import PATIENCE, Daemon, Settings, notes_file
from headrace.core.clock import Deadline
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.chaos.oracle import Conservation
    from headrace.devstack import LocalStack

#: The topic that is always read, and the one that comes and goes.
STEADY, SOMETIMES = "numbers", "more"

#: The channel that is measured, and one that comes and goes.
LOAD, OTHER = "load", "other"

#: Seconds that a producer has at the end, and the daemons to store everything.
_FLUSH = 150.0
_DRAINED = 90.0

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Load:
    """What the daemons have to do: records a second of each topic, and seconds for each batch."""

    rate: int = 200
    work: float = 0.08
    partitions: int = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the records, by channel and topic, and the codes that daemons ended with.

    ``complete`` says that everything sent was acknowledged, and read to its end.
    """

    found: Mapping[str, Conservation]
    exits: Sequence[int]
    complete: bool

    def figures(self) -> dict[str, Any]:
        """Return the sums."""
        found = self.found.values()
        return {
            "duplicates": sum(each.duplicated for each in found),
            "lost": sum(each.lost for each in found),
            "bad_exits": sum(code != 0 for code in self.exits),
            "exits": list(self.exits),
            "disordered": sum(each.disordered for each in found),
            "records": sum(each.stored for each in found),
            "complete": self.complete,
        }


class World:
    """One run's servers, producers and daemons, in a folder. For one thread."""

    def __init__(self, servers: LocalStack, load: Load) -> None:
        self.servers = servers
        self.load = load
        self.folder = servers.directory / "lifecycle"
        self.folder.mkdir()
        self.topics = {STEADY: load.partitions, SOMETIMES: load.partitions // 2}
        self._daemons: list[Daemon] = []
        self._producers: dict[str, ServerProcess] = {}

    @classmethod
    @contextmanager
    def opened(cls, load: Load) -> Iterator[World]:
        """Start the servers and create the topics; end everything after the block."""
        with ExitStack() as ending:
            servers = ending.enter_context(stack.servers())
            world = cls(servers, load)
            ending.callback(world._close)
            for topic, partitions in world.topics.items():
                stack.create(servers, topic, partitions)
            yield world

    def daemon(
        self,
        name: str,
        channels: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        sections: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Make a daemon that is not running, with the channel that is measured or others."""
        channels = channels or {LOAD: self.channel(name, LOAD)}
        addresses = stack.addresses(self.servers)
        settings = Settings(addresses, channels, sections or {}, environment or {})
        daemon = Daemon(name, self.folder, settings)
        self._daemons.append(daemon)
        return daemon

    def channel(self, member: str, name: str, *topics: str, work: float = 0.0) -> dict[str, Any]:
        """Return the section of a channel, whose group has its name."""
        options = {
            "directory": str(self.sink(name)),
            "member": member,
            "notes": str(notes_file(self.folder, member)),
            "work": work or self.load.work,
        }
        return {
            "topics": list(topics or [STEADY]),
            "group": name,
            "batch": {"max_records": 50, "linger": "20ms"},
            "buffer": {"max_bytes": "32MiB"},
            "processor": {
                "type": "custom",
                "factory": "benchmarks.lifecycle.sink:NotedSink",
                "options": options,
            },
        }

    def sink(self, channel: str) -> Path:
        """Return the folder of a channel's sink."""
        return self.folder / "sinks" / channel

    def keep(self, name: str) -> Path:
        """Copy logs, configurations, ledgers and sinks to a folder that stays, and return it."""
        kept = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
        with suppress(shutil.Error, OSError):  # files come and go where daemons still run
            shutil.copytree(self.folder, kept, dirs_exist_ok=True)
        return kept

    # --- load -----------------------------------------------------------------------------------

    def backlog(self, topic: str, records: int) -> None:
        """Produce numbered records to another topic at once. Blocks."""
        with self._ledger(topic).open("w", encoding="utf-8") as ledger:
            servers, partitions = self.servers.bootstrap_servers, self.load.partitions
            producer = NumberedProducer(servers, topic, partitions, ledger)
            producer.send_up_to(records)
            if producer.finish() or producer.next_number < records:
                raise AssertionError(f"{topic} could not be filled")

    def produce(self) -> None:
        """Start a producer for each topic, and wait for their first records. Blocks."""
        for topic, partitions in self.topics.items():
            self._producers[topic] = ServerProcess.start(
                [
                    *(sys.executable, "-m", "benchmarks.chaos.producer"),
                    *(self.servers.bootstrap_servers, topic, str(partitions)),
                    *(str(self.load.rate), str(self._ledger(topic))),
                ],
                log_file=self.folder / f"{topic}.log",
                deadline=Deadline.after(PATIENCE),
                environment={"PYTHONPATH": str(_ROOT)},
            )
        for topic in self.topics:
            if not wait_for(lambda t=topic: self._has_begun(t), Deadline.after(PATIENCE)):  # type: ignore[misc]
                raise AssertionError(f"nothing of {topic} was acknowledged in {PATIENCE:.0f} s")

    def outcome(
        self, channels: Mapping[str, tuple[str, ...]], daemons: Sequence[Daemon]
    ) -> Outcome:
        """Have all that was produced stored, stop the daemons, and look at what there is. Blocks.

        ``channels`` says which topics each of them reads.
        """
        codes = [producer.stop(Deadline.after(_FLUSH)) for producer in self._producers.values()]
        self._producers.clear()
        ends = {topic: self._last(topic) for topic in self.topics}
        stored = wait_for(lambda: self._has_stored(channels, ends), Deadline.after(_DRAINED))
        for daemon in daemons:
            daemon.stop()
        exits = [code for daemon in self._daemons for code in daemon.exits]
        found = {
            f"{name}: {topic}": self._found(name, topic)
            for name, topics in channels.items()
            for topic in topics
        }
        return Outcome(found, exits, complete=bool(stored) and not any(codes))

    # --- parts ----------------------------------------------------------------------------------

    def _has_stored(
        self, channels: Mapping[str, tuple[str, ...]], ends: Mapping[str, Mapping[str, int]]
    ) -> bool:
        """Whether each channel has stored the end of its topics."""
        for channel, topics in channels.items():
            reached = oracle.reached(self.sink(channel))
            wanted = {place: at for topic in topics for place, at in ends[topic].items()}
            if any(reached.get(place, -1) < offset for place, offset in wanted.items()):
                return False
        return True

    def _found(self, channel: str, topic: str) -> Conservation:
        """Hold what a channel stored of a topic against what was acknowledged."""
        places = {f"{topic}-{number}" for number in range(self.topics[topic])}
        found = (each for each in oracle.stored(self.sink(channel)) if each.partition in places)
        return oracle.compare(oracle.acknowledged(self._ledger(topic)), found)

    def _ledger(self, topic: str) -> Path:
        return self.folder / f"{topic}.acknowledged"

    def _has_begun(self, topic: str) -> bool:
        return self._ledger(topic).exists() and self._ledger(topic).stat().st_size > 0

    def _last(self, topic: str) -> dict[str, int]:
        last: dict[str, int] = {}
        for number, offset in oracle.acknowledged(self._ledger(topic)).items():
            partition = f"{topic}-{number % self.topics[topic]}"
            last[partition] = max(offset, last.get(partition, -1))
        return last

    def _close(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
        for producer in self._producers.values():
            producer.kill()

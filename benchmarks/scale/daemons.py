"""Daemons that share the partitions of one topic, and read it together."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import Producer

from benchmarks import stack
from benchmarks.committed import committed
from benchmarks.notes import Notes
from benchmarks.scale.processor import counts_of
from headrace.config import load
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.scale.used import Usage
    from headrace.devstack import LocalStack

#: Seconds that anything may take that is waited for.
_PATIENCE = 180.0

#: Seconds in which nobody may have got or lost anything before a group counts as settled.
_REST = 1.5

_ROOT = Path(__file__).parents[2]

_MIB = 1 << 20


class Daemon:
    """One ``headrace run`` in a folder of its own. For one thread.

    ``resync_interval``: seconds between two looks at the group though nothing has changed.
    """

    def __init__(
        self,
        servers: LocalStack,
        topic: stack.Topic,
        group: str,
        name: str,
        *,
        resync_interval: int = 15,
    ) -> None:
        folder = servers.directory / group / name
        self._file = folder / "notes"
        self.notes = Notes(self._file)
        ends = [topic.ends[number] for number in sorted(topic.ends)]
        options = {"file": str(self._file), "ends": ends}
        self.config = stack.configuration(
            folder,
            stack.addresses(servers),
            {
                "topics": [topic.name],
                "group": group,
                "workers": 1,
                "initial_offset": "latest",
                "coordinator": {"type": "dynamic", "resync_interval": f"{resync_interval}s"},
                "batch": {"max_records": 2_000},
                "processor": {
                    "type": "custom",
                    "factory": "benchmarks.scale.processor:ScaleProcessor",
                    "options": options,
                },
            },
            instance_id=name,
            python_path=[str(_ROOT)],
        )
        self._log = folder / "daemon.log"
        self._process = ServerProcess.start(
            [sys.executable, "-m", "headrace", "run", "-c", str(self.config)],
            log_file=self._log,
            deadline=Deadline.after(_PATIENCE),
            environment={"PYTHONPATH": str(_ROOT)},
        )

    def held(self) -> int:
        """Return how many partitions it has, by its notes."""
        events = Counter(note.event for note in self.notes.all())
        return events["assigned"] - events["terminated"] - events["lost"]

    def finished(self) -> list[float]:
        """Return when each partition was at its end."""
        return [note.at for note in self.notes.all() if note.event == "finished"]

    def facts(self) -> dict[str, float]:
        """Return memory, threads and connections of the process."""
        process = psutil.Process(self._process.identity.pid)
        return {
            "memory_mib": round(process.memory_info().rss / _MIB),
            "threads": process.num_threads(),
            "connections": len(process.net_connections(kind="tcp")),
        }

    def stop(self) -> dict[str, int]:
        """End the process, and return what it counted.

        Raises:
            AssertionError: it did not end with code 0.
        """
        code = self._process.stop(Deadline.after(_PATIENCE))
        if code:
            raise AssertionError(f"a daemon ended with code {code}; see {self._log}")
        counted: dict[str, int] = json.loads(counts_of(self._file).read_text(encoding="utf-8"))
        return counted

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def read_together(
    servers: LocalStack, topic: stack.Topic, usage: Usage, group: str, number: int
) -> dict[str, Any]:
    """Have ``number`` daemons read the topic, and return what that took. Blocks.

    One record more is in each partition then.

    Raises:
        AssertionError: they did not share it evenly, or did not read and commit all of it.
    """
    daemons: list[Daemon] = []
    try:
        for each in range(number):
            daemon = Daemon(servers, topic, group, f"{group}-{each}")
            daemons.append(daemon)
        await_shares(daemons, len(topic.ends))
        before, begun = usage.now(), SYSTEM_CLOCK.monotonic()
        _wake(servers, topic)
        _await(lambda: _finished(daemons) >= len(topic.ends), f"the end of {group}")
        after = usage.now()
        ended = max(at for daemon in daemons for at in daemon.finished())
        facts = [daemon.facts() for daemon in daemons]
        _check(daemons, topic)
    finally:
        for daemon in daemons:
            daemon.kill()
    seconds, records = ended - begun, topic.records + len(topic.ends)
    return {
        "rate": round(records / seconds),
        "seconds": round(seconds, 2),
        "cpu_s_per_million": round((after.ours - before.ours) / records * 1e6, 3),
        "servers_cpu_s_per_million": round((after.servers - before.servers) / records * 1e6, 3),
        "cores_busy": round((after.machine - before.machine) / (after.at - before.at), 2),
        **{name: max(fact[name] for fact in facts) for name in facts[0]},
    }


def await_shares(daemons: Sequence[Daemon], partitions: int) -> None:
    """Wait until each daemon has its share, and that stays so."""
    least, most = partitions // len(daemons), -(-partitions // len(daemons))
    since, seen = 0.0, 0

    def settled() -> bool:
        nonlocal since, seen
        held = [daemon.held() for daemon in daemons]
        notes = sum(len(daemon.notes.all()) for daemon in daemons)
        shared = sum(held) == partitions and all(least <= each <= most for each in held)
        if notes != seen or not shared:
            since, seen = SYSTEM_CLOCK.monotonic(), notes
        return SYSTEM_CLOCK.monotonic() - since > _REST

    _await(settled, f"{len(daemons)} daemons to share {partitions} partitions")


def _wake(servers: LocalStack, topic: stack.Topic) -> None:
    """Produce one more record to each partition."""
    client = Producer({"bootstrap.servers": servers.bootstrap_servers})
    for number in topic.ends:
        client.produce(topic.name, bytes(topic.bytes // topic.records), partition=number)
    left = client.flush(_PATIENCE)
    assert not left, f"{left} records were not produced"


def _finished(daemons: Sequence[Daemon]) -> int:
    return sum(len(daemon.finished()) for daemon in daemons)


def _check(daemons: Sequence[Daemon], topic: stack.Topic) -> None:
    """Stop the daemons, and compare what they counted and committed with what is there."""
    counted = [daemon.stop() for daemon in daemons]
    found = {name: sum(each[name] for each in counted) for name in ("records", "bytes")}
    records = topic.records + len(topic.ends)
    if found != {"records": records, "bytes": records * (topic.bytes // topic.records)}:
        raise AssertionError(f"{found} of {records} records")
    stored = committed(load(daemons[0].config), topic.ends)
    differ = {number for number, end in topic.ends.items() if stored[number] != end + 1}
    if differ:
        raise AssertionError(f"partitions {sorted(differ)} are not committed to their ends")


def _await(condition: Callable[[], bool], what: str) -> None:
    if not wait_for(condition, Deadline.after(_PATIENCE)):
        raise AssertionError(f"waited in vain for {what}")

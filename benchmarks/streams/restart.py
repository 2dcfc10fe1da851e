"""A topology with large windows that is killed: how soon it goes on, and the memory that it has."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.first_output import FirstOutput
from benchmarks.lifecycle.daemon import Daemon, Settings
from benchmarks.report import say
from benchmarks.resident import Resident
from benchmarks.streams.topics import MINUTE
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.devstack import LocalStack

#: Seconds that filling the windows, and going on after a kill, may take.
_FILL_TIMEOUT = 900.0
_RESTART_TIMEOUT = 300.0

#: Seconds after which a daemon has noted how far its store is.
_NOTED = 3.0

#: Keys that get a record after each kill.
_ASKED = 100

_MIB = 1 << 20

_PRODUCER = {
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
}


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """How much state there is: a row of ``row`` bytes for each key in each of ``windows``."""

    keys: int = 20_000
    windows: int = 50
    row: int = 1_000
    partitions: int = 4
    kills: int = 3

    @property
    def bytes(self) -> int:
        """Return the bytes of all texts."""
        return self.keys * self.windows * self.row


#: Windows of many keys, each with a short text.
MANY_KEYS = RestartPlan(keys=10_000_000, windows=1, row=10, kills=0)


def holding(servers: LocalStack, plan: RestartPlan = MANY_KEYS) -> dict[str, Any]:
    """Return the most memory that a topology has while it gets a record of each key. Blocks."""
    stand = _Stand(servers, plan, "many")
    try:
        return {"many_keys_memory_mib": stand.fill(), "many_keys": plan.keys}
    finally:
        stand.close()


def restarting(servers: LocalStack, plan: RestartPlan) -> dict[str, Any]:
    """Return how soon a killed topology tells its first row, and the memory that it has. Blocks.

    The time is from the start of the process to the first output, seen by another client, of
    records that waited. They are counted with what was there before.
    """
    stand = _Stand(servers, plan, "notes")
    try:
        filled = stand.fill()
        taken = [stand.restart(number) for number in range(1, plan.kills + 1)]
        held = stand.memory()
    finally:
        stand.close()
    return {
        "restart_first_output_s": round(median(taken), 2),
        "restart_first_output_s_rounds": taken,
        "restart_state_bytes": plan.bytes,
        "filled_memory_mib": filled,
        "restarted_memory_mib": held,
    }


class _Stand:
    """A daemon with the topology, and what is sent to it."""

    def __init__(self, servers: LocalStack, plan: RestartPlan, topic: str) -> None:
        self._servers, self._plan = servers, plan
        self._topic, self._output = topic, f"{topic}.counts"
        for name in (self._topic, self._output):
            stack.create(servers, name, plan.partitions)
        self._begin = (int(time.time() * 1000) // MINUTE - plan.windows - 2) * MINUTE
        section = {
            "code": "benchmarks.peer_sides.streams_work:keep_texts",
            "group": topic,
            "options": {"topic": topic, "output": self._output},
            "channel": {"processor": {"state": {"checkpoint": "1s"}}},
        }
        sections = {"topologies": {"bench": section}}
        settings = Settings(stack.addresses(servers), {}, sections, {})
        self._daemon = Daemon(topic, servers.directory / "restarting", settings)

    def fill(self) -> int:
        """Have all windows filled, and return the most memory that this took, in MiB."""
        self._send(self._texts())
        say(f"filling windows with {self._plan.bytes:,} bytes")
        self._daemon.start()
        resident = Resident(self._daemon.pid)
        deadline = Deadline.after(_FILL_TIMEOUT)

        def goes_on() -> bool:
            resident.now()
            return bool(self._lag()) and not deadline.expired

        resident.watch(goes_on, _FILL_TIMEOUT)
        if self._lag():
            raise AssertionError(f"windows were not filled in time; see {self._daemon.log_file}")
        self._require_counts(1)
        return round(resident.peak / _MIB)

    def restart(self, number: int) -> float:
        """Kill the daemon, and return the seconds from the next start to the first output."""
        time.sleep(_NOTED)
        self._daemon.kill()
        last = self._plan.windows - 1
        self._send((key, last, "again") for key in range(_ASKED))
        output = FirstOutput(self._servers.bootstrap_servers, self._output, self._plan.partitions)
        begun = SYSTEM_CLOCK.monotonic()
        self._daemon.start()
        seconds = round(output.wait(_RESTART_TIMEOUT) - begun, 2)
        say(f"killed and started again: {seconds} s to the first output")
        self._require_counts(number + 1)
        return seconds

    def memory(self) -> int:
        """Return the memory that the daemon has now, in MiB."""
        return round(Resident(self._daemon.pid).now() / _MIB)

    def close(self) -> None:
        """End the daemon."""
        self._daemon.kill()

    def _texts(self) -> Iterator[tuple[int, int, str]]:
        """Yield a text for each key in each window, which does not compress to nothing."""
        random = Random(self._plan.row)  # noqa: S311 - data, not secrets
        pool = b64encode(random.randbytes(_MIB)).decode()
        for window in range(self._plan.windows):
            for key in range(self._plan.keys):
                start = random.randrange(len(pool) - self._plan.row)
                yield key, window, pool[start : start + self._plan.row]

    def _send(self, texts: Iterable[tuple[int, int, str]]) -> None:
        """Produce texts of keys in windows, which ascend."""
        client = {"bootstrap.servers": self._servers.bootstrap_servers, **_PRODUCER}
        producer, deadline = TopicProducer(client, self._topic), Deadline.after(_FILL_TIMEOUT)
        for window, several in groupby(texts, key=itemgetter(1)):
            records = (
                (b"customer-%06d" % key, json.dumps({"text": text}).encode())
                for key, _, text in several
            )
            producer.send(records, deadline, time=self._begin + window * MINUTE)
        producer.flush(deadline)

    def _lag(self) -> int:
        """Return how many records are not committed."""
        ends = stack.ends(self._servers, self._topic, self._plan.partitions)
        (channel,) = self._daemon.get("channels")["channels"]
        committed = {each["partition"]: each["committed"] or 0 for each in channel["partitions"]}
        return sum(end - committed.get(number, 0) for number, end in ends.items())

    def _require_counts(self, wanted: int) -> None:
        """Wait until the last count of each key that is asked for is ``wanted``."""
        deadline = Deadline.after(60)
        topic = (self._servers.bootstrap_servers, self._output, self._plan.partitions)
        asked = {b"customer-%06d" % key for key in range(_ASKED)}
        while True:
            found = {
                key: json.loads(value or b"{}").get("n")
                for key, value in stack.committed_records(*topic)
                if key in asked
            }
            if found == dict.fromkeys(asked, wanted):
                return
            if deadline.expired:
                raise AssertionError(f"{self._output} has {found}; {wanted} of each was expected")

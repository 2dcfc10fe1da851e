"""The servers, the members and the links between them: everything that can be harmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.chaos.link import Link, Network
from headrace.core.clock import Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack import KafkaBroker, ZooKeeperServer
from headrace.devstack.server import LOOPBACK, ProcessState, ServerProcess, free_port
from headrace.devstack.wait import FAR_S, SILENCE_S, wait_for
from headrace.extensions.keyed.names import changelog_name
from headrace.kafka.topic_producer import create_topic
from headrace.telemetry.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.telemetry.metrics import MetricSample

TOPIC = "numbers"

#: Variables of a member's environment: its name, and the folder of all sinks.
MEMBER = "CHAOS_MEMBER"
SINKS = "CHAOS_SINKS"

#: Seconds that a member may take to stop, and one thing that is done to it.
PATIENCE = 60.0

#: Seconds that a member has to answer a question about its metrics.
_SCRAPE = 1.0

_ROOT = Path(__file__).parents[2]

#: The file in a channel's folder that says where its results are, where that is a topic.
PLACE = "topics.json"


def _counting(topic: str, **state: object) -> Mapping[str, Any]:
    """Return a channel that counts by key, with outputs in a topic."""
    return {
        "processor": {
            "type": "keyed",
            "reducer": "benchmarks.chaos.keyed:count",
            "engine": "arrow",
            "state": {"checkpoint": "1s", **state},
        },
        "sink": {"type": "kafka", "topic": topic},
    }


#: A sink that keeps offsets, one that does not with each of the places for them, and counts by key,
#: with copies of the state as well.
CHANNELS: Mapping[str, Mapping[str, Any]] = {
    "transactional": {"sink": "TransactionalSink"},
    "plain": {"sink": "PlainSink", "offsets": {"type": "kafka", "fencing": "metadata"}},
    "fenced": {"sink": "PlainSink", "offsets": {"type": "kafka", "fencing": "transactions"}},
    "zookeeper": {"sink": "PlainSink", "offsets": {"type": "zookeeper"}},
    "keyed": _counting("counts"),
    "standbys": _counting("copied", standbys=1),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a world is made of. Times are in seconds; ``sinks`` is the module with the sinks.

    A channel without a ``processor`` names one of these sinks. In the strings of a shipped sink
    ``{folder}`` is the channel's folder. ``sections`` are further ones of the configuration.
    """

    partitions: int = 8
    session: float = 4.0
    work: float = 0.03
    channels: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: CHANNELS)
    sinks: str = "benchmarks.chaos.sinks"
    sections: Mapping[str, Any] = field(default_factory=dict)


class Lane:
    """What is done to one target, one thing after the other, on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, f"chaos-{name}")
        self._done: list[Future[object]] = []

    def do(self, action: Callable[[], object]) -> Future[object]:
        """Have something done when everything before it is."""
        future: Future[object] = self._pool.submit(action)
        self._done.append(future)
        return future

    @property
    def idle(self) -> bool:
        """Whether everything is done."""
        return all(future.done() for future in list(self._done))

    def settle(self) -> None:
        """Wait until everything is done; raises what was raised."""
        for future in self._done:
            future.result(4 * PATIENCE)
        self._done.clear()

    def close(self) -> None:
        """End the thread, and do nothing more."""
        self._pool.shutdown(cancel_futures=True)


class Daemon:
    """One member: a real ``headrace run``, reached only through links. Used in its lane."""

    def __init__(self, name: str, world: World, zookeeper: Link, kafka: Link) -> None:
        self.name = name
        self.zookeeper = zookeeper
        self.kafka = kafka
        self.lane = Lane(name)
        self.wanted = False
        self.exits: list[int] = []
        self._environment = {
            "PYTHONPATH": str(_ROOT),
            MEMBER: name,
            SINKS: str(world.directory / "sinks"),
        }
        self._folder = world.directory / name
        self._folder.mkdir()
        self._metrics = free_port()
        self._path = self._folder / "headrace.yaml"
        self._path.write_text(yaml.safe_dump(self._document(world)), encoding="utf-8")
        self._process: ServerProcess | None = None

    def _document(self, world: World) -> dict[str, Any]:
        setting = world.setting
        return {
            "instance_id": self.name,
            "state_dir": str(self._folder / "state"),
            "shutdown_timeout": "15s",
            "python_path": [str(_ROOT)],
            "kafka": {"bootstrap_servers": self.kafka.address},
            "zookeeper": {
                "hosts": self.zookeeper.address,
                "session_timeout": f"{setting.session}s",
            },
            "logging": {"format": "json"},
            "metrics": {"host": LOOPBACK, "port": self._metrics},
            "channels": {name: self._channel(world, name) for name in world.channels},
            **setting.sections,
        }

    def _channel(self, world: World, name: str) -> dict[str, Any]:
        facts = dict(world.channels[name])
        sink, folder = facts.pop("sink"), str(world.sink(name))
        if "processor" in facts:
            facts["sink"] = {key: value.format(folder=folder) for key, value in sink.items()}
        else:
            options = {"directory": folder, "member": self.name, "work": world.setting.work}
            factory = f"{world.setting.sinks}:{sink}"
            facts["processor"] = {"type": "custom", "factory": factory, "options": options}
        # what Spark reads itself waits in no buffer
        by_value = facts.get("source", "by_value") == "by_value"
        return {
            "topics": [TOPIC],
            "group": name,
            "batch": {"max_records": 50, "linger": "20ms"},
            **({"buffer": {"max_bytes": "32MiB"}} if by_value else {}),
            "retry": {"backoff": "100ms", "max_backoff": "1s"},
            **facts,
        }

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.exit_code is None

    @property
    def codes(self) -> list[int]:
        """What its processes ended with so far, but for those that were killed."""
        code = None if self._process is None else self._process.exit_code
        return self.exits if code is None else [*self.exits, code]

    def last_words(self) -> str:
        """Return the last line of its log, for whoever finds it ended."""
        lines = (self._folder / "daemon.log").read_text(encoding="utf-8").splitlines()
        return lines[-1] if lines else "nothing"

    def start(self) -> None:
        """Start the process, unless there is one."""
        self.bury()
        self.wanted = True
        if self._process is None:
            self._process = ServerProcess.start(
                [sys.executable, "-m", "headrace", "run", "-c", str(self._path)],
                log_file=self._folder / "daemon.log",
                deadline=Deadline.after(PATIENCE),
                environment=self._environment,
            )

    def bury(self) -> bool:
        """Take note of a process that ended by itself; whether there was one."""
        code = None if self._process is None else self._process.exit_code
        if self._process is None or code is None:
            return False
        self._process.kill()
        self._process = None
        self.exits.append(code)
        return True

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """End the process with SIGTERM, once it can hear it, and take note of its code."""
        self.wanted = False
        wait_for(lambda: not self.running or self.answers(), Deadline.after(PATIENCE))
        if self._process is not None:
            self.exits.append(self._process.stop(Deadline.after(PATIENCE)))
            self._process = None

    def freeze(self) -> None:
        """Stop the process where it stands."""
        if self.running and self._process is not None:
            self._process.pause(Deadline.after(PATIENCE))

    def thaw(self) -> None:
        """Let a frozen process go on."""
        if self._process is not None and self._process.identity.state is ProcessState.PAUSED:
            self._process.resume()

    def verified(self, channel: str) -> str | None:
        """Compare its state by key with the changelog; None where it never had any. Blocks."""
        if not any(self._folder.glob(f"state/**/{channel}/db")):
            return None
        command = [sys.executable, "-m", "headrace", "state", "verify", "--channel", channel]
        found = subprocess.run(
            [*command, "-c", str(self._path)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self._environment},
            timeout=FAR_S,
        )
        (self._folder / "verified").write_text(found.stdout + found.stderr, encoding="utf-8")
        has_compared = found.returncode == 0 or "keys differ" in found.stderr
        if not has_compared:
            raise AssertionError(f"{self.name}: {found.stdout}{found.stderr}")
        return found.stdout

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none."""
        return None if self._process is None else self._process.identity.pid

    def answers(self) -> bool:
        """Whether it is up: handlers for signals are there before the metrics. Blocks."""
        return self._samples() is not None

    def owns(self) -> int:
        """Return how many partitions it says that it owns, 0 where it does not answer. Blocks."""
        return sum(sample.name == "headrace_owner_epoch" for sample in self._samples() or ())

    def _samples(self) -> list[MetricSample] | None:
        try:
            return list(read_metrics(LOOPBACK, self._metrics, _SCRAPE))
        except OSError:
            return None


class World:
    """One ZooKeeper, one broker and the members, in a folder. For one thread."""

    def __init__(self, directory: Path, members: Sequence[str], setting: Setting) -> None:
        self.directory = directory
        self.setting = setting
        self.channels = setting.channels
        self.network = Network()
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        links = {name: free_port() for name in members}
        self.broker = _broker(directory / "kafka", links)
        self.server_lanes = {"zookeeper": Lane("zookeeper"), "kafka": Lane("kafka")}
        self.daemons: dict[str, Daemon] = {}
        self._links = links

    def start(self) -> None:
        """Start the servers and create the topic. Blocks."""
        self.zookeeper.start()
        self.broker.start()
        client = {"bootstrap.servers": self.broker.address}
        create_topic(client, TOPIC, self.setting.partitions, Deadline.after(PATIENCE))
        for name, channel in self.channels.items():
            if channel.get("processor", {}).get("type") == "keyed":
                self._keep_in_topic(name, channel["sink"]["topic"])
        for name, port in self._links.items():
            kafka = self.network.link(self.broker.member_ports[name], port)
            self.daemons[name] = Daemon(name, self, self.network.link(self.zookeeper.port), kafka)

    def _keep_in_topic(self, channel: str, topic: str) -> None:
        """Create a topic for results, of one partition: what is stored has one order."""
        address = self.broker.address
        create_topic({"bootstrap.servers": address}, topic, 1, Deadline.after(PATIENCE))
        place = {"servers": address, "topic": topic, "changelog": changelog_name(channel, TOPIC)}
        self.sink(channel).mkdir(parents=True)
        (self.sink(channel) / PLACE).write_text(json.dumps(place), encoding="utf-8")

    def verified(self, channel: str) -> list[str]:
        """Return what is said of the local stores of a channel by members that are gone. Blocks."""
        return [found for each in self.daemons.values() if (found := each.verified(channel))]

    def sink(self, channel: str) -> Path:
        """Return the folder of a channel's sink."""
        return self.directory / "sinks" / channel

    def silence(self, *names: str) -> Silence:
        """Return how long the processes of these members show no sign of work, from now on."""
        pids = [pid for name in names if (pid := self.daemons[name].pid) is not None]
        return Silence(signs_of_work(pids), SILENCE_S)

    def starting(self) -> tuple[int, ...]:
        """Return what differs once members that own nothing yet have worked. Blocks."""
        waited = [each for each in self.daemons.values() if each.wanted and not each.owns()]
        return signs_of_work([each.pid for each in waited if each.pid is not None])()

    @property
    def claims(self) -> int:
        """How many claims there are to be had."""
        return self.setting.partitions * len(self.channels)

    def close(self) -> None:
        """End everything at once."""
        for lane in [*self.server_lanes.values(), *(d.lane for d in self.daemons.values())]:
            lane.close()
        for daemon in self.daemons.values():
            daemon.kill()
        self.broker.kill()
        self.zookeeper.kill()
        self.network.close()


class MemberBroker(KafkaBroker):
    """A broker with a listener for each member, whose advertised address is the member's link."""

    member_ports: Mapping[str, int] = {}


def _broker(directory: Path, links: Mapping[str, int]) -> MemberBroker:
    port, controller = free_port(), free_port()
    behind = {name: free_port() for name in links}
    names = {name: f"MEMBER_{number}" for number, name in enumerate(links)}
    plain = f"PLAINTEXT://{LOOPBACK}:{port}"
    inner = [f"{names[name]}://{LOOPBACK}:{behind[name]}" for name in links]
    outer = [f"{names[name]}://{LOOPBACK}:{links[name]}" for name in links]
    protocols = [f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names.values())]
    broker = MemberBroker(
        directory,
        port=port,
        controllers={1: controller},
        properties={
            "listeners": ",".join([plain, f"CONTROLLER://{LOOPBACK}:{controller}", *inner]),
            "advertised.listeners": ",".join([plain, *outer]),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "PLAINTEXT",
            # the oracle reads every commit at the end
            "log.cleaner.enable": "false",
        },
        short_lived=True,
    )
    broker.member_ports = behind
    return broker

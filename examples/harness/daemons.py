"""The daemons of a demo: real ``headrace run`` processes, each with its own configuration."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import yaml

from examples.harness.flights import DemoError
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.processes import python_command
from headrace.devstack.server import LOOPBACK, ServerProcess, free_port
from headrace.extensions.spark.settings import SHORT_LIVED
from headrace.telemetry.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.telemetry.metrics import MetricSample

#: Seconds in which a process has to exist; it takes milliseconds.
_SPAWN_S = 30.0

#: Seconds that daemons have to stop in order; they have half of it by their configuration.
_STOP_TIMEOUT = 60.0

#: Seconds that a daemon has to answer a question about its metrics.
_SCRAPE_S = 2.0

#: The folder for temporary files: what a killed process leaves there goes with the work directory.
_TEMPORARY = "tmp"

#: How much of a log an error message quotes.
_QUOTED_LINES = 15


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The servers that a daemon needs, as its configuration names them."""

    bootstrap_servers: str
    zookeeper_hosts: str

    @property
    def client(self) -> dict[str, str]:
        """What a client of Kafka takes."""
        return {"bootstrap.servers": self.bootstrap_servers}


@dataclass(frozen=True, slots=True)
class DaemonSnapshot:
    """What a daemon says of itself: the partitions it holds and its work since its start.

    ``spark_seconds`` is the time of its Spark jobs, ``commits`` how often its sink committed.
    """

    partitions: frozenset[int] = frozenset()
    lag: int = 0
    batches: int = 0
    spark_seconds: float = 0.0
    commits: int = 0


class Daemon:
    """One daemon with its folder; it dies with this process. For one thread.

    The partitions that it says it holds are those of ``shown``, or of the last of its ``channels``.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        endpoints: Endpoints,
        channels: Mapping[str, object],
        *,
        topologies: Mapping[str, object] | None = None,
        shown: str | None = None,
    ) -> None:
        self.name = name
        self.log_file = directory / "daemon.log"
        self.config_file = directory / "headrace.yaml"
        self._channel = shown or tuple(channels)[-1]
        self._port = free_port()
        self._process: ServerProcess | None = None
        self._temporary = directory / _TEMPORARY
        self._temporary.mkdir(parents=True, exist_ok=True)
        document = _document(name, directory, endpoints, self._port, channels)
        if topologies is not None:
            document["topologies"] = dict(topologies)
        self.config_file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    @property
    def state(self) -> str:
        """Whether there is a process, in one word."""
        return "stopped" if self._process is None else "running"

    def start(self) -> None:
        """Start the process; it is not ready when this returns."""
        run = "from headrace.cli import main; main()"
        command = python_command(run, "run", "-c", str(self.config_file))
        self._process = ServerProcess.start(
            command,
            log_file=self.log_file,
            deadline=Deadline.after(_SPAWN_S),
            environment={"TMPDIR": str(self._temporary)},
        )

    def kill(self) -> None:
        """End the process with SIGKILL; it is gone when this returns. Harmless without one."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self, deadline: Deadline) -> int:
        """Stop the process with SIGTERM and return its exit code."""
        assert self._process is not None, "it was started"
        code = self._process.stop(deadline)
        self._process = None
        return code

    def require_running(self) -> None:
        """Fail if the process ended by itself; raises DemoError."""
        code = None if self._process is None else self._process.exit_code
        if code is not None:
            raise DemoError(f"{self.name} ended by itself with code {code}")

    def read(self) -> DaemonSnapshot | None:
        """Ask the process for its metrics; None while it does not answer. Blocks briefly."""
        if self._process is None:
            return None
        try:
            return snapshot_of(read_metrics(LOOPBACK, self._port, _SCRAPE_S), self._channel)
        except OSError:
            return None

    def end_of_log(self) -> str:
        """Return the last lines of the log, below its name."""
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        lines = text.splitlines()[-_QUOTED_LINES:]
        return "\n".join([f"the end of {self.log_file}:", *(f"  {line}" for line in lines)])


@final
class Daemons:
    """The daemons of a demo, killed when the block is left if they still run. For one thread.

    ``of`` makes them, with the names ``daemon-1`` and so on, and all with the same channels.
    """

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._daemons = {daemon.name: daemon for daemon in daemons}
        self._codes: dict[str, int] = {}

    @classmethod
    def of(
        cls,
        directory: Path,
        endpoints: Endpoints,
        count: int,
        channels: Mapping[str, object],
        *,
        topologies: Mapping[str, object] | None = None,
        shown: str | None = None,
    ) -> Daemons:
        """Make daemons below a folder, not started."""
        names = [f"daemon-{number}" for number in range(1, count + 1)]
        further: Any = {"topologies": topologies, "shown": shown}
        return cls(
            [Daemon(name, directory / name, endpoints, channels, **further) for name in names]
        )

    def __iter__(self) -> Iterator[Daemon]:
        return iter(self._daemons.values())

    def __getitem__(self, name: str) -> Daemon:
        return self._daemons[name]

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as killed:
            for daemon in self:
                killed.callback(daemon.kill)

    def require_running(self) -> None:
        """Fail if one ended by itself; raises DemoError."""
        for daemon in self:
            daemon.require_running()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all in order when the block has ended. Blocks.

        Raises:
            DemoError: of an error in the block, or of one that did not stop; with the logs' ends.
        """
        try:
            yield
            deadline = Deadline.after(_STOP_TIMEOUT)
            with ThreadPoolExecutor(len(self._daemons), "demo-stop") as pool:
                codes = pool.map(lambda daemon: daemon.stop(deadline), self)
                self._codes = dict(zip(self._daemons, codes, strict=True))
        except HeadraceError as error:
            logs = [daemon.end_of_log() for daemon in self]
            raise DemoError("\n".join([*logs, str(error)])) from error

    def complaints(self) -> list[str]:
        """Return what is to be said of those that did not stop with 0: codes and logs."""
        return [
            line
            for name, code in self._codes.items()
            if code
            for line in (f"{name} stopped with code {code}, not 0", self[name].end_of_log())
        ]


def _document(
    name: str, directory: Path, endpoints: Endpoints, port: int, channels: Mapping[str, object]
) -> dict[str, object]:
    """Return the configuration. Two daemons share two cores, so each Spark gets one."""
    temporary = directory / _TEMPORARY
    return {
        "instance_id": name,
        "state_dir": str(directory / "state"),
        "kafka": {"bootstrap_servers": endpoints.bootstrap_servers},
        "zookeeper": {"hosts": endpoints.zookeeper_hosts, "session_timeout": "5s"},
        "spark": {
            "master": "local[1]",
            "driver_memory": "768MiB",
            "warm_up": 3,
            "properties": {
                "spark.driver.extraJavaOptions": f'{SHORT_LIVED} "-Djava.io.tmpdir={temporary}"',
                "spark.local.dir": str(temporary),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
            },
        },
        "logging": {"format": "json"},
        "metrics": {"host": LOOPBACK, "port": port},
        "channels": dict(channels),
    }


def snapshot_of(samples: Iterable[MetricSample], channel: str) -> DaemonSnapshot:
    """Return what a daemon's metrics say, with the partitions of a channel."""
    found = list(samples)

    def total(name: str, **labels: str) -> float:
        return sum(
            each.value
            for each in found
            if each.name == name and labels.items() <= each.labels.items()
        )

    held = (
        each.labels["partition"]
        for each in found
        if each.name == "headrace_owner_epoch" and each.labels["channel"] == channel
    )
    return DaemonSnapshot(
        partitions=frozenset(map(int, held)),
        lag=int(total("headrace_lag_records")),
        batches=int(total("headrace_batches_total")),
        spark_seconds=total("headrace_stage_seconds_sum", stage="reduce"),
        commits=int(total("headrace_stage_seconds_count", stage="sink_commit")),
    )

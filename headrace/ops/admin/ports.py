"""Protocols of the process that the API serves, and the process as its main thread reports it."""

from __future__ import annotations

from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.zookeeper.protocol import SessionView
from headrace.zookeeper.session import NodeReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.config import Config
    from headrace.controller.engine_session import SparkSnapshot
    from headrace.controller.reports import ConfigStatus, ReloadReport
    from headrace.core.clock import Deadline
    from headrace.telemetry.metrics import Metrics


class ProcessPhase(Enum):
    """The phase of a process."""

    STARTING = "starting"
    """It connects, and starts its channels one after the other."""
    RUNNING = "running"
    """All its channels were started."""
    STOPPING = "stopping"
    """It finishes what is out, commits, and gives everything back."""


class SessionReader(SessionView, NodeReader, Protocol):
    """A reader of the ZooKeeper session's state, and of nodes through it."""


class Controller(Protocol):
    """The controller. Everything is safe on any thread, and only the session's reads block."""

    @property
    def config(self) -> Config:
        """Return the configuration that is in effect."""
        ...

    @property
    def channels(self) -> Mapping[str, InboundKafkaChannel]:
        """Return the channels that were opened, by name; may grow and shrink meanwhile."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of the process."""
        ...

    @property
    def session(self) -> SessionReader:
        """Return the ZooKeeper session."""
        ...

    def spark(self) -> SparkSnapshot | None:
        """Return a snapshot of Spark, None if no channel uses it."""
        ...


class Deployment(Protocol):
    """The part of a process that takes up new configuration. Safe on any thread; only ``reload``
    blocks.
    """

    def reload(self, by: str, deadline: Deadline) -> ReloadReport:
        """Reload the file, and return a report by the deadline."""
        ...

    def config_status(self) -> ConfigStatus:
        """Return how desired and applied configuration compare."""
        ...


class Process(Protocol):
    """The process around the controller. Safe on any thread; nothing blocks."""

    @property
    def phase(self) -> ProcessPhase:
        """Return where it is in its life."""
        ...

    @property
    def last_beat(self) -> float:
        """Return the monotonic time of the main thread's last sign of progress."""
        ...

    @property
    def file(self) -> Path:
        """Return the configuration file's absolute path."""
        ...

    def ask_stop(self, by: str) -> None:
        """Ask for a graceful stop; asking again changes nothing."""
        ...


class LocalProcess:
    """This process, a :class:`Process`. ``stop`` is called once, on any thread.

    ``become`` and ``beat`` are for the main thread.
    """

    def __init__(
        self, file: Path, stop: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.file = file.absolute()
        self.phase = ProcessPhase.STARTING
        self.last_beat = clock.monotonic()
        self._stop = stop
        self._clock = clock
        self._lock = Lock()
        self._asked = False

    def become(self, phase: ProcessPhase) -> None:
        """Enter another phase."""
        self.phase = phase
        self.beat()

    def beat(self) -> None:
        """Record a heartbeat of the main thread."""
        self.last_beat = self._clock.monotonic()

    def ask_stop(self, by: str) -> None:
        """Stop the process, as the first signal does; asking again changes nothing."""
        with self._lock:
            if self._asked:
                return
            self._asked = True
        self._stop(by)

"""A process without a daemon: real channels in memory, and the API around them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from headrace.config import Config
from headrace.controller.reports import ConfigStatus, PendingChange, ReloadOutcome, ReloadReport
from headrace.core.clock import SYSTEM_CLOCK
from headrace.ops.admin.auth import Rules
from headrace.ops.admin.history import Rates
from headrace.ops.admin.loglevels import LogLevels
from headrace.ops.admin.ports import LocalProcess, ProcessPhase
from headrace.ops.admin.rejects import Rejects
from headrace.ops.admin.server import create_app
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel
from headrace.testing.channel import QUICK
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from fastapi import FastAPI

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.controller.engine_session import SparkSnapshot
    from headrace.core.clock import Clock, Deadline
    from headrace.processors import BatchProcessor

BASE = "http://localhost:9465"
TOKEN = "a-token-that-is-long-enough"


@dataclass
class InMemoryController:
    """A ``Controller`` of channels in memory, all of which are called after their member."""

    broker: InMemoryBroker
    zookeeper: InMemoryZooKeeper = field(default_factory=InMemoryZooKeeper)
    metrics: Metrics = field(default_factory=Metrics)
    channels: dict[str, InboundKafkaChannel] = field(default_factory=dict)
    snapshot: SparkSnapshot | None = None

    def __post_init__(self) -> None:
        self.session = self.zookeeper.session()
        self.config = Config.model_validate(
            {
                "instance_id": "member",
                "state_dir": "/nowhere",
                "kafka": {"properties": {"sasl.password": "hush"}},
                "channels": {"member": QUICK},
            }
        )

    def spark(self) -> SparkSnapshot | None:
        """Return what the test set."""
        return self.snapshot

    def add(
        self, processor: BatchProcessor | None = None, /, **settings: Any
    ) -> InboundKafkaChannel:
        """Open a channel."""
        channel = in_memory_channel(
            processor or Recorder(),
            self.broker,
            zookeeper=self.zookeeper,
            session=self.session,
            metrics=self.metrics,
            **settings,
        )
        self.channels[channel.name] = channel
        return channel


@dataclass
class InMemoryDeployment:
    """A ``Deployment`` that brings what a test says."""

    report: ReloadReport = field(
        default_factory=lambda: ReloadReport("nobody", 0.0, ReloadOutcome.UNCHANGED)
    )
    pending: tuple[PendingChange, ...] = ()
    problems: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def reload(self, by: str, deadline: Deadline) -> ReloadReport:
        """Note who asks; takes no time."""
        del deadline
        self.asked.append(by)
        return self.report

    def config_status(self) -> ConfigStatus:
        """Return what the test said."""
        last = self.report if self.asked else None
        return ConfigStatus("f", {"workers": 3}, {}, self.pending, self.problems, last)


class Client:
    """Asks the application without a network."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and wait for the answer."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Read something."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Change something."""
        return self.request("POST", path, **options)


class Scene:
    """The controller, the process, and a client that shows no token unless told to.

    An application takes long to build, so ``reset`` begins a new test with the same one.
    """

    def __init__(self, broker: InMemoryBroker, *, open_reads: bool = True) -> None:
        self.controller = InMemoryController(broker)
        self.process = LocalProcess(Path("headrace.yaml"), self._stop)
        self.rates = Rates(self.controller, SYSTEM_CLOCK)
        self.rejects = Rejects(None, self.controller, SYSTEM_CLOCK)
        self.stops: list[str] = []
        self.deployment = InMemoryDeployment()
        self.client = Client(
            create_app(
                self.controller,
                self.process,
                deployment=self.deployment,
                rates=self.rates,
                rules=Rules(TOKEN, open_reads, frozenset({"localhost"})),
                log_levels=LogLevels(),
                rejects=self.rejects,
            )
        )
        self.process.become(ProcessPhase.RUNNING)

    def reset(self, broker: InMemoryBroker) -> Scene:
        """Forget what a former test did."""
        vars(self.controller).update(vars(InMemoryController(broker)))
        vars(self.process).update(vars(LocalProcess(Path("headrace.yaml"), self._stop)))
        vars(self.deployment).update(vars(InMemoryDeployment()))
        vars(self.rates).update(vars(Rates(self.controller, SYSTEM_CLOCK)))
        vars(self.rejects).update(vars(Rejects(None, self.controller, SYSTEM_CLOCK)))
        self.stops.clear()
        self.process.become(ProcessPhase.RUNNING)
        return self

    def rate_by(self, clock: Clock) -> None:
        """Take samples by another clock."""
        vars(self.rates).update(vars(Rates(self.controller, clock)))

    def _stop(self, by: str) -> None:
        self.stops.append(by)

    @property
    def trusted(self) -> dict[str, str]:
        """The header that the token goes into."""
        return {"Authorization": f"Bearer {TOKEN}"}

    def get(self, path: str) -> httpx.Response:
        """Read something with the token."""
        return self.client.get(path, headers=self.trusted)

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Change something with the token."""
        return self.client.post(path, headers=self.trusted, json=body)

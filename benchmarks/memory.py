"""What a daemon holds when a backlog meets a processor that takes nothing."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.committed import committed
from benchmarks.report import Report, say
from benchmarks.resident import Resident
from headrace.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.devstack import LocalStack

TARGET = 1.25

_MIB = 1 << 20
_ROOT = Path(__file__).parents[1]

#: Seconds for a daemon to hold its partitions: Spark takes some to start.
_START_TIMEOUT = 180.0

#: Seconds without growth after which a daemon counts as full.
_QUIET = 10.0

#: Processors that stall, by name: what a configuration has to say of them.
_STALLED: dict[str, dict[str, Any]] = {
    "custom": {"processor": {"type": "custom", "factory": "benchmarks.stalling:StalledProcessor"}},
    "spark": {
        "processor": {"type": "spark", "reducer": "benchmarks.stalling:stalled_reducer"},
        "sink": "noop",
    },
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried: values of ``sizes`` bytes, ``backlog`` times the ``budget`` in bytes."""

    processors: tuple[str, ...] = ("custom", "spark")
    sizes: tuple[int, ...] = (160, 1024)
    budget: int = 128 * _MIB
    backlog: float = 5.0
    partitions: int = 4
    quiet: float = _QUIET


def run(plan: Plan | None = None) -> Report:
    """Fill one daemon after the other and watch from outside. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        cases = {
            f"{name}_{size}": _case(plan, servers, name, size)
            for name in plan.processors
            for size in plan.sizes
        }
    worst = max(case["of_budget"] for case in cases.values())
    return Report(
        "memory",
        {
            "worst_of_budget": worst,
            "target": TARGET,
            "met": worst <= TARGET,
            "budget_mib": round(plan.budget / _MIB, 1),
            "backlog_mib": round(plan.budget * plan.backlog / _MIB, 1),
            **cases,
        },
    )


def _case(plan: Plan, servers: LocalStack, name: str, size: int) -> dict[str, Any]:
    topic = f"{name}-{size}"
    stack.create(servers, topic, plan.partitions)
    path = stack.configuration(
        servers.directory / "bench" / topic,
        stack.addresses(servers),
        {
            "topics": [topic],
            "group": topic,
            "batch_timeout": "1h",
            "buffer": {"max_bytes": plan.budget},
            "batch": {"max_bytes": min(16 * _MIB, plan.budget // 2)},
            **_STALLED[name],
        },
        python_path=[str(_ROOT)],
    )
    with _daemon(path) as daemon:
        resident = Resident(daemon.pid)
        _wait_for_partitions(path, plan.partitions, daemon)
        idle = resident.usual(plan.quiet / 2)
        _fill(plan, servers, topic, size, resident)
        case = {
            "idle_mib": round(idle / _MIB, 1),
            "peak_mib": round(resident.peak / _MIB, 1),
            "of_budget": round((resident.peak - idle) / plan.budget, 3),
        }
    say(f"{topic}: {case}")
    return case


@contextmanager
def _daemon(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``headrace run``; kill it at the end, because what it runs never does."""
    command = [sys.executable, "-m", "headrace", "run", "-c", str(path)]
    with subprocess.Popen(command, cwd=_ROOT) as process:
        try:
            yield process
            if process.poll() is not None:
                raise AssertionError(f"the daemon ended with {process.returncode}")
        finally:
            process.kill()


def _wait_for_partitions(path: Path, count: int, daemon: subprocess.Popen[bytes]) -> None:
    """Wait until every partition's start position is stored: from then on it is read."""
    config = load(path)

    def goes_on() -> bool:
        return daemon.poll() is None and None in committed(config, range(count)).values()

    Resident.watch(goes_on, _START_TIMEOUT)
    if goes_on() or daemon.poll() is not None:
        raise AssertionError("the daemon took no partitions; its output is above")


def _fill(plan: Plan, servers: LocalStack, topic: str, size: int, resident: Resident) -> None:
    """Produce the backlog and watch the daemon, until it stops growing."""
    records = int(plan.budget * plan.backlog / size)
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(stack.append, servers, topic, records=records, size=size, keyed=True)
        Resident.watch(lambda: resident.now() > 0 and not filling.done(), _START_TIMEOUT)
        filling.result()
    resident.settle(plan.quiet, _START_TIMEOUT)

"""What the command line and a daemon cost until they do something, with an empty Python."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import psutil

from benchmarks import stack
from benchmarks.report import Report, say
from benchmarks.rounds import alternate
from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack

#: The most that each may take: seconds of processor time, for a daemon seconds until it is ready.
TARGETS = {"help_s": 0.3, "health_s": 0.3, "import_s": 0.2, "simple_ready_s": 1.0}

_ROOT = Path(__file__).parents[1]

#: Seconds that a command, the start of a daemon and its stop may take on a busy machine.
_PATIENCE = 60.0

#: Seconds between two looks whether a daemon that starts is still there.
_LOOK = 1.0

#: Bytes of the longest message that a daemon sends.
_LONGEST = 4096

_WITHOUT_BYTECODE = "PYTHONDONTWRITEBYTECODE"

_HEADRACE = [sys.executable, "-m", "headrace"]


@dataclass(frozen=True, slots=True)
class _Start:
    """What a daemon took until it was ready: seconds, and those of processor time."""

    seconds: float
    processor: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each is started."""

    rounds: int = 9


def run(plan: Plan | None = None) -> Report:
    """Start each in turns, as often as planned. Blocks for a minute or two."""
    plan = plan or Plan()
    with stack.servers() as servers:
        asked, started = (_configured(servers, name) for name in ("asked", "started"))
        sides = {
            "python": lambda: _processor_time([sys.executable, "-c", "pass"]),
            "import": lambda: _processor_time([sys.executable, "-c", "import headrace"]),
            "help": lambda: _processor_time([*_HEADRACE, "--help"]),
            "health": lambda: _processor_time([*_HEADRACE, "health", "-c", str(asked)]),
            "simple_ready": lambda: _ready(started),
        }
        with _daemon(asked):
            # the first start writes bytecode, makes the member's folder and commits the beginning
            alternate(sides, 1, say=say, shortest=0)
            rounds = alternate(sides, plan.rounds, say=say, shortest=0)
    processor = rounds.median("simple_ready", "processor_s")
    seconds = {f"{side}_s": round(rounds.median(side, "seconds"), 3) for side in sides}
    ratios = {
        f"{side}_over_python": round(rounds.ratio(side, "python", "seconds"), 2)
        for side in ("help", "import", "health")
    }
    return Report(
        "startup",
        {
            **ratios,
            **seconds,
            "simple_ready_processor_s": round(processor, 3),
            "missed": [name for name, most in TARGETS.items() if seconds[name] > most],
            "targets": TARGETS,
            "rounds": {side: rounds.values(side, "seconds") for side in sides},
        },
    )


def _processor_time(command: list[str]) -> Measured:
    """Run a command to its end; ``seconds`` is the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        cwd=_ROOT,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=_PATIENCE,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": round(sum(after[:2]) - sum(before[:2]), 4)}


def _environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that keeps bytecode, as one that is installed does."""
    left = {name: value for name, value in os.environ.items() if name != _WITHOUT_BYTECODE}
    return {**left, **more}


def _configured(servers: LocalStack, name: str) -> Path:
    """Write the configuration of a daemon with a simple processor and a topic of its own."""
    stack.create(servers, name, 4)
    channel = {
        "topics": [name],
        "group": name,
        "processor": {"type": "simple"},
        "sink": "builtins:len",
    }
    folder = servers.directory / "bench" / name
    return stack.configuration(folder, stack.addresses(servers), channel, instance_id=name)


def _ready(path: Path) -> Measured:
    """Start a daemon and stop it; ``seconds`` went by until it said that it is ready."""
    with _daemon(path) as start:
        return {"seconds": round(start.seconds, 4), "processor_s": start.processor}


@contextmanager
def _daemon(path: Path) -> Iterator[_Start]:
    """Run ``headrace run``, from when it told systemd's socket that it is ready."""
    address = str(path.parent / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        command, begin = [*_HEADRACE, "run", "-c", str(path)], perf_counter()
        environment = _environment(NOTIFY_SOCKET=address)
        with subprocess.Popen(command, cwd=_ROOT, env=environment) as process:
            try:
                _wait_until_ready(notified, process)
                seconds, times = perf_counter() - begin, psutil.Process(process.pid).cpu_times()
                yield _Start(seconds, times.user + times.system)
                process.send_signal(signal.SIGTERM)
                if process.wait(_PATIENCE):
                    raise AssertionError(f"the daemon ended with {process.returncode}")
            finally:
                process.kill()
                Path(address).unlink()


def _wait_until_ready(notified: socket.socket, process: subprocess.Popen[bytes]) -> None:
    deadline = Deadline.after(_PATIENCE)
    notified.settimeout(_LOOK)
    while process.poll() is None and not deadline.expired:
        with suppress(TimeoutError):
            if "READY=1" in notified.recv(_LONGEST).decode().splitlines():
                return
    raise AssertionError(
        f"the daemon was not ready within {_PATIENCE:g} s (its exit code: {process.poll()}); "
        "its output is above"
    )

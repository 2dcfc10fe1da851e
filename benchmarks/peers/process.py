"""A side's process: asked, heard, and looked at from outside."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peer_sides.wire import Request
    from benchmarks.rounds import Measured

_ROOT = Path(__file__).parents[2]

#: Seconds in which a round has to be over, with the start of the process and of a JVM.
ROUND_TIMEOUT = 300.0

#: Seconds in which a process has to end after its last round.
_END_TIMEOUT = 60.0

#: How much of its output an error quotes, in characters.
_QUOTED = 2_000

_MIB = 1 << 20


class PeerError(Exception):
    """A side cannot be installed or run; the text names it and has its own words."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run, and the folder for what it writes."""

    name: str
    command: Sequence[str]
    folder: Path


class SideProcess:
    """One process of a side, which serves one round or more. All methods block.

    Raises:
        PeerError: the process ended by itself or is silent.
    """

    def __init__(self, program: Program) -> None:
        self._name = program.name
        program.folder.mkdir(parents=True, exist_ok=True)
        self._log = program.folder / f"{program.name}.log"
        variables = {**os.environ, "PYTHONPATH": str(_ROOT)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                program.command,
                cwd=program.folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._heard = b""

    def round(self, request: Request) -> Measured:
        """Have ``request`` read, and return what the side counted and what it took."""
        self._say(json.dumps(asdict(request)))
        deadline = time.monotonic() + ROUND_TIMEOUT
        self._hear("assigned", deadline)
        before = _processor_seconds(self._tree())
        complete = self._hear("complete", deadline)
        tree = self._tree()
        looked = {
            "cpu_seconds": round(_processor_seconds(tree) - before, 2),
            "memory_mib": round(sum(map(_peak, tree)) / _MIB, 1),
            "threads": sum(process.num_threads() for process in tree),
        }
        self._say("go on")
        return {**complete, **looked}

    def stopped(self) -> None:
        """Wait until a process that stays has ended its round."""
        self._hear("stopped", time.monotonic() + _END_TIMEOUT)

    def close(self) -> None:
        """Let the process end, and require that it does so in order."""
        with suppress(BrokenPipeError):
            self._pipe(self._process.stdin).close()
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerError(f"{self._name} did not end in {_END_TIMEOUT:.0f} s") from None
        self._pipe(self._process.stdout).close()
        if code != 0:
            raise self._failure(f"ended with code {code}")

    def kill(self) -> None:
        """End the process and its children now, whatever they are at."""
        for process in self._tree() if self._process.poll() is None else []:
            process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                self._pipe(pipe).close()

    def _say(self, line: str) -> None:
        try:
            self._pipe(self._process.stdin).write(f"{line}\n".encode())
            self._pipe(self._process.stdin).flush()
        except BrokenPipeError:
            raise self._failure("ended by itself") from None

    def _hear(self, event: str, deadline: float) -> dict[str, Any]:
        stream = self._pipe(self._process.stdout)
        while b"\n" not in self._heard:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._failure(f"was not {event} in {ROUND_TIMEOUT:.0f} s")
            read = os.read(stream.fileno(), 1 << 16)
            if not read:
                raise self._failure(f"ended by itself before it was {event}")
            self._heard += read
        line, self._heard = self._heard.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        if said.pop("event") != event:
            raise self._failure(f"was not {event}, but said {line.decode()}")
        return said

    def _tree(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def _failure(self, what: str) -> PeerError:
        said = self._log.read_text(encoding="utf-8", errors="replace")[-_QUOTED:]
        return PeerError(f"{self._name} {what}; its output ends with:\n{said}")

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "opened with the process"
        return pipe


def _processor_seconds(tree: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in tree]
    return float(sum(each.user + each.system for each in times))


def _peak(process: psutil.Process) -> int:
    """Return the most bytes that the process has had resident, as the kernel counts them."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024

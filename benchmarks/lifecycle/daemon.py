"""A real daemon, its configuration file, and its admin API: what an operator has in hand."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from benchmarks.notes import Notes
from benchmarks.report import say
from headrace.config import load
from headrace.config.show import document
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Seconds that anything may take that is waited for.
PATIENCE = 60.0

#: Seconds that a start may take: Spark's is longest.
_START = 240.0

#: Seconds that a change through the API may take.
CHANGE = 20.0

#: How much of a log an error quotes.
_QUOTED_LINES = 40

_TOKEN = "a-token-of-the-benchmark-alone"  # noqa: S105 - nothing but loopback sees it

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a daemon is configured with. ``channels`` has a channel's section by its name.

    ``sections`` replace others of the configuration, and ``environment`` has variables.
    """

    servers: Mapping[str, str]
    channels: Mapping[str, Mapping[str, Any]]
    sections: Mapping[str, Any]
    environment: Mapping[str, str]


#: The number that tells threads of one name, or without one, apart.
_THREAD_NUMBER = re.compile(r"[ -][0-9]{6,}$")


class Daemon:
    """One ``headrace run`` in a folder of its own. For one thread."""

    def __init__(self, name: str, folder: Path, settings: Settings) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.path = self.folder / "headrace.yaml"
        self.log_file = self.folder / "daemon.log"
        self.notes = Notes(notes_file(folder, name))
        self.exits: list[int] = []
        #: what the file says; ``write`` brings changes of it there
        self.document: dict[str, Any] = {
            "instance_id": name,
            "state_dir": str(self.folder / "state"),
            "shutdown_timeout": "20s",
            "python_path": [str(_ROOT)],
            "kafka": {"bootstrap_servers": settings.servers["kafka"]},
            "zookeeper": {"hosts": settings.servers["zookeeper"], "session_timeout": "6s"},
            "logging": {"format": "json"},
            "metrics": {"port": None},
            "admin": {"port": 0, "token": _TOKEN},
            "channels": {name: dict(channel) for name, channel in settings.channels.items()},
            **settings.sections,
        }
        self._environment = {"PYTHONPATH": str(_ROOT), **settings.environment}
        self._process: ServerProcess | None = None
        self._client: httpx.Client | None = None
        self.write()

    # --- its life -------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.exit_code is None

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None, "it was started"
        return self._process.identity.pid

    def start(self) -> None:
        """Start the process, and wait until it does its work. Blocks."""
        self._process = ServerProcess.start(
            [sys.executable, "-m", "headrace", "run", "-c", str(self.path)],
            log_file=self.log_file,
            deadline=Deadline.after(PATIENCE),
            environment=self._environment,
        )
        self._await(self._is_ready, "be ready", _START)

    def stop(self) -> tuple[float, float]:
        """End the process with SIGTERM; return when it was asked to, and when it was gone. Blocks.

        Its code is among ``exits``, also if it had ended before.
        """
        assert self._process is not None, "it was started"
        self._close()
        asked = SYSTEM_CLOCK.monotonic()
        code = self._process.stop(Deadline.after(PATIENCE))
        ended = SYSTEM_CLOCK.monotonic()
        self._note_end(code)
        self._process = None
        return asked, ended

    def await_end(self) -> None:
        """Wait until the process has ended by itself, and take note of its code. Blocks."""
        self._await(lambda: not self.running, "end")
        assert self._process is not None, "it was started"
        self._close()
        self._note_end(self._process.kill())
        self._process = None

    def kill(self) -> None:
        """End the process at once; harmless without one."""
        self._close()
        if self._process is not None:
            self._process.kill()
            self._process = None

    # --- the API --------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """Ask for something."""
        return self._ask("GET", path)

    def post(self, path: str, **body: Any) -> Any:
        """Change something."""
        return self._ask("POST", path, body)

    def partitions(self, channel: str) -> list[dict[str, Any]]:
        """Return the partitions of a channel that the process holds; none where it has no such."""
        found = {each["name"]: each for each in self.get("channels")["channels"]}
        held: list[dict[str, Any]] = found[channel]["partitions"] if channel in found else []
        return held

    @property
    def access(self) -> tuple[str, str]:
        """The address of the API, and the token that lets in."""
        return str(self._api().base_url).rstrip("/"), _TOKEN

    def threads(self) -> list[str]:
        """Return the names of all its Python threads, without the numbers of nameless ones."""
        return [_THREAD_NUMBER.sub("", name) for name in self.get("stacks")["threads"]]

    # --- the file -------------------------------------------------------------------------------

    def write(self) -> float:
        """Put the file in place as editors do, by a rename; return when it was there."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(self.document), encoding="utf-8")
        fresh.replace(self.path)
        return SYSTEM_CLOCK.monotonic()

    def ask_reload(self) -> str:
        """Put the file in place, and have it read; return what came of it. Blocks."""
        self.write()
        outcome: str = self.post("reload", wait_s=CHANGE)["outcome"]
        return outcome

    def reload(self) -> None:
        """Bring all that the document says into effect. Blocks.

        Raises:
            AssertionError: something of it is not.
        """
        outcome = self.ask_reload()
        if outcome not in {"applied", "unchanged"}:
            raise AssertionError(f"the reload of {self.name} came to {outcome}")
        self.await_applied()

    def hang_up(self) -> None:
        """Send SIGHUP."""
        os.kill(self.pid, signal.SIGHUP)

    def await_applied(self) -> float:
        """Wait until all that the file says is in effect, and return when that was. Blocks."""
        wanted = json.loads(json.dumps(document(load(self.path))))
        self._await(lambda: self.get("config")["applied"] == wanted, "apply its file")
        return SYSTEM_CLOCK.monotonic()

    # --- parts ----------------------------------------------------------------------------------

    def _note_end(self, code: int) -> None:
        """Take note of an exit code, and say what led to a bad one: the folder goes at the end."""
        self.exits.append(code)
        if code:
            say("\n".join([f"{self.name} ended with {code}:", *self._last_lines()]))

    def _last_lines(self) -> list[str]:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-_QUOTED_LINES:]

    def _await(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        if not wait_for(condition, Deadline.after(seconds)):
            raise AssertionError(f"{self.name} did not {what} in time; see {self.log_file}")

    def _is_ready(self) -> bool:
        if not self.running:
            raise AssertionError("\n".join([f"{self.name} ended:", *self._last_lines()]))
        try:
            return self._api().get("/health/ready").status_code == httpx.codes.OK
        except (OSError, KeyError, ValueError, httpx.TransportError):
            self._close()
            return False

    def _api(self) -> httpx.Client:
        if self._client is None:
            address = self.folder / "state" / self.name / "admin.json"
            found = json.loads(address.read_text(encoding="utf-8"))
            if found["pid"] != self.pid:
                raise ValueError("the address is a former process's")
            self._client = httpx.Client(
                base_url=found["url"],
                headers={"Authorization": f"Bearer {_TOKEN}"},
                timeout=PATIENCE,
                trust_env=False,
            )
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request and return the answer.

        Raises:
            AssertionError: nobody answered, or with an error.
        """
        try:
            answer = self._api().request(method, f"/api/v1/{path}", json=body)
        except (OSError, httpx.TransportError) as error:
            raise AssertionError(f"{self.name} does not answer: {error!r}") from error
        if answer.is_error:
            raise AssertionError(f"{self.name}: {path}: {answer.text}")
        return answer.json()


def notes_file(folder: Path, name: str) -> Path:
    """Return where the processors of a daemon note what they do."""
    return folder / f"{name}.notes"

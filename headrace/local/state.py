"""What is known about a stack that runs on its own: the file that up writes and down reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.local.errors import LocalStackError
from headrace.local.identity import ProcessIdentity, ProcessState

if TYPE_CHECKING:
    from headrace.local.stack import LocalStack

_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server of the stack."""

    name: str
    address: str
    log_file: str
    process: ProcessIdentity


@dataclass(frozen=True, slots=True)
class StackState:
    """A stack kept by a process of its own, the keeper, and the processes it consists of."""

    keeper: ProcessIdentity
    zookeeper_hosts: str
    bootstrap_servers: str
    servers: tuple[ServerEntry, ...]

    @classmethod
    def of(cls, stack: LocalStack) -> StackState:
        """Return the state of a running stack that this process keeps."""
        keeper = ProcessIdentity.of(os.getpid())
        assert keeper is not None, "this process lives"
        entries = (
            ServerEntry(server.name, server.address, str(server.log_file), server.identity)
            for server in stack.servers
            if server.identity is not None
        )
        return cls(keeper, stack.zookeeper_hosts, stack.bootstrap_servers, tuple(entries))

    @property
    def kept(self) -> bool:
        """Whether the keeper lives; where it does not, its servers do not either."""
        return self.keeper.state is not ProcessState.GONE

    def write(self, directory: Path) -> None:
        """Put the state into the folder's file, whole or not at all."""
        new = directory / f".{_FILE}"
        new.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        new.replace(directory / _FILE)


def read_state(directory: Path) -> StackState | None:
    """Return what the folder's file says, True or not by now; None if there is no file.

    Raises:
        LocalStackError: the file does not hold a state.
    """
    path = directory / _FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return StackState(
            keeper=ProcessIdentity(**facts["keeper"]),
            zookeeper_hosts=facts["zookeeper_hosts"],
            bootstrap_servers=facts["bootstrap_servers"],
            servers=tuple(
                ServerEntry(**{**entry, "process": ProcessIdentity(**entry["process"])})
                for entry in facts["servers"]
            ),
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise LocalStackError(
            f"{path} does not hold the state of a local stack ({error}); delete it"
        ) from error


def remove_state(directory: Path) -> None:
    """Delete the folder's file, if it is there."""
    (directory / _FILE).unlink(missing_ok=True)


def default_directory() -> Path:
    """Return the folder used when none is named: in the user's XDG state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace" / "local"

"""A stack that stays when the command that started it returns: up, down, and what runs now."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.processes import python_command
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.devstack.registry import MINIMUM_JAVA, unpacked
from headrace.devstack.secured import Secured
from headrace.devstack.server import LOOPBACK, PortBook, ProcessState
from headrace.devstack.stack import (
    PORTS_FILE,
    STOP_TIMEOUT_S,
    Blueprint,
    LocalStack,
    StackState,
    read_state,
    remove_addresses,
    remove_state,
    write_addresses,
)
from headrace.devstack.wait import FAR_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


#: Where configurations look for the first servers unless they say otherwise.
USUAL_PORTS = {"zookeeper-1": 2181, "kafka-1": 9092}

#: The keeper's own deadlines end first; this is for a keeper that hangs.
_PATIENCE_S = 10


def running_state(directory: Path) -> StackState | None:
    """Return the state of the stack that runs in ``directory``, None if none does."""
    state = read_state(directory)
    return state if state is not None and state.kept else None


def has_usual_ports(state: StackState) -> bool:
    """Return whether configurations find the servers without being told where they are."""
    addresses = [f"{LOOPBACK}:{port}" for port in USUAL_PORTS.values()]
    return [state.zookeeper_hosts, state.bootstrap_servers] == addresses


def up(directory: Path, *, secured: bool = False, registry: bool = False) -> StackState:
    """Start a stack in ``directory`` that stays, unless one runs there already. Blocks.

    Raises:
        LocalStackError: the stack did not start, and nothing is left running; or one runs there
            that is not ``secured``, or has no ``registry``.
    """
    if state := running_state(directory):
        lacks = "is not secured" if secured and state.secured is None else None
        if registry and state.registry_url is None:
            lacks = "has no registry"
        if lacks is not None:
            raise LocalStackError(
                f"the local stack that runs in {directory} {lacks}; stop it with: headrace local "
                f"down --dir {directory}"
            )
        return state
    directory.mkdir(parents=True, exist_ok=True)
    remove_state(directory)
    # from now on: a stack that does not start is not there, and no other one is taken for it
    write_addresses(directory, *_expected(directory))
    require_java()
    kafka_jars()
    options = [name for name, wanted in (("secured", secured), ("registry", registry)) if wanted]
    if registry:
        require_java(MINIMUM_JAVA)
        unpacked()
    said = _start_keeper(directory, options, Deadline.after(FAR_S + _PATIENCE_S))
    state = running_state(directory)
    if said != READY or state is None:
        raise LocalStackError(said or f"the stack did not start; see {_log(directory)}")
    return state


def _expected(directory: Path) -> tuple[str, str]:
    """Return the addresses that the folder's stack will have unless its ports are taken first."""
    ports = PortBook(directory / PORTS_FILE, USUAL_PORTS)
    kafka, zookeeper = (f"{LOOPBACK}:{ports.port(name)}" for name in ("kafka-1", "zookeeper-1"))
    ports.save()
    return kafka, zookeeper


def down(directory: Path) -> bool:
    """End the stack in ``directory``; False if none ran there. Blocks.

    What it wrote of its addresses goes in any case.

    Only the very processes that the state file names are signalled, never others that were
    given their pids since. A file left by a stack that is gone is removed.
    """
    state = read_state(directory)
    remove_addresses(directory)
    if state is None:
        return False
    was_kept = state.keeper.send(signal.SIGTERM)
    if not wait_for(lambda: not state.kept, Deadline.after(STOP_TIMEOUT_S + _PATIENCE_S)):
        state.keeper.send(signal.SIGKILL)
    if not wait_for(lambda: not _left_processes(state), Deadline.after(_PATIENCE_S)):
        raise LocalStackError(f"these processes do not end: {', '.join(_left_processes(state))}")
    remove_state(directory)
    return was_kept


def _left_processes(state: StackState) -> list[str]:
    processes = {"keeper": state.keeper, **{entry.name: entry.process for entry in state.servers}}
    return [
        f"{name} ({process.pid})"
        for name, process in processes.items()
        if process.state is not ProcessState.GONE
    ]


def _start_keeper(directory: Path, options: Sequence[str], deadline: Deadline) -> str:
    """Start the keeper and return what it says about the start."""
    command = python_command(
        "import pathlib; from headrace.devstack.detached import main; "
        "sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))",
        str(directory),
        *options,
    )
    with (
        _log(directory).open("ab") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as parent,
    ):
        assert parent.stdout is not None
        return _read_all(parent.stdout.fileno(), deadline)


def _read_all(pipe: int, deadline: Deadline) -> str:
    said = b""
    while select.select([pipe], [], [], deadline.remaining)[0]:
        part = os.read(pipe, 4096)
        if not part:
            return said.decode(errors="replace")
        said += part
    return "the stack was not ready in time"


def _log(directory: Path) -> Path:
    return directory / "keeper.log"


log = structlog.get_logger(__name__)

#: What the keeper says when the stack is ready and its state written.
READY = "ready"


def main(directory: Path, options: Sequence[str] = ()) -> int:
    """Keep a stack in ``directory`` until told to stop, and return the exit code.

    ``options`` may have ``secured`` and ``registry``.
    """
    if os.fork():
        # Without the parent's own clean-up: the child still needs what it holds.
        os._exit(0)
    os.setsid()
    outcome = _take_stdout()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        blueprint = Blueprint(
            secured=Secured() if "secured" in options else None, registry="registry" in options
        )
        with LocalStack.start(directory, blueprint=blueprint, usual_ports=USUAL_PORTS) as stack:
            os.write(outcome, READY.encode())
            StackState.of(stack).write(directory)
            write_addresses(directory, stack.bootstrap_servers, stack.zookeeper_hosts)
            os.close(outcome)
            stopped.wait()
            remove_state(directory)
            remove_addresses(directory)
    except BrokenPipeError:
        log.warning("local_stack_orphaned", directory=str(directory))
        return 1
    except HeadraceError as error:
        os.write(outcome, str(error).encode())
        return 1
    return 0


def _take_stdout() -> int:
    """Return a descriptor for what was standard output; what is printed goes to the log now."""
    outcome = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return outcome

"""The process that owns a stack which outlives the command that started it.

``main`` leaves its parent, starts the stack, says
on standard output how that went (``READY``, otherwise the error) and closes it. From then on it
holds the stack until SIGTERM or SIGINT. If it is killed, the servers end as well; if nobody reads
what it says, it gives up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from headrace.errors import HeadraceError
from headrace.local.stack import LocalStack
from headrace.local.state import StackState, remove_state

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)

#: What the keeper says when the stack is ready and its state written.
READY = "ready"


def main(directory: Path) -> int:
    """Keep a stack in ``directory`` until told to stop, and return the exit code."""
    if os.fork():
        # Without the parent's own clean-up: the child still needs what it holds.
        os._exit(0)
    os.setsid()
    outcome = _take_stdout()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with LocalStack.start(directory) as stack:
            os.write(outcome, READY.encode())
            StackState.of(stack).write(directory)
            os.close(outcome)
            stopped.wait()
            remove_state(directory)
    except BrokenPipeError:
        log.warning("local_stack_unwanted", directory=str(directory))
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

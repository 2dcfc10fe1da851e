"""From a user's code to the plan of its topology."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from threading import Thread
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError, ImportPathError
from headrace.core.imports import load_factory
from headrace.core.progress import Silence, own_processor_time
from headrace.core.user_text import describe_error
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.plan import make_plan
from headrace.extensions.streams.tables import with_tables
from headrace.extensions.streams.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from headrace.extensions.streams.plan import Plan

#: Seconds without processor time of its own after which the code is taken to wait for something,
#: which it is not to do. Its imports may wait for a slow disk.
SILENCE_S = 15.0

#: Seconds of processor time after which it is taken to compute without end. Its imports take one or
#: two.
MOST_WORK_S = 30.0

#: Seconds between two looks at what it has used.
_LOOK_S = 0.1


def load_plan(  # noqa: PLR0917 - what a configuration says of a topology
    code: str,
    options: Mapping[str, Any],
    name: str,
    group: str,
    tables: Mapping[str, str],
    folders: Iterable[Path | str] = (),
) -> Plan:
    """Return the plan of the topology that a function returns, called with ``options``. Imports.

    ``tables`` name the aggregates whose updates or final rows go to tables; ``folders`` are looked
    in first. The plan is a value: the same in each process for the same code.

    Raises:
        ConfigError: the function cannot be imported or called, returns something else or does not
            return, or its operators do not fit together; each sentence goes on from the name of
            the code.
    """
    sys.path[:0] = [each for each in map(str, folders) if each not in sys.path]
    made = _call(code, options)
    if not isinstance(made, Topology):
        kind = type(made).__name__
        raise ConfigError([f"returns a {kind}, and a headrace.streams.Topology is expected"])
    emits = {table: Emit(rows) for table, rows in tables.items()}
    operators = with_tables(made.operators, emits, group)
    try:
        return make_plan(operators, name, group)
    except ConfigError as error:
        problems = [f"does not fit together: {each}" for each in error.problems]
        raise ConfigError(problems) from error


def _call(code: str, options: Mapping[str, Any]) -> object:
    """Return what the function returns, for as long as it works: one that hangs is left behind.

    What it prints goes to standard error, as standard output is that of commands.
    """
    found: list[object] = []
    problems: list[str] = []

    clocks: list[Callable[[], float]] = []

    def run() -> None:
        clocks.append(own_processor_time())
        try:
            found.append(load_factory(code, options)(**options))
        except ImportPathError as error:
            problems.append(f"cannot be used: {error}")
        except ConfigError as error:  # its text names the operator
            problems.extend(f"fails: {each}" for each in error.problems)
        except BaseException as error:  # noqa: BLE001 - the user's code, which may exit
            problems.append(f"fails: {describe_error(error)}")

    thread = Thread(target=run, name="topology", daemon=True)
    with redirect_stdout(sys.stderr):
        thread.start()
        hang = _hang(thread, lambda: sum(used() for used in clocks))
    if problems:
        raise ConfigError(problems)
    if not found:
        problem = (
            f"{hang}, without returning its topology; it is called whenever the configuration is "
            "read, so have it make operators only, and read or write nothing"
        )
        raise ConfigError([problem])
    return found[0]


def _hang(thread: Thread, used: Callable[[], float]) -> str:
    """Wait for a thread to end; return what it does instead, of one that does not."""
    silence = Silence(lambda: round(used(), 2), SILENCE_S)
    while thread.is_alive():
        if used() >= MOST_WORK_S:
            return f"has computed for {MOST_WORK_S:g} s"
        if silence.is_over():
            return f"has done nothing for {SILENCE_S:g} s"
        thread.join(_LOOK_S)
    return "has ended"

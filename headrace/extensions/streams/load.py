"""From a user's code to the plan of its topology."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from threading import Thread
from time import process_time
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError, ImportPathError
from headrace.core.imports import load_factory
from headrace.core.user_text import describe_error
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.plan import make_plan
from headrace.extensions.streams.tables import with_tables
from headrace.extensions.streams.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from headrace.extensions.streams.plan import Plan

#: Seconds in which the code has to return its topology: it makes expressions, and reads nothing.
#: They count in full only where the code waits for something, or has the processor.
LIMIT = 5.0

#: Seconds of the processor below which code that was looked at for ``LIMIT`` is taken to wait.
_WORK = 0.25

#: How often code that works is looked at: on a machine that is busy it has a part of a core only.
_LOOKS = 12


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


def _wait(thread: Thread) -> None:
    """Wait for a thread that works, until it had the processor for the limit."""
    begin = process_time()
    for _ in range(_LOOKS):
        before = process_time()
        thread.join(LIMIT)
        worked = process_time()
        if not thread.is_alive() or worked - before < _WORK or worked - begin >= LIMIT:
            return


def _call(code: str, options: Mapping[str, Any]) -> object:
    """Return what the function returns, within the limit: a thread that hangs is left behind.

    What it prints goes to standard error, as standard output is that of commands.
    """
    found: list[object] = []
    problems: list[str] = []

    def run() -> None:
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
        _wait(thread)
    if problems:
        raise ConfigError(problems)
    if not found:
        problem = (
            f"has not returned its topology after {LIMIT:g} s; it is called whenever the "
            "configuration is read, so have it make operators only, and read or write nothing"
        )
        raise ConfigError([problem])
    return found[0]

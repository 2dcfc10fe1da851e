"""The commands ``headrace workflow run|start|result|show|list|status|signal|cancel``.

Exit codes: 0 done, and an instance that is waited for has succeeded; 1 it has failed, or Kafka
refused or did not answer; 2 the command line or a workflow cannot be used; 4 no outcome within the
timeout, no such instance, or not all instances were read in time. Those of ``run`` are those of
``headrace run``.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.apps.options import (
    CreateOption,
    EngineName,
    EngineOption,
    PartitionsOption,
    PrintConfigOption,
    PropertiesOption,
    named,
    parsed,
)
from headrace.core.options import command_group

if TYPE_CHECKING:
    from headrace.apps.workflow.selection import Selection

app = command_group(help="Run workflows: calls in sequence, in parallel, by choice and in loops.")

_Brokers = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,...",
        envvar="WORKFLOW_BROKERS",
        help="The brokers to ask for the cluster's layout.",
    ),
]
_Name = Annotated[
    str,
    typer.Option(metavar="NAME", help="The topic of the events, and the prefix of the others."),
]
_Workflows = Annotated[
    str,
    typer.Option(
        metavar="MODULE:NAME",
        envvar="WORKFLOWS",
        help="The module and name of the workflows; the current folder is searched.",
    ),
]
_Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait.")]


class NodeRole(Enum):
    """The role of a process that runs workflows."""

    BOTH = "both"
    """It reduces instances, and makes calls."""

    REDUCER = "reducer"
    """It reduces instances."""

    WORKER = "worker"
    """It makes calls."""


@app.command()
def run(  # noqa: PLR0917 - the parts of a configuration
    workflows: _Workflows,
    brokers: _Brokers,
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="WORKFLOW_ZOOKEEPER",
            help="The servers by which several processes share the partitions.",
        ),
    ] = "localhost:2181",
    name: _Name = "workflow",
    role: Annotated[NodeRole, typer.Option(help="What this process does.")] = NodeRole.BOTH,
    threads: Annotated[int, typer.Option(min=1, help="How many calls are made at once.")] = 4,
    engine: EngineOption = EngineName.ARROW,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            resolve_path=True,
            help="A folder of the process's own for the instances and the configuration; without "
            "it headrace/NAME-ROLE in the user's state folder.",
        ),
    ] = None,
    partitions: PartitionsOption = 8,
    properties: PropertiesOption = None,
    *,
    create: CreateOption = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Write each instance's states to the topic NAME.history."),
    ] = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Reduce workflows, make their calls, or both, until SIGTERM or SIGINT.

    The same as `headrace run` with the configuration that --print-config prints.

    Exit codes: 0 stopped cleanly, 1 unexpected, 2 the command line cannot be used, 3 not started,
    4 a channel failed, 5 the stop overran its deadline, 70 to be started again.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    node = commands.node(
        workflows,
        brokers,
        name,
        state_dir,
        zookeeper=zookeeper,
        role=role.value,
        threads=threads,
        engine=engine.value,
        properties=named(properties),
        history=history,
    )
    count = partitions if create else None
    raise typer.Exit(commands.run(node, create=count, print_only=print_config))


@app.command()
def start(  # noqa: PLR0917 - an instance, and where it goes
    definition: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW", help="The workflow: name, its latest version, or name@version."
        ),
    ],
    workflows: _Workflows,
    brokers: _Brokers,
    args: Annotated[str, typer.Option(metavar="JSON", help="Its arguments, as an object.")] = "{}",
    instance: Annotated[
        str | None,
        typer.Option("--id", help="An id of your choice; a second start with it does nothing."),
    ] = None,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
) -> None:
    """Start an instance. Prints its id."""
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    found = parsed(args, "--args")
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{args!r} is no object", param_hint="--args")
    chosen = commands.Place(brokers, name, named(properties))
    raise typer.Exit(commands.start(chosen, workflows, definition, found, instance))


@app.command()
def result(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The id of the instance.")],
    brokers: _Brokers,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
) -> None:
    """Wait for an instance's result and print it, however late you ask."""
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, named(properties))
    raise typer.Exit(commands.result(place, instance, timeout))


@app.command()
def show(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The id of the instance.")],
    brokers: _Brokers,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
) -> None:
    """Draw an instance's term, with its done, open and failed parts.

    The state is kept for ten minutes after the instance's end, unless the channel says otherwise.
    After that only the outcome is printed.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, named(properties))
    raise typer.Exit(commands.show(place, instance))


class _Phase(Enum):
    OPEN = "open"
    FAILING = "failing"
    UNDOING = "undoing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_Definition = Annotated[
    str | None,
    typer.Option(metavar="WORKFLOW", help="Only those of a workflow, name, or name@version."),
]
_Phases = Annotated[
    list[_Phase] | None,
    typer.Option("--phase", help="Only those in this phase; may be repeated."),
]
_OlderThan = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Only those started longer ago, such as 90s or 2h."),
]
_Args = Annotated[
    list[str] | None,
    typer.Option(
        "--args",
        metavar="KEY=VALUE",
        help="Only those that are open with this argument, as text or JSON; may be repeated.",
    ),
]
_Limit = Annotated[
    int | None, typer.Option(min=1, help="The most to take, of those that were started first.")
]


def _selection(
    definition: str | None,
    phases: list[_Phase] | None,
    older_than: str | None,
    args: list[str] | None,
    limit: int | None,
) -> Selection:
    """Return what options select; raises typer.BadParameter for one that cannot be used."""
    from headrace.apps.workflow.selection import (  # noqa: PLC0415 - takes a second to import
        Selection,
    )
    from headrace.config.types.units import parse_duration  # noqa: PLC0415 - imports pydantic

    age = None if older_than is None else parse_duration(older_than)
    if older_than is not None and age is None:
        text = f"{older_than!r} is no duration; take one such as 90s, 10m or 2h"
        raise typer.BadParameter(text, param_hint="--older-than")
    chosen = frozenset(each.value for each in phases or [])
    return Selection(definition, chosen, age, named(args, "--args"), limit)


@app.command(name="list")
def list_(  # noqa: PLR0917 - the parts of a selection
    brokers: _Brokers,
    definition: _Definition = None,
    phase: _Phases = None,
    older_than: _OlderThan = None,
    args: _Args = None,
    limit: _Limit = None,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line each.")] = False,
) -> None:
    """List instances that are remembered, those that were started first in front.

    Covers all processes: it reads the last committed states of all instances that are kept.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, named(properties))
    chosen = _selection(definition, phase, older_than, args, limit)
    raise typer.Exit(commands.list_instances(place, chosen, timeout=timeout, as_json=as_json))


@app.command()
def cancel(  # noqa: PLR0917 - the parts of a selection
    brokers: _Brokers,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the outcomes say so.")],
    instances: Annotated[
        list[str] | None, typer.Argument(metavar="INSTANCE...", help="The ids of the instances.")
    ] = None,
    definition: _Definition = None,
    phase: _Phases = None,
    older_than: _OlderThan = None,
    args: _Args = None,
    limit: _Limit = None,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
    *,
    terminate: Annotated[
        bool, typer.Option("--terminate", help="Undo nothing, and stop what is being undone.")
    ] = False,
) -> None:
    """Cancel instances by their ids, or all that have no outcome and that the options select.

    Open calls are cancelled, and what was done is undone, where the definition says how. The
    outcome says by whom and why. Prints the ids of those that were asked to end; one that has an
    outcome by then keeps it.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    options = (definition, phase, older_than, args, limit)
    if bool(instances) == any(options):
        text = "give the ids of instances, or options that select some, such as --definition"
        raise typer.BadParameter(text, param_hint="INSTANCE")
    place = commands.Place(brokers, name, named(properties))
    chosen = list(instances or []) or _selection(*options)
    raise typer.Exit(commands.cancel(place, chosen, reason, timeout=timeout, terminate=terminate))


@app.command()
def signal(  # noqa: PLR0917 - a signal, and where it goes
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The id of the instance.")],
    signal_name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The name of the signal.")],
    brokers: _Brokers,
    value: Annotated[str, typer.Option(metavar="JSON", help="Its value.")] = "null",
    signal_id: Annotated[
        str | None,
        typer.Option("--id", help="An id of your choice; a second signal with it does nothing."),
    ] = None,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
) -> None:
    """Send a signal: a Wait for this name takes its value, now or once it comes there."""
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, named(properties))
    found = parsed(value, "--value")
    raise typer.Exit(commands.signal(place, instance, signal_name, found, signal_id))


@app.command()
def status(
    brokers: _Brokers,
    oldest: Annotated[
        int,
        typer.Option(min=0, help="How many of the instances that have been open longest to list."),
    ] = 5,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: PropertiesOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Count the instances by phase, with what is in flight and how attempts have ended.

    Covers all processes: it reads the last committed states of all instances that are kept.
    `headrace status` shows what one process does, and since when.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, named(properties))
    raise typer.Exit(commands.status(place, oldest=oldest, timeout=timeout, as_json=as_json))

"""The commands of the workflow executor: ``headrace workflow run|start|result|show|status``.

Exit codes: 0 done, and an instance that is waited for has succeeded; 1 it has failed, or Kafka
refused or did not answer; 2 the command line or a workflow cannot be used; 4 no outcome within the
timeout, no such instance, or not all instances were read in time. Those of ``run`` are those of
``headrace run``.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

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

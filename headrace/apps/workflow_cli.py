"""The commands of the workflow executor: ``headrace workflow run|start|result|show|status|demo``.

Exit codes: 0 done, and an instance that is waited for has succeeded; 1 it has failed, or Kafka
refused or did not answer; 2 the command line or a workflow cannot be used; 4 no outcome within the
timeout, no such instance, or not all instances were read in time. Those of ``run`` are those of
``headrace run``.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated, Any

import typer

from headrace.core.options import command_group

workflow = command_group(
    help="Call processes in sequence, in parallel, by choice and in loops, by instances."
)

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
    typer.Option(metavar="NAME", help="The topic of the events, with which the others begin."),
]
_Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="NAME=VALUE",
        help="A property of librdkafka, as for TLS; may be repeated.",
    ),
]
_Workflows = Annotated[
    str,
    typer.Option(
        metavar="MODULE:NAME",
        envvar="WORKFLOWS",
        help="Where the workflows are imported from; modules of the current folder are found.",
    ),
]
_Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait.")]


class Role(Enum):
    """What a process does for workflows."""

    BOTH = "both"
    """It reduces instances, and makes calls."""

    REDUCER = "reducer"
    """It reduces instances."""

    WORKER = "worker"
    """It makes calls."""


class Engine(Enum):
    """Where instances are reduced."""

    SPARK = "spark"
    """In Spark's workers."""

    INLINE = "inline"
    """In the process itself, which takes no Java."""


@workflow.command()
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
    role: Annotated[Role, typer.Option(help="What this process does.")] = Role.BOTH,
    threads: Annotated[int, typer.Option(min=1, help="How many calls are made at once.")] = 4,
    engine: Annotated[
        Engine, typer.Option(help="In Spark's workers, or in the process itself.")
    ] = Engine.INLINE,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            resolve_path=True,
            help="A folder of the process's own for the instances and the configuration; without "
            "it headrace/NAME-ROLE in the user's state folder.",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="How many partitions topics are created with.")
    ] = 8,
    properties: _Property = None,
    *,
    create: Annotated[
        bool, typer.Option("--create", help="Create the topics that are not there.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration, and run nothing.")
    ] = False,
) -> None:
    """Reduce workflows, make their calls, or both, until SIGTERM or SIGINT.

    It is the process that `headrace run` starts on the configuration that --print-config prints.

    Exit codes: 0 stopped in order, 1 unexpected, 2 the command line cannot be used, 3 not started,
    4 a channel failed, 5 the stop overran its deadline, 70 to be started afresh.
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
        properties=_named(properties),
    )
    count = partitions if create else None
    raise typer.Exit(commands.run(node, create=count, print_only=print_config))


@workflow.command()
def start(  # noqa: PLR0917 - an instance, and where it goes
    definition: Annotated[
        str, typer.Argument(help="The workflow: name, its latest version, or name@version.")
    ],
    workflows: _Workflows,
    brokers: _Brokers,
    args: Annotated[str, typer.Option(metavar="JSON", help="Its arguments, as an object.")] = "{}",
    instance: Annotated[
        str | None,
        typer.Option("--id", help="An id of one's own: started twice, it is started once."),
    ] = None,
    name: _Name = "workflow",
    properties: _Property = None,
) -> None:
    """Start an instance. Prints its id."""
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    found = _json(args, "--args")
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{args!r} is no object", param_hint="--args")
    chosen = commands.Place(brokers, name, _named(properties))
    raise typer.Exit(commands.start(chosen, workflows, definition, found, instance))


@workflow.command()
def result(
    instance: Annotated[str, typer.Argument(help="The id of the instance.")],
    brokers: _Brokers,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: _Property = None,
) -> None:
    """Wait for an instance's result, and print it; however late one asks."""
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, _named(properties))
    raise typer.Exit(commands.result(place, instance, timeout))


@workflow.command()
def show(
    instance: Annotated[str, typer.Argument(help="The id of the instance.")],
    brokers: _Brokers,
    name: _Name = "workflow",
    properties: _Property = None,
) -> None:
    """Draw an instance's term with what is done, open and failed.

    It is drawn from its state, which is remembered for ten minutes after its end, or as the channel
    says; then only its outcome is printed.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, _named(properties))
    raise typer.Exit(commands.show(place, instance))


@workflow.command()
def status(
    brokers: _Brokers,
    oldest: Annotated[
        int, typer.Option(min=0, help="How many of those that have been open for longest to list.")
    ] = 5,
    timeout: _Timeout = 60.0,
    name: _Name = "workflow",
    properties: _Property = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Count the instances by phase, with what is in flight and how attempts have ended.

    Of all processes together: it reads the states of all instances that are remembered, as they
    were last committed. What one process does, also since when, is in its `headrace status`.
    """
    from headrace.apps.workflow import commands  # noqa: PLC0415 - takes a second to import

    place = commands.Place(brokers, name, _named(properties))
    raise typer.Exit(commands.status(place, oldest=oldest, timeout=timeout, as_json=as_json))


@workflow.command()
def demo(
    instances: Annotated[
        int,
        typer.Option(min=100, max=336_776, help="How many flights, from the first of 2013 on."),
    ] = 20_000,
    engine: Annotated[
        Engine, typer.Option(help="In Spark's workers, or in the process itself.")
    ] = Engine.INLINE,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", file_okay=False, help="An empty folder to work in, which is then kept."
        ),
    ] = None,
) -> None:
    """Run the turnaround of real flights as workflows, kill processes on the way, check all.

    Starts ZooKeeper and Kafka, a reducer and two workers; each is killed and started again.
    A flight is an instance: inspect, refuel and clean, board, which fails for those that were
    cancelled. The last line says whether each instance has exactly one outcome, and the right one,
    and whether each call had its effect once.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    from headrace.apps.workflow.demo import main  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(main(instances, engine.value, directory))


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}", param_hint=option) from None


def _named(properties: list[str] | None) -> dict[str, str]:
    found = {}
    for each in properties or []:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--property")
        found[name] = value
    return found

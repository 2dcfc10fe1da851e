"""The commands of applications of elements: ``headrace elements run|show``.

Exit codes: 0 done; 2 the command line or the application cannot be used. Those of ``run`` are those
of ``headrace run``.
"""

from __future__ import annotations

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
)
from headrace.core.options import command_group

app = command_group(help="Run applications of processing elements and the streams between them.")

_App = Annotated[
    str,
    typer.Option(
        "--app",
        metavar="MODULE:NAME",
        envvar="ELEMENTS_APP",
        help="The module and name of the application; the current folder is searched.",
    ),
]
_Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What its groups and topics begin with; without it the name that its class gives.",
    ),
]


@app.command()
def run(  # noqa: PLR0917 - the parts of a configuration
    application: _App,
    brokers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="ELEMENTS_BROKERS",
            help="The brokers to ask for the cluster's layout.",
        ),
    ] = "localhost:9092",
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="ELEMENTS_ZOOKEEPER",
            help="The servers by which several processes share the partitions.",
        ),
    ] = "localhost:2181",
    name: _Name = None,
    engine: EngineOption = EngineName.ARROW,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            resolve_path=True,
            help="A folder of the process's own for the instances and the configuration; without "
            "it headrace/NAME in the user's state folder.",
        ),
    ] = None,
    partitions: PartitionsOption = 8,
    properties: PropertiesOption = None,
    *,
    create: CreateOption = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Run an application until SIGTERM or SIGINT.

    The same as `headrace run` with the configuration that --print-config prints. Processes with the
    same name share the partitions.

    Exit codes: 0 stopped cleanly, 1 unexpected, 2 the command line cannot be used, 3 not started,
    4 a channel failed, 5 the stop overran its deadline, 70 to be started again.
    """
    from headrace.apps.elements import commands  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(
        commands.run(
            application,
            brokers,
            name,
            state_dir,
            partitions if create else None,
            print_only=print_config,
            zookeeper=zookeeper,
            engine=engine.value,
            properties=named(properties),
        )
    )


@app.command()
def show(
    application: _App,
    name: _Name = None,
    *,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a picture in the language of Mermaid.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show an application: its parts, their elements, and the topics between them.

    Elements of a part are in one task, and what one emits to another by its own key stays there.
    Exit codes: 0 shown, 2 the application cannot be used.
    """
    from headrace.apps.elements import commands  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(commands.show(application, name, mermaid=mermaid, as_json=as_json))

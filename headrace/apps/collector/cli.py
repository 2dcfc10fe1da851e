"""The commands of the collector: ``headrace collector run|create|done|watch``.

Exit codes: 0 done, and a group that is waited for has succeeded; 1 the group failed, or Kafka
refused or did not answer; 2 the command line cannot be used; 4 no outcome within the wait. Those
of ``run`` are those of ``headrace run``, and 1 without brokers.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated, Any

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

app = command_group(
    help="Collect the answers that groups of events wait for: one outcome for each group."
)

#: The original's topic.
TOPIC = "eventbus-collector"

_BROKERS = typer.Option(
    "--brokerlist",
    "-brokerlist",
    metavar="HOST:PORT,...",
    envvar="COLLECTOR_BROKERLIST",
    help="The brokers to ask for the cluster's layout.",
)
_Brokers = Annotated[str, _BROKERS]
_Topic = Annotated[
    str,
    typer.Option(
        "--event-topic",
        "-event-topic",
        metavar="TOPIC",
        envvar="COLLECTOR_EVENT_TOPIC",
        help="The topic of the events.",
    ),
]
_Outcomes = Annotated[
    str | None,
    typer.Option(
        "--outcome-topic",
        "-outcome-topic",
        metavar="TOPIC",
        envvar="COLLECTOR_OUTCOME_TOPIC",
        help="The topic of the outcomes; by default that of the events, with -outcomes added.",
    ),
]


class CollectorMode(Enum):
    """The collector's treatment of events that come twice, late or out of order."""

    STRICT = "strict"
    """One outcome for each group."""

    COMPAT = "compat"
    """As the original, byte for byte."""


@app.command(context_settings={"help_option_names": ["-h", "-help", "--help"]})
def run(  # noqa: PLR0917 - the parts of a configuration
    context: typer.Context,
    brokers: Annotated[str | None, _BROKERS] = None,
    topic: _Topic = TOPIC,
    outcomes: _Outcomes = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected-topic",
            metavar="TOPIC",
            help="The topic for skipped events; by default they are only counted.",
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-topic",
            metavar="TOPIC",
            help="Where records go that fail the collector itself; without it they are tried "
            "again, and their partition waits.",
        ),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="COLLECTOR_ZOOKEEPER",
            help="The servers by which several collectors share the partitions.",
        ),
    ] = "localhost:2181",
    mode: Annotated[
        CollectorMode,
        typer.Option(
            metavar="strict|compat", help="One outcome for each group, or as the original did it."
        ),
    ] = CollectorMode.STRICT,
    engine: EngineOption = EngineName.SPARK,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="The group whose members share the partitions.")
    ] = "collector",
    state_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            resolve_path=True,
            help="A folder of the process's own for the groups and the configuration; without it "
            "headrace/collector in the user's state folder.",
        ),
    ] = None,
    partitions: PartitionsOption = 8,
    properties: PropertiesOption = None,
    *,
    create: CreateOption = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Run a collector on the given topics until SIGTERM or SIGINT.

    The same as `headrace run` with the configuration that --print-config prints.

    Exit codes: 0 stopped cleanly, 1 no brokers are named, or unexpected, 2 the command line
    cannot be used, 3 not started, 4 the collector failed, 5 the stop overran its deadline, 70 to
    be started again.
    """
    if not brokers:
        typer.echo("Missing argument - brokerlist", err=True)
        typer.echo("name the brokers with -brokerlist, or in COLLECTOR_BROKERLIST", err=True)
        typer.echo(context.get_usage(), err=True)
        raise typer.Exit(1)
    from headrace.apps.collector import daemon_config  # noqa: PLC0415 - takes a second to import

    wanted = daemon_config.CollectorOptions(
        brokers,
        topic,
        outcomes or _outcomes_of(topic),
        rejected,
        dead_letters=dead_letters,
        zookeeper=zookeeper,
        mode=mode.value,
        engine=engine.value,
        group=group,
        state_dir=state_dir,
        create=partitions if create else None,
        properties=named(properties),
    )
    raise typer.Exit(daemon_config.run(wanted, print_only=print_config))


@app.command()
def create(  # noqa: PLR0917 - the members of an event
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The id of the group.")],
    brokers: _Brokers,
    expected: Annotated[
        list[str] | None, typer.Argument(metavar="ENTITY", help="The entities to wait for.")
    ] = None,
    ttl: Annotated[int | None, typer.Option(help="Seconds to wait; 30 by default.")] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="A value to return with the outcome.")
    ] = None,
    need: Annotated[int | None, typer.Option(help="How many successes are enough.")] = None,
    onsuccess: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A second topic for a success.")
    ] = None,
    onfailure: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A second topic for a failure.")
    ] = None,
    topic: _Topic = TOPIC,
    properties: PropertiesOption = None,
    *,
    fail_fast: Annotated[
        bool,
        typer.Option(help="Fail as soon as no success is possible, or when all have answered."),
    ] = True,
) -> None:
    """Create a group that waits for entities. Prints the event."""
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    handlers = {"onsuccess": onsuccess, "onfailure": onfailure}
    event = commands.create_event(
        group,
        expected or [],
        ttl=ttl,
        payload=parsed(payload, "--payload"),
        need=need,
        fail_fast=None if fail_fast else False,
        handler={name: {"topic": to} for name, to in handlers.items() if to is not None} or None,
    )
    raise typer.Exit(commands.send(_client(brokers, properties), topic, group, event))


@app.command()
def done(  # noqa: PLR0917 - the members of an event
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The id of the group.")],
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="The entity that is done.")],
    brokers: _Brokers,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="Its result.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Why it failed.")] = None,
    topic: _Topic = TOPIC,
    properties: PropertiesOption = None,
) -> None:
    """Report that an entity of a group is done, or has failed. Prints the event."""
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    event = commands.done_event(group, entity, result=parsed(result, "--result"), error=error)
    raise typer.Exit(commands.send(_client(brokers, properties), topic, group, event))


@app.command()
def watch(  # noqa: PLR0917 - where to look, and how long
    brokers: _Brokers,
    group: Annotated[
        str | None,
        typer.Argument(metavar="GROUP", help="The group to wait for; by default all are shown."),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait; by default until Ctrl-C."),
    ] = None,
    topic: _Topic = TOPIC,
    outcomes: _Outcomes = None,
    properties: PropertiesOption = None,
    *,
    new: Annotated[
        bool,
        typer.Option("--new", help="Leave out outcomes that are in the topic already."),
    ] = False,
) -> None:
    """Print outcomes, or wait for the outcome of one group.

    Prints one line for each success and failure, as it is in the topic, from the topic's beginning,
    so the outcome of a group is found at any time. The exit code is that of the group's outcome.
    """
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    client = _client(brokers, properties)
    found = outcomes or _outcomes_of(topic)
    raise typer.Exit(commands.watch(client, found, group, wait=wait, only_new=new))


def _outcomes_of(topic: str) -> str:
    """Return where the outcomes of a topic's events are, if nothing else is said."""
    return f"{topic}-outcomes"


def _client(brokers: str, properties: list[str] | None) -> dict[str, Any]:
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    try:
        return commands.client(brokers, named(properties))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--brokerlist or --property") from None

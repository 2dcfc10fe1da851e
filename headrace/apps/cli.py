"""The commands of the applications: ``headrace collector create|done|watch``.

They are not in the rooms of the applications, which import their reducers.

Exit codes: 0 done, and a group that is waited for has succeeded; 1 the group failed, or Kafka
refused or did not answer; 2 the command line cannot be used; 4 no outcome within the wait.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from headrace.core.options import command_group

collector = command_group(
    help="Create groups of events, say that entities are done, and see outcomes."
)

#: The original's topic.
TOPIC = "eventbus-collector"

_Brokers = Annotated[
    str,
    typer.Option(
        "--brokerlist",
        "-brokerlist",
        metavar="HOST:PORT,...",
        envvar="COLLECTOR_BROKERLIST",
        help="The brokers to ask for the cluster's layout.",
    ),
]
_Topic = Annotated[
    str,
    typer.Option(
        "--event-topic",
        "-event-topic",
        metavar="TOPIC",
        envvar="COLLECTOR_EVENT_TOPIC",
        help="The topic of the events, or with watch of the outcomes.",
    ),
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


@collector.command()
def create(  # noqa: PLR0917 - the members of an event
    group: Annotated[str, typer.Argument(help="The id of the group.")],
    brokers: _Brokers,
    expected: Annotated[list[str] | None, typer.Argument(help="The entities to wait for.")] = None,
    ttl: Annotated[int | None, typer.Option(help="Seconds to wait; 30 without it.")] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the outcome gives back.")
    ] = None,
    need: Annotated[int | None, typer.Option(help="How many successes are enough.")] = None,
    onsuccess: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where a success goes as well.")
    ] = None,
    onfailure: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where a failure goes as well.")
    ] = None,
    topic: _Topic = TOPIC,
    properties: _Property = None,
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
        payload=_json(payload, "--payload"),
        need=need,
        fail_fast=None if fail_fast else False,
        handler={name: {"topic": to} for name, to in handlers.items() if to is not None} or None,
    )
    raise typer.Exit(commands.send(_client(brokers, properties), topic, group, event))


@collector.command()
def done(  # noqa: PLR0917 - as above
    group: Annotated[str, typer.Argument(help="The id of the group.")],
    entity: Annotated[str, typer.Argument(help="The entity that is done.")],
    brokers: _Brokers,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="Its result.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Why it failed.")] = None,
    topic: _Topic = TOPIC,
    properties: _Property = None,
) -> None:
    """Say that an entity of a group is done, or has failed. Prints the event."""
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    event = commands.done_event(group, entity, result=_json(result, "--result"), error=error)
    raise typer.Exit(commands.send(_client(brokers, properties), topic, group, event))


@collector.command()
def watch(
    brokers: _Brokers,
    group: Annotated[
        str | None, typer.Argument(help="The group to wait for; without it all are shown.")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long; without it until Ctrl-C."),
    ] = None,
    topic: _Topic = TOPIC,
    properties: _Property = None,
    *,
    new: Annotated[
        bool,
        typer.Option("--new", help="Leave out what is in the topic already."),
    ] = False,
) -> None:
    """Print outcomes, or wait for the outcome of one group.

    A line for each success and failure, as it is in the topic, from the topic's beginning on: that
    of a group is found however late one asks. The exit code is that of the group's outcome.
    """
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    client = _client(brokers, properties)
    raise typer.Exit(commands.watch(client, topic, group, wait=wait, only_new=new))


def _json(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}", param_hint=option) from None


def _client(brokers: str, properties: list[str] | None) -> dict[str, Any]:
    from headrace.apps.collector import commands  # noqa: PLC0415 - takes a second to import

    found = {}
    for each in properties or []:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--property")
        found[name] = value
    try:
        return commands.client(brokers, found)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--brokerlist or --property") from None

"""The plan of a topology as text for people, JSON for programs, or a picture."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import typer

from headrace.core.errors import UsageError
from headrace.core.hints import did_you_mean
from headrace.extensions.streams.operators import Source, TableSource
from headrace.extensions.streams.section import TopologyConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from headrace.config import Config
    from headrace.extensions.streams.plan import Channel, Plan


class Form(Enum):
    """The form in which a plan is printed."""

    TEXT = auto()
    JSON = auto()
    MERMAID = auto()


def show_plan(config: Config, topology: str | None, form: Form) -> None:
    """Print the plan of a topology; its name may be left out where there is one.

    Raises:
        UsageError: there is none of that name, or several and none was named.
        ConfigError: it cannot be planned.
    """
    plan = plan_of(config, topology_name(config, topology))
    match form:
        case Form.JSON:
            text = plan.json()
        case Form.MERMAID:
            text = plan.mermaid()
        case Form.TEXT:
            text = "\n".join(plan_lines(plan))
    typer.echo(text)


def topology_name(config: Config, topology: str | None) -> str:
    """Return the topology that is meant.

    Raises:
        UsageError: there is none of that name, or several and none was named.
    """
    names = list(config.topologies)
    if not names:
        raise UsageError(
            "the configuration has no topologies; give one: topologies: {NAME: {code: "
            "package.module:function, group: GROUP}}, see docs/configuration.md"
        )
    if topology is None and len(names) == 1:
        return names[0]
    if topology is None:
        raise UsageError(
            f"there are several topologies; choose one: headrace streams plan {'|'.join(names)}"
        )
    if topology not in names:
        raise unknown("topology", topology, names)
    return topology


def plan_of(config: Config, topology: str) -> Plan:
    """Return the plan of a topology of the configuration.

    Raises:
        ConfigError: it cannot be planned.
    """
    section = config.topologies[topology]
    assert isinstance(section, TopologyConfig), "there is no other kind"
    return section.plan(topology, config.python_path)


def unknown(kind: str, name: str, known: Collection[str]) -> UsageError:
    """Return the error of a name that nothing has, with the one that was meant, or all."""
    step = did_you_mean([name], known) or f"; choose from {', '.join(known) or 'none'}"
    return UsageError(f"there is no {kind} {name}{step}")


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines in which a plan is shown to people, channel by channel."""
    counts = (_count(len(plan.channels), "channel"), _count(len(plan.stores), "store"))
    yield f"topology {plan.name}, group {plan.group}: {', '.join(counts)}"
    for channel in plan.channels_in_order:
        yield ""
        yield from _channel_lines(plan, channel)


def _channel_lines(plan: Plan, channel: Channel) -> Iterator[str]:
    yield f"channel {channel.name}, group {channel.group}"
    yield from _listed("reads", channel.topics)
    yield from _listed("reads all partitions of", channel.shared)
    yield from _listed("operators", [_operator(plan, place) for place in channel.operators])
    stores = [each for each in plan.stores if each.name in channel.stores]
    yield from _listed(
        "stores",
        [
            f"{each.name}: {each.kind}, changelog {each.changelog}, fingerprint {each.fingerprint}"
            for each in stores
        ],
    )
    yield from _listed("writes", channel.writes)


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines under a title, nothing where there are none."""
    for number, line in enumerate(lines):
        if number == 0:
            yield f"  {title}"
        yield f"    {line}"


def _operator(plan: Plan, place: int) -> str:
    operator = plan.operators[place]
    if isinstance(operator, Source | TableSource):
        return f"{operator.label} of {operator.topic}"
    return f"{operator.label}{plan.by(place)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Documents of the topologies whose channels this process runs: what is connected with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.ops.admin.document import Document, Number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.extensions.streams.plan import Channel, Plan


class PlannedOperator(Document):
    """An operator of a topology."""

    place: Number
    """Its place in the order of the code, by which others name it."""
    kind: str
    """Its kind, as stream, filter, aggregate, join or to."""
    name: str | None
    """Its name; null: it has none."""
    inputs: list[Number]
    """The places of the operators whose rows it takes."""
    reads: str | None
    """The topic that it reads; null: none."""
    writes: str | None
    """The topic that it writes, of a change of key the topic by key; null: none."""
    store: str | None
    """The kind of its store, as rows, windows, sessions, join or table; null: it has none."""


class PlannedPart(Document):
    """A part of a topology, which runs as a channel."""

    channel: str
    """The channel."""
    reads: list[str]
    """The topics that it reads."""
    writes: list[str]
    """The topics that it writes."""
    operators: list[PlannedOperator]
    """Its operators, in the order of the code."""


class TopologyPlan(Document):
    """A topology as its code is planned, in the parts that this process runs."""

    name: str
    """Its name in the configuration."""
    group: str
    """The beginning of the names of its groups and topics."""
    parts: list[PlannedPart]
    """Its parts, each after those that write what it reads, as far as that goes."""


class Topologies(Document):
    """The topologies of this process."""

    topologies: list[TopologyPlan]
    """The topologies, by name."""


def topologies_of(channels: Iterable[InboundKafkaChannel]) -> Topologies:
    """Return the plans that channels run by. Does not block."""
    plans: dict[str, Plan] = {}
    running: set[str] = set()
    for channel in channels:
        if isinstance(section := channel.config.processor, StreamsProcessorConfig):
            plan, part = section.planned
            plans[plan.name] = plan
            running.add(part.name)
    return Topologies(topologies=[_described(plan, running) for _, plan in sorted(plans.items())])


def _described(plan: Plan, running: set[str]) -> TopologyPlan:
    parts = [each for each in plan.channels_in_order if each.name in running]
    return TopologyPlan(
        name=plan.name, group=plan.group, parts=[_part(plan, each) for each in parts]
    )


def _part(plan: Plan, part: Channel) -> PlannedPart:
    return PlannedPart(
        channel=part.name,
        reads=list(part.topics),
        writes=list(part.writes),
        operators=[_operator(plan, place) for place in part.operators],
    )


def _operator(plan: Plan, place: int) -> PlannedOperator:
    operator = plan.operators[place]
    stores = {each.operator: each.kind for each in plan.stores}
    return PlannedOperator(
        place=place,
        kind=operator.op,
        name=operator.own_name,
        inputs=list(operator.inputs),
        reads=plan.read_by(place),
        writes=plan.written_by(place),
        store=stores.get(place),
    )

"""Outputs that are stored in one transaction, or one output by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.sinks.contract import Guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from headrace.spark.sinks.contract import PartitionCommit, Sink

    #: Stores what sinks of one group have staged, all of it or nothing.
    Together: TypeAlias = Callable[
        [Sequence[tuple[Any, Any]], Sequence[PartitionCommit]],
        None,
    ]


@dataclass(frozen=True, slots=True)
class Group:
    """Sinks by the names of their outputs, and how to commit several of them at once."""

    outputs: Mapping[str, Sink[Any]]
    together: Together

    @property
    def keeps_offsets(self) -> bool:
        """Whether its outputs tell by themselves what they have."""
        return all(keeps_offsets(sink) for sink in self.outputs.values())


def alone(name: str, sink: Sink[Any]) -> Group:
    """Return the group of a single output."""
    return Group({name: sink}, _commit)


def keeps_offsets(sink: Sink[Any]) -> bool:
    """Whether a sink keeps offsets, and refuses what it has already."""
    return sink.guarantee is Guarantee.EXACTLY_ONCE


def _commit(staged: Sequence[tuple[Any, Any]], offsets: Sequence[PartitionCommit]) -> None:
    for sink, own in staged:
        sink.commit(own, offsets)

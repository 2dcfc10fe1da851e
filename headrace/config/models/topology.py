"""The ``topologies`` of a file: each becomes channels, one for each part that runs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, ValidationInfo
from pydantic_core import PydanticCustomError

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.kind_table import OneKind
from headrace.config.models.base import Section

if TYPE_CHECKING:
    from headrace.config.models.channel import ChannelConfig


class TopologySection(Section):
    """A topology: an extension says what it has, and which channels it becomes."""

    _made: Mapping[str, Any] = PrivateAttr(default={})

    @property
    def made_channels(self) -> Mapping[str, ChannelConfig]:
        """Return the channels that the topology became when it was read, by their names."""
        return self._made

    def expand(self, name: str, info: ValidationInfo) -> None:
        """Make the channels of a topology of this name; raises as :meth:`make_channels`."""
        self._made = self.make_channels(name, info)

    def make_channels(self, name: str, info: ValidationInfo) -> Mapping[str, ChannelConfig]:
        """Return the channels that a topology of this name becomes, in the order of their start.

        May import code of the user's.

        Raises:
            PydanticCustomError: they cannot be made; its places begin in this section.
        """
        raise NotImplementedError


#: The section of a topology.
TOPOLOGY = OneKind(TopologySection, "headrace.extensions.streams.section:TopologyConfig")


def with_channels(
    topologies: Mapping[str, TopologySection], info: ValidationInfo
) -> Mapping[str, TopologySection]:
    """Return the topologies, each with the channels that it becomes.

    Raises:
        PydanticCustomError: some of them cannot be made.
    """
    found: list[FieldConflict] = []
    for name, section in topologies.items():
        try:
            section.expand(name, info)
        except PydanticCustomError as error:
            context = error.context or {}
            found += [FieldConflict((name, *at), text) for at, text in context["found"]]
    if found:
        raise conflict_in(found)
    return topologies

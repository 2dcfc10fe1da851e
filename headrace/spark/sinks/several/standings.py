"""Where each output stands: what it has of a range, and what it lacks."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from headrace.spark.sinks.contract import PartitionCommit, Sink

log = structlog.get_logger(__name__)


class Relation(Enum):
    """What an output has of a range."""

    LACKS = "lacks"
    """Nothing, and everything before it."""

    HAS = "has"
    """All of it."""

    APART = "apart"
    """A part of it, or not what is before it."""


def relation(stored: int | None, share: PartitionCommit) -> Relation:
    """Return what an output with this stored offset has of a share's range."""
    if stored is None or stored == share.start:
        return Relation.LACKS
    return Relation.HAS if stored >= share.next_offset else Relation.APART


class Standings:
    """The stored offsets of outputs, as they were when last looked at. Any thread.

    They are for decisions alone: whatever is committed, each output compares for itself.
    """

    def __init__(self, outputs: Mapping[str, Sink[Any]]) -> None:
        self._outputs = outputs
        self._known: dict[str, dict[str, int | None]] = {}

    def read(self, identity: str) -> Mapping[str, int | None]:
        """Ask each output for a partition's offset, by its name. Blocks."""
        found = {name: sink.stored_offset(identity) for name, sink in self._outputs.items()}
        self._known[identity] = found
        _tell(identity, found)
        return found

    def known(self, identity: str) -> Mapping[str, int | None]:
        """Return what was read last, or read it. May block."""
        found = self._known.get(identity, {})
        return found if len(found) == len(self._outputs) else self.read(identity)

    def stored(self, names: Iterable[str], shares: Sequence[PartitionCommit]) -> None:
        """Take note that outputs have taken a commit."""
        for share in shares:
            moved = dict.fromkeys(names, share.next_offset)
            self._known[share.identity] = {**self._known.get(share.identity, {}), **moved}

    def forget(self, names: Collection[str], identities: Iterable[str]) -> None:
        """Have outputs asked again, because they may stand elsewhere."""
        for identity in identities:
            found = self._known.get(identity, {})
            self._known[identity] = {
                name: stored for name, stored in found.items() if name not in names
            }

    def next_behind(self, identity: str, start: int) -> int | None:
        """Return the lowest known offset behind ``start``, None without one. Does not block."""
        found = self._known.get(identity, {}).values()
        return min((each for each in found if each is not None and each > start), default=None)


def _tell(identity: str, found: Mapping[str, int | None]) -> None:
    """Say of each output that it has to get what others have."""
    ahead = max((each for each in found.values() if each is not None), default=0)
    for name, stored in found.items():
        if stored is not None and stored < ahead:
            log.warning(
                "output_behind", output=name, identity=identity, stored=stored, others=ahead
            )

"""The sink of several outputs: each takes the ranges that it does not have yet, whole."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import RetryableError, SinkConflictError
from headrace.spark.sinks.contract import CommitConflictError, Guarantee, LeaderEpochKeeper
from headrace.spark.sinks.several.groups import keeps_offsets
from headrace.spark.sinks.several.keepers import Keepers
from headrace.spark.sinks.several.standings import Relation, Standings, relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit
    from headrace.spark.sinks.result import Result
    from headrace.spark.sinks.several.groups import Group


class OutputsApartError(RetryableError):
    """An output has a part of what was to be committed, so that it could not take it whole.

    Nothing was stored. The partitions come again one by one, cut where that output stands.
    """


@dataclass(frozen=True, slots=True)
class StagedOutputs:
    """What outputs have staged and not committed yet, by their names."""

    left: dict[str, Any]


class SeveralSink:
    """Stores the results of one micro-batch in several places, one group after the other.

    Outputs that keep no offsets come first, because a crash behind them has the range computed
    again for all. Each of the others compares and stores for itself: what a crash or a failure
    left behind gets its range again, and who has that already takes nothing. ADR 15 says why that
    is enough. ``keepers`` are the outputs that keep offsets, as operators see them.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = sorted(groups, key=lambda group: group.keeps_offsets)
        self._outputs = {
            name: sink for group in self.groups for name, sink in group.outputs.items()
        }
        keepers = {name: sink for name, sink in self._outputs.items() if keeps_offsets(sink)}
        self.keepers = Keepers(keepers)
        self._standings = Standings(keepers)
        self._overtaken: set[str] = set()

    @property
    def guarantee(self) -> Guarantee:
        """What the weakest output promises."""
        promised = {sink.guarantee for sink in self._outputs.values()}
        for weakest in (Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE):
            if weakest in promised:
                return weakest
        return Guarantee.NOT_KEPT

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(self._outputs)

    def open(self) -> None:
        """Open each output.

        Raises:
            StartError: one of them cannot be used as configured.
        """
        for sink in self._outputs.values():
            sink.open()

    def stored_offset(self, identity: str) -> int | None:
        """Return the lowest offset of all outputs; None where one has none yet.

        The group's commit, which follows all of them, is the truth then: the others may have got
        ahead in a commit that the process did not survive. Once it has led behind what the others
        have, theirs is the answer.
        """
        found = self._standings.read(identity).values()
        known = [each for each in found if each is not None]
        is_overtaken = identity in self._overtaken
        self._overtaken.discard(identity)
        return min(known, default=None) if is_overtaken or len(known) == len(found) else None

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return what an output stored with the lowest offset."""
        found = self._standings.known(identity)
        lowest = min((each for each in found.values() if each is not None), default=None)
        for name, each in found.items():
            sink = self._outputs[name]
            if each == lowest and isinstance(sink, LeaderEpochKeeper):
                epoch = sink.stored_leader_epoch(identity)
                if epoch is not None:
                    return epoch
        return None

    def boundary(self, identity: str, start: int) -> int | None:
        """Return the offset that a batch from ``start`` must not cross: an output stands there."""
        return self._standings.next_behind(identity, start)

    def stage(
        self, micro_batch: MicroBatch, result: Mapping[str, Result | None] | None
    ) -> StagedOutputs:
        """Run the job of each output."""
        staged = StagedOutputs({})
        try:
            for name, sink in self._outputs.items():
                own = None if result is None else result.get(name)
                staged.left[name] = sink.stage(micro_batch, own)
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def commit(self, staged: StagedOutputs, offsets: Sequence[PartitionCommit]) -> None:
        """Commit group by group what each output lacks.

        Raises:
            CommitConflictError: the outputs together stand elsewhere, or another writer was there
                first. Groups before that one have stored their share.
            OutputsApartError: an output would have to take a part; nothing was stored.
            Exception: what an output raised; groups before it have stored their share.
        """
        lacking = self._lacking(offsets)
        for group in self.groups:
            taking = [name for name in group.outputs if name in lacking]
            if not taking:
                continue
            try:
                group.together(
                    [(group.outputs[name], staged.left[name]) for name in taking], offsets
                )
            except BaseException:
                self._standings.forget(taking, [share.identity for share in offsets])
                raise
            for name in taking:
                del staged.left[name]
            if group.keeps_offsets:
                self._standings.stored(taking, offsets)
        self.discard(staged)

    def _lacking(self, offsets: Sequence[PartitionCommit]) -> set[str]:
        """Return the outputs that take the commit, having looked again if not all seem to."""
        relations = self._relations(offsets)
        if any(each != {Relation.LACKS} for each in relations.values()):
            self._standings.forget(self._outputs, [share.identity for share in offsets])
            relations = self._relations(offsets)
            self._require_place(offsets)
        apart = [
            name for name, each in relations.items() if len(each) > 1 or Relation.APART in each
        ]
        if apart:
            raise OutputsApartError(
                f"output {', '.join(apart)} has a part of the micro-batch already; its partitions "
                "come again one by one, cut where the output stands"
            )
        has = {name for name, each in relations.items() if each == {Relation.HAS}}
        return set(self._outputs) - has

    def _relations(self, offsets: Sequence[PartitionCommit]) -> Mapping[str, set[Relation]]:
        return {
            name: {
                relation(self._standings.known(share.identity)[name], share) for share in offsets
            }
            for name in self.keepers.outputs
        }

    def _require_place(self, offsets: Sequence[PartitionCommit]) -> None:
        """Raise if the outputs' lowest offset is not where a share begins."""
        conflicts = []
        for share in offsets:
            found = self._standings.known(share.identity).values()
            lowest = min(share.start if each is None else each for each in found)
            if lowest != share.start:
                conflicts.append(SinkConflictError(share.partition, share.start, lowest))
                self._overtaken.add(share.identity)
        if conflicts:
            raise CommitConflictError(conflicts)

    def discard(self, staged: StagedOutputs) -> None:
        """Remove what no output has taken."""
        while staged.left:
            name, own = staged.left.popitem()
            self._outputs[name].discard(own)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets of all outputs; see :meth:`Keepers.move_offsets`."""
        try:
            self.keepers.move_offsets(moves, note)
        finally:
            self._standings.forget(self._outputs, [move.identity for move in moves])

    def close(self) -> None:
        """Close each output."""
        with ExitStack() as stack:
            for sink in self._outputs.values():
                stack.callback(sink.close)

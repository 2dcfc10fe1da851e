"""The sink of several outputs: each takes the ranges that it does not have yet, whole."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.errors import HeadraceError, SinkConflictError, SinkFailedError
from headrace.sinks.contract import (
    Guarantee,
    OffsetMove,
    Sink,
    StoredLeaderEpochs,
    TransactionalOffsets,
)
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from headrace.sinks.contract import PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch


if TYPE_CHECKING:
    #: Stores what sinks of one group have staged, all of it or nothing.
    Together: TypeAlias = Callable[
        [Sequence[tuple[Any, Any]], Sequence[PartitionCommit]],
        None,
    ]


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Sinks by the names of their outputs, and how to commit several of them at once."""

    outputs: Mapping[str, Sink[Any]]
    together: Together

    @property
    def keeps_offsets(self) -> bool:
        """Return whether its outputs tell by themselves what they have."""
        return all(keeps_offsets(sink) for sink in self.outputs.values())


def alone(name: str, sink: Sink[Any]) -> OutputGroup:
    """Return the group of a single output."""
    return OutputGroup({name: sink}, _commit)


def keeps_offsets(sink: Sink[Any]) -> bool:
    """Return whether a sink keeps offsets, and refuses what it has already."""
    return sink.guarantee is Guarantee.EXACTLY_ONCE


def _commit(staged: Sequence[tuple[Any, Any]], offsets: Sequence[PartitionCommit]) -> None:
    for sink, own in staged:
        sink.commit(own, offsets)


class OutputOffsetMoves:
    """Reads the lowest offset of the outputs, and moves that of each. Any thread; blocks."""

    def __init__(self, outputs: Mapping[str, Sink[Any]]) -> None:
        self.outputs = outputs

    def unmovable(self) -> str | None:
        """Return the name of an output whose offsets cannot be moved, None without one."""
        fixed = (
            name
            for name, sink in self.outputs.items()
            if not isinstance(sink, TransactionalOffsets)
        )
        return next(fixed, None)

    def stored_offset(self, identity: str) -> int | None:
        """Return the lowest offset of the outputs that have one."""
        found = (sink.stored_offset(identity) for sink in self.outputs.values())
        return min((each for each in found if each is not None), default=None)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets in one output after the other, wherever each stands.

        Raises:
            CommitConflictError: the lowest offset is not where a move starts.
            HeadraceError: an output's offsets cannot be moved; or one refused, and another's could
                not be moved back.
            Exception: what an output raised; nothing is moved.
        """
        fixed = self.unmovable()
        if fixed is not None:
            raise HeadraceError(
                f"output {fixed} keeps offsets and has no move_offsets; give it one"
            )
        found = [(move, self.stored_offset(move.identity)) for move in moves]
        conflicts = [
            SinkConflictError(move.partition, move.start, lowest)
            for move, lowest in found
            if lowest != move.start
        ]
        if conflicts:
            raise CommitConflictError(conflicts)
        done: list[tuple[str, TransactionalOffsets, list[OffsetMove]]] = []
        for name, sink in self.outputs.items():
            assert isinstance(sink, TransactionalOffsets), "the others are refused above"
            own = list(_from_where_it_stands(sink, moves))
            if not own:
                continue
            try:
                sink.move_offsets(own, note)
            except Exception as error:
                _take_back(done, name, error, f"{note}, taken back")
                raise
            done.append((name, sink, own))


def _take_back(
    done: Sequence[tuple[str, TransactionalOffsets, list[OffsetMove]]],
    refusing: str,
    reason: Exception,
    note: str,
) -> None:
    for name, sink, own in done:
        back = [replace(each, start=each.next_offset, next_offset=each.start) for each in own]
        try:
            sink.move_offsets(back, note)
        except Exception as error:  # noqa: BLE001 - told beside what it came from
            raise HeadraceError(
                f"output {refusing} refused its move ({reason}), and that of output {name} "
                f"could not be taken back ({error}); move all to another offset, and then again"
            ) from reason


def _from_where_it_stands(
    sink: TransactionalOffsets, moves: Sequence[OffsetMove]
) -> Iterator[OffsetMove]:
    for move in moves:
        stored = sink.stored_offset(move.identity)
        if stored is not None and stored != move.next_offset:
            yield OffsetMove(
                move.identity, move.partition, stored, move.next_offset, move.transactional_id
            )


log = structlog.get_logger(__name__)


class OutputOffsets:
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
        _log_lagging(identity, found)
        return found

    def known(self, identity: str) -> Mapping[str, int | None]:
        """Return what was read last, or read it. May block."""
        found = self._known.get(identity, {})
        return found if len(found) == len(self._outputs) else self.read(identity)

    def stored(self, names: Iterable[str], shares: Sequence[PartitionCommit]) -> None:
        """Record that outputs have stored a commit."""
        for share in shares:
            moved = dict.fromkeys(names, share.next_offset)
            self._known[share.identity] = {**self._known.get(share.identity, {}), **moved}

    def forget(self, names: Collection[str], identities: Iterable[str]) -> None:
        """Drop the cached offsets of outputs, which may have moved."""
        for identity in identities:
            found = self._known.get(identity, {})
            self._known[identity] = {
                name: stored for name, stored in found.items() if name not in names
            }

    def next_after(self, identity: str, start: int) -> int | None:
        """Return the lowest known offset after ``start``, None without one. Does not block."""
        found = self._known.get(identity, {}).values()
        return min((each for each in found if each is not None and each > start), default=None)


def _log_lagging(identity: str, found: Mapping[str, int | None]) -> None:
    """Log each output that lags behind the others."""
    ahead = max((each for each in found.values() if each is not None), default=0)
    for name, stored in found.items():
        if stored is not None and stored < ahead:
            log.warning(
                "output_behind", output=name, identity=identity, stored=stored, others=ahead
            )


class SeveralSink(Sink[dict[str, Any]]):
    """Stores the results of one micro-batch in several places, one group after the other.

    Outputs that keep no offsets come first, because a crash after them has the range computed
    again for all. Each of the others compares and stores for itself: what a crash or a failure
    left behind gets its range again, and who has that already takes nothing. ADR 15 says why that
    is enough. What is staged has what each output has staged and not committed yet, by its name.
    ``offset_moves`` are for operators: those of the outputs that keep offsets.
    """

    def __init__(self, groups: Sequence[OutputGroup]) -> None:
        self.groups = sorted(groups, key=lambda group: group.keeps_offsets)
        self._outputs = {
            name: sink for group in self.groups for name, sink in group.outputs.items()
        }
        transactional = {name: sink for name, sink in self._outputs.items() if keeps_offsets(sink)}
        self.offset_moves = OutputOffsetMoves(transactional)
        self._output_offsets = OutputOffsets(transactional)
        self._overtaken: set[str] = set()

    @property
    def guarantee(self) -> Guarantee:
        """Return what the weakest output promises."""
        promised = {sink.guarantee for sink in self._outputs.values()}
        for weakest in (Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE):
            if weakest in promised:
                return weakest
        return Guarantee.NOT_KEPT

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(self._outputs)

    def open(self) -> None:
        for sink in self._outputs.values():
            sink.open()

    def stored_offset(self, identity: str) -> int | None:
        """Return the lowest offset of all outputs; None where one has none yet.

        The group's commit, which follows all of them, is the truth then: the others may have got
        ahead in a commit that the process did not survive. Once it has led past what the others
        have, theirs is the answer.
        """
        found = self._output_offsets.read(identity).values()
        known = [each for each in found if each is not None]
        is_overtaken = identity in self._overtaken
        self._overtaken.discard(identity)
        return min(known, default=None) if is_overtaken or len(known) == len(found) else None

    def stored_leader_epoch(self, identity: str) -> int | None:
        found = self._output_offsets.known(identity)
        lowest = min((each for each in found.values() if each is not None), default=None)
        for name, each in found.items():
            sink = self._outputs[name]
            if each == lowest and isinstance(sink, StoredLeaderEpochs):
                epoch = sink.stored_leader_epoch(identity)
                if epoch is not None:
                    return epoch
        return None

    def boundary(self, identity: str, start: int) -> int | None:
        return self._output_offsets.next_after(identity, start)

    def stage(  # type: ignore[override]  # one result for each output
        self, micro_batch: MicroBatch, result: Mapping[str, Result | None] | None
    ) -> dict[str, Any]:
        staged: dict[str, Any] = {}
        try:
            for name, sink in self._outputs.items():
                own = None if result is None else result.get(name)
                staged[name] = sink.stage(micro_batch, own)
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def commit(self, staged: dict[str, Any], offsets: Sequence[PartitionCommit]) -> None:
        """Commit group by group what each output lacks.

        Raises:
            SinkFailedError: an output would have to take a part; nothing was stored.
            Exception: what an output raised; groups before it have stored their share.
        """
        lacking = self._lacking(offsets)
        for group in self.groups:
            taking = [name for name in group.outputs if name in lacking]
            if not taking:
                continue
            try:
                group.together([(group.outputs[name], staged[name]) for name in taking], offsets)
            except BaseException:
                self._output_offsets.forget(taking, [share.identity for share in offsets])
                raise
            for name in taking:
                del staged[name]
            if group.keeps_offsets:
                self._output_offsets.stored(taking, offsets)
        self.discard(staged)

    def _lacking(self, offsets: Sequence[PartitionCommit]) -> set[str]:
        """Return the outputs that take the commit, having looked again if not all seem to."""
        lacking, apart = self._compared(offsets)
        if len(lacking) < len(self.offset_moves.outputs):
            self._output_offsets.forget(self._outputs, [share.identity for share in offsets])
            lacking, apart = self._compared(offsets)
            self._require_place(offsets)
        if apart:
            raise SinkFailedError(
                f"output {', '.join(apart)} has a part of the micro-batch already; its partitions "
                "are retried one by one, cut where the output stands"
            )
        return self._outputs.keys() - self.offset_moves.outputs.keys() | lacking

    def _compared(self, offsets: Sequence[PartitionCommit]) -> tuple[set[str], list[str]]:
        """Return the outputs that have nothing of the ranges, but all before them.

        And those that have a part of the ranges, or not what is before them.
        """
        lacking, apart = set(), []
        for name in self.offset_moves.outputs:
            found = [(self._output_offsets.known(o.identity)[name], o) for o in offsets]
            if all(stored in {None, share.start} for stored, share in found):
                lacking.add(name)
            elif any(stored is None or stored < share.next_offset for stored, share in found):
                apart.append(name)
        return lacking, apart

    def _require_place(self, offsets: Sequence[PartitionCommit]) -> None:
        """Raise if the outputs' lowest offset is not where a share begins."""
        conflicts = []
        for share in offsets:
            found = self._output_offsets.known(share.identity).values()
            lowest = min(share.start if each is None else each for each in found)
            if lowest != share.start:
                conflicts.append(SinkConflictError(share.partition, share.start, lowest))
                self._overtaken.add(share.identity)
        if conflicts:
            raise CommitConflictError(conflicts)

    def discard(self, staged: dict[str, Any]) -> None:
        while staged:
            name, own = staged.popitem()
            self._outputs[name].discard(own)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        try:
            self.offset_moves.move_offsets(moves, note)
        finally:
            self._output_offsets.forget(self._outputs, [move.identity for move in moves])

    def close(self) -> None:
        with ExitStack() as stack:
            for sink in self._outputs.values():
                stack.callback(sink.close)

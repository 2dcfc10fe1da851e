"""The offsets of several outputs, as operators see and move them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SinkConflictError
from headrace.spark.sinks.contract import CommitConflictError, OffsetKeeper, OffsetMove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.spark.sinks.contract import Sink


class Keepers:
    """Reads the lowest offset of the outputs, and moves that of each. Any thread; blocks."""

    def __init__(self, outputs: Mapping[str, Sink[Any]]) -> None:
        self.outputs = outputs

    def unmovable(self) -> str | None:
        """Return the name of an output whose offsets cannot be moved, None without one."""
        fixed = (name for name, sink in self.outputs.items() if not isinstance(sink, OffsetKeeper))
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
        self._require_starts(moves)
        done: dict[str, list[OffsetMove]] = {}
        for name, sink in self._movable():
            own = list(_from_where_it_stands(sink, moves))
            try:
                _move(sink, own, note)
            except Exception as error:
                self._move_back(done, name, error, note)
                raise
            done[name] = own

    def _movable(self) -> Iterator[tuple[str, OffsetKeeper]]:
        for name, sink in self.outputs.items():
            if isinstance(sink, OffsetKeeper):
                yield name, sink

    def _move_back(
        self, done: Mapping[str, list[OffsetMove]], refusing: str, reason: Exception, note: str
    ) -> None:
        for name, sink in self._movable():
            back = [
                replace(each, start=each.next_offset, next_offset=each.start)
                for each in done.get(name, ())
            ]
            try:
                _move(sink, back, f"{note}, taken back")
            except Exception as error:  # noqa: BLE001 - told beside what it came from
                raise HeadraceError(
                    f"output {refusing} refused its move ({reason}), and that of output {name} "
                    f"could not be taken back ({error}); move all to another offset, and then again"
                ) from reason

    def _require_starts(self, moves: Sequence[OffsetMove]) -> None:
        conflicts = []
        for move in moves:
            lowest = self.stored_offset(move.identity)
            if lowest != move.start:
                conflicts.append(SinkConflictError(move.partition, move.start, lowest))
        if conflicts:
            raise CommitConflictError(conflicts)


def _move(keeper: OffsetKeeper, moves: Sequence[OffsetMove], note: str) -> None:
    if moves:
        keeper.move_offsets(moves, note)


def _from_where_it_stands(
    keeper: OffsetKeeper, moves: Sequence[OffsetMove]
) -> Iterator[OffsetMove]:
    for move in moves:
        stored = keeper.stored_offset(move.identity)
        if stored is not None and stored != move.next_offset:
            yield OffsetMove(
                move.identity, move.partition, stored, move.next_offset, move.transactional_id
            )

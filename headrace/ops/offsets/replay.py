"""The effect of a move back on a sink's output of the records that are read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError
from headrace.core.positions import Replay
from headrace.sinks.contract import OutputReplacer
from headrace.sinks.errors import ReplaceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace import config
    from headrace.ops.offsets.plan import OffsetChange, Plan
    from headrace.sinks.contract import Replacement, TransactionalOffsets

_CHOOSE = (
    "the sink has output of records that would be read again; say what becomes of it: --replay "
    "append keeps it ({again}), --replay replace removes it with the move"
)


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan with what becomes of the output.

    ``effect`` is a sentence for people, None where nothing becomes of it; ``rows`` are those that
    are removed, None where none are looked for. ``refused`` says why it will not be done, None
    where it will.
    """

    plan: Plan
    effect: str | None = None
    rows: int | None = None
    refused: str | None = None


class ReplayRun:
    """The handling of a channel's output by one command. ``choice`` is the operator's."""

    def __init__(
        self,
        channel: config.ChannelConfig,
        sink_offsets: TransactionalOffsets | None,
        choice: Replay | None,
        named: Callable[[str], str],
    ) -> None:
        self._sink = channel.sink
        self._sink_offsets = sink_offsets
        self._named = named
        self.choice = choice

    def settle(self, plan: Plan) -> Settled:
        """Settle what becomes of the output; replacing it moves partitions further back. Blocks.

        Raises:
            HeadraceError: the sink cannot be read.
        """
        if self.choice is Replay.REPLACE:
            return self._replacing(plan)
        if not any(map(self._goes_back, plan)):
            return Settled(plan)
        again = _output_again(self._sink)
        if self._sink_offsets is not None and self.choice is None:
            return Settled(plan, refused=_CHOOSE.format(again=again))
        return Settled(plan, f"the sink keeps its output of records that are read again: {again}")

    def _goes_back(self, change: OffsetChange) -> bool:
        """Return whether records are read again of which the sink has output."""
        if self._sink_offsets is None and not (self._sink and self._sink.keeps_output):
            return False
        before = change.found.next if self._sink_offsets is None else change.found.sink
        return change.after is not None and before is not None and change.after < before

    def _replacing(self, plan: Plan) -> Settled:
        sink_offsets = self._sink_offsets
        if not isinstance(sink_offsets, OutputReplacer):
            return Settled(plan, refused=f"--replay replace: {_instead(self._sink, sink_offsets)}")
        moves = [move for change in plan if (move := change.as_move()) is not None]
        try:
            found = sink_offsets.plan_replace(moves)
        except ReplaceRefusedError as error:
            return Settled(plan, refused=f"--replay replace: {error}")
        except Exception as error:
            raise HeadraceError(
                f"the sink's output cannot be looked up: {type(error).__name__}: {error}; nothing "
                "was changed"
            ) from error
        problems = [*self._uncovered(plan, found)]
        if problems:
            refused = (
                "--replay replace: output is of whole micro-batches, so that of these records can "
                f"only be removed with that of others: {'; '.join(problems)}"
            )
            return Settled(plan, refused=refused)
        effect = (
            f"{found.rows} rows of the records that are read again are removed from the sink, in "
            "the transaction that moves its offsets"
        )
        return Settled(_widened(plan, found), effect, found.rows)

    def _uncovered(self, plan: Plan, found: Replacement) -> Iterator[str]:
        """Yield why partitions cannot be moved to where replacing takes them."""
        changes = {change.found.identity: change for change in plan}
        for identity, offset in sorted(found.offsets.items()):
            change = changes.get(identity)
            if change is None or change.after is None or change.found.sink is None:
                yield f"{self._named(identity)} from {offset} on, which is not among the partitions"
            elif offset < change.after and change.after > change.found.sink:
                yield f"{change.found.partition} from {offset} on, which is to go forward"
            elif offset < change.found.low:
                yield (
                    f"{change.found.partition} from {offset} on, of which the log has no more than "
                    f"from {change.found.low} on"
                )


def _widened(plan: Plan, found: Replacement) -> Plan:
    return tuple(_back(change, found.offsets.get(change.found.identity)) for change in plan)


def _back(change: OffsetChange, offset: int | None) -> OffsetChange:
    if offset is None or change.after is None or offset >= change.after:
        return change
    note = f"{change.after} is within a micro-batch: where the output that goes with it begins"
    return replace(change, after=offset, notes=(*change.notes, note))


def _output_again(sink: config.SinkConfig | None) -> str:
    """Return what becomes of what is made of the records again."""
    return "results go there again" if sink is None else sink.replayed


def _instead(sink: config.SinkConfig | None, sink_offsets: TransactionalOffsets | None) -> str:
    """Return why a sink does not replace, and what to do instead."""
    if sink is None:
        return "the channel has no sink whose output is known; leave it out"
    if sink.irreplaceable is not None:
        return sink.irreplaceable
    if sink_offsets is not None:
        return (
            f"the sink {_name_sink(sink)} has no plan_replace and replace; add them, or remove "
            "its output by hand and replay with append"
        )
    return (
        f"a sink of type {sink.type} keeps no offsets and does not say which records its output "
        "is of; remove that by hand, and leave --replay out"
    )


def _name_sink(sink: config.SinkConfig) -> str:
    return f"of type {sink.type}" if sink.code is None else f"of {sink.code}"

"""What a partition is doing at this moment, for people who look for the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from headrace.stacks import stack_of

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.member_states import AssignmentState, MemberState


@dataclass(frozen=True, slots=True)
class Activity:
    """One held partition. Offsets and counts as they are just now, seconds since something.

    ``batch_offset`` is the first record of the oldest batch that is out, or that failed and comes
    again, and ``batch_end`` the offset behind it; None where there is no such batch.
    ``held_back_seconds`` says how long nothing is delivered yet, after an error or because the
    processor asked for it; None where nothing holds it back. ``suspects`` are the records among
    which one that fails is looked for; ``dead_letters`` went to the dead-letter topic under this
    claim. ``callback_seconds`` says for how long
    a callback has been running, ``calls`` where in it its thread is; without one they are None and
    empty.
    """

    channel: str
    topic: str
    partition: int
    epoch: int
    state: str
    position: int
    batch_offset: int | None
    batch_end: int | None
    committed: int | None
    high_watermark: int | None
    buffered_records: int
    held_bytes: int
    outstanding_batches: int
    attempts: int
    suspects: int
    dead_letters: int
    held_back_seconds: float | None
    callback_seconds: float | None
    calls: tuple[str, ...]
    last_error: str | None

    def facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MemberReading:
    """Where the channel's member stands with its group at this moment.

    ``epoch`` and ``lease_seconds`` (for how long it may act on its claims) are None without one.
    """

    state: MemberState
    assignment: AssignmentState
    claims: int
    epoch: int | None
    lease_seconds: float | None


def member_reading(coordinator: Coordinator) -> MemberReading:
    """Look at a member; any thread."""
    claims = coordinator.claims
    return MemberReading(
        state=coordinator.state,
        assignment=coordinator.assignment,
        claims=len(claims),
        epoch=claims[0].member_epoch if claims else None,
        lease_seconds=claims[0].lease.remaining() if claims else None,
    )


def activity_of(channel: str, owned: OwnedPartition, now: float) -> Activity:
    """Look at a partition; any thread, ``now`` in monotonic seconds."""
    callback = owned.callback
    held_back = owned.not_before - now
    first, end = owned.batch or (None, None)
    return Activity(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        epoch=owned.epoch,
        state=owned.state.value,
        position=owned.position,
        batch_offset=first,
        batch_end=end,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        buffered_records=owned.buffer.records,
        held_bytes=owned.held_bytes(),
        outstanding_batches=len(owned.outstanding),
        attempts=owned.attempts,
        suspects=owned.suspects,
        dead_letters=owned.letters.count,
        held_back_seconds=round(held_back, 3) if 0 < held_back < inf else None,
        # it may have begun after ``now``
        callback_seconds=None if callback is None else round(max(0.0, now - callback.since), 3),
        calls=() if callback is None else tuple(stack_of(callback.thread)),
        last_error=owned.last_error,
    )

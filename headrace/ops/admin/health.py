"""Liveness and readiness of a process: it makes progress, and it does its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.channel.pauses import PauseReason
from headrace.channel.states import ChannelState
from headrace.coordinators.member_info import AssignmentState, MemberState
from headrace.core.records import TopicPartition
from headrace.formats.registry import WAITS
from headrace.ops.admin.ports import ProcessPhase
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Controller, Process

#: Reasons of pauses that end only once an operator has acted.
_STRANDED = (PauseReason.STATE, PauseReason.MISFIT)

#: Seconds within which the main thread of a running process looks around at least once: it does
#: so twice a second, and a bounded run asks for offsets for two seconds in between.
STALL_TIMEOUT = 30.0


def not_live(process: Process, clock: Clock) -> list[str]:
    """Return why the process has to be started afresh, nothing while it makes progress.

    A start and a stop have limits of their own, after which the process ends by itself, and so do
    the threads of its channels. Any thread; does not block.
    """
    silent = clock.monotonic() - process.last_beat
    if process.phase is ProcessPhase.RUNNING and silent > STALL_TIMEOUT:
        return [f"the main thread has done nothing for {silent:.0f} s"]
    return []


def not_ready(controller: Controller, process: Process) -> list[str]:
    """Return why the process does not do its work, nothing while it does.

    A pause is wanted, and no reason, except for one that calls for an operator.
    """
    return list(_reasons(controller, process))


def _reasons(controller: Controller, process: Process) -> Iterator[str]:
    if process.phase is not ProcessPhase.RUNNING:
        yield f"the process is {process.phase.value}"
    state = controller.session.state
    if state is not SessionState.CONNECTED:
        yield f"the ZooKeeper session is {state.value}"
    spark = controller.spark()
    if spark is not None and not spark.running:
        yield "Spark does not run" if spark.generation else "Spark is starting"
    for name, channel in sorted(dict(controller.channels).items()):
        yield from _reasons_of(name, channel)


def _reasons_of(name: str, channel: InboundKafkaChannel) -> Iterator[str]:
    if channel.state is not ChannelState.RUNNING:
        failure = "" if channel.failure is None else f": {channel.failure}"
        yield f"channel {name} is {channel.state.value}{failure}"
        return
    member = channel.member
    if member.state not in {MemberState.ACTIVE, MemberState.AWAY}:
        yield f"channel {name} is not in its group: {member.state.value}"
    elif member.state is MemberState.ACTIVE and member.assignment is AssignmentState.PENDING:
        yield f"channel {name} has yet to take its partitions: {member.claims} claimed so far"
    for topic in channel.deleted_topics():
        yield (
            f"channel {name}: topic {topic} was deleted: create it again, or take it out of the "
            "configuration"
        )
    if unanswered := channel.unanswered():
        more = f" and {len(unanswered) - 1} more partitions" if len(unanswered) > 1 else ""
        yield (
            f"channel {name}: the leader of {unanswered[0]}{more} does not answer: brokers are "
            "away or let no client in, see kafka_client_error in the log"
        )
    # an error stays for the status after its batch has got through
    failing = (p for p in channel.partitions() if p.attempts)
    waits = next((p for p in failing if WAITS in (p.last_error or "")), None)
    if waits is not None and waits.last_error is not None:
        said = waits.last_error[waits.last_error.index(WAITS) :].splitlines()[0]
        yield f"channel {name} {TopicPartition(waits.topic, waits.partition)}: {said}"
    for held, held_by in sorted(channel.held_back().items()):
        yield f"channel {name} {held} is held back by a transaction: {held_by}"
    stranded = [pause for pause in channel.pauses if pause.reason in _STRANDED]
    if stranded:
        partition, note = stranded[0].partition, stranded[0].note
        scope = "" if partition is None else f" {partition}"
        more = f" (and {len(stranded) - 1} more partitions)" if len(stranded) > 1 else ""
        yield f"channel {name}{scope} rests{more}: {note}"

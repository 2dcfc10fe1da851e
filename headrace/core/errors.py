"""Every error Headrace raises on purpose, ordered by what the one who meets it should do."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.calls import Call
    from headrace.core.records import TopicPartition


class HeadraceError(Exception):
    """Base of all errors below: the message names the thing, the value and the next step."""


# --- fix the configuration or the surroundings, then start again ------------------------------


class ConfigError(HeadraceError):
    """The configuration cannot be used. ``problems`` holds one sentence for each mistake.

    Where there are more than anybody reads, those are the first of ``count``, and the last says so.
    """

    def __init__(self, problems: list[str], count: int | None = None) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.count = len(problems) if count is None else count


class StartError(HeadraceError):
    """The daemon or a channel cannot start; nothing was claimed, delivered or committed."""


class ImportPathError(StartError):
    """A ``package.module:name`` in the configuration cannot be imported or has a wrong shape."""


# --- what a user or an operator asked for cannot be done; nothing was changed --------------------


class UsageError(HeadraceError):
    """The command line or a file given with it does not fit the process, channel or brokers.

    ``problems`` holds one sentence for each mistake.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UnreachableError(HeadraceError):
    """The process that a command is for does not answer, does not run, or cannot be found."""


class NoRecordError(UnreachableError):
    """No process of the configuration left a record: only the configuration leads to it."""


class SeveralProcessesError(UnreachableError):
    """Several processes run with the configuration, and none was named."""


class Refusal(Enum):
    """The reason why a request was refused. The API answers with the value as ``error``."""

    NOT_RUNNING = "not_running"
    """The channel is not running, or is about to stop."""
    NOT_HELD = "not_held"
    """This process does not hold the partition at the moment."""
    NOT_PAUSED = "not_paused"
    """Delivery of the partition is not paused."""
    PAUSED_BY_OTHERS = "paused_by_others"
    """The pause that is to end belongs to another holder, and the request does not name that."""
    SHORTER_PAUSE = "shorter_pause"
    """The pause would replace a longer one of its holder, and the request does not allow that."""
    NO_SUCH_OFFSET = "no_such_offset"
    """The log has no such offset."""
    NOT_IN_BATCH = "not_in_batch"
    """The record is not in the batch that is out or fails."""
    COMMITTED_ALREADY = "committed_already"
    """The record was already committed."""
    SINK_OFFSETS = "sink_offsets"
    """The sink keeps offsets that cannot be moved from here, or failed to move them."""
    REPLAY = "replay"
    """Records would be read again, and the request does not say what becomes of their output."""
    UNFINISHED = "unfinished"
    """The request is under way, but was not done within the time allowed."""
    TAP_REFUSED = "tap_refused"
    """The channel's records do not pass through this process, or it has enough taps."""
    TOO_MANY_LOGGERS = "too_many_loggers"
    """As many loggers as allowed have levels of their own."""


class RefusedError(HeadraceError):
    """A request to a running process cannot be met as things are; nothing was changed.

    ``value`` is what was asked for, ``next_step`` what to do about it.
    """

    def __init__(self, refusal: Refusal, message: str, *, value: str, next_step: str) -> None:
        super().__init__(f"{message}; {next_step}")
        self.refusal = refusal
        self.text = message
        self.value = value
        self.next_step = next_step


# --- the channel cannot go on -------------------------------------------------------------------


class ChannelFailedError(HeadraceError):
    """The channel ends: a limit is reached, or a bounded run cannot come to its end."""


# --- what a processor or a sink may say about a failure -----------------------------------------


class RetryableError(HeadraceError):
    """The cause is in no record: it succeeds later, or when something else is fixed.

    A batch that fails with it, or with an error that it caused, is delivered again for as long as
    it takes. It is never divided, skipped or put into a dead-letter topic.
    """


class FencedError(RetryableError):
    """A sink refuses this member for good: it was shut out, and has to join its group again.

    Raised where nothing can be stored any more in this membership. Not a failure of the
    batch.
    """


class ResultMisfitError(RetryableError):
    """The columns of a result do not go where they should, whatever is in them.

    No record is to blame, and waiting helps only if the place is changed.
    """


class RowsRefusedError(HeadraceError):
    """The sink will never take some of the rows: too long, null, breaking a rule of the table.

    Nothing was stored. The batch counts as failed for what is in it.
    """


class SinkFailedError(RetryableError):
    """The sink did not take a result for a reason that is not in the rows: away, full, denied."""


class ReducerError(HeadraceError):
    """The reducer failed, or other code of the user's; the message is its own, or Spark's."""


class JobFailedError(ReducerError, RetryableError):
    """Spark refused the plan, or a job failed for want of memory, disk or network.

    No record is to blame.
    """


# --- how a job of a processor ends, but for what its own code raises -----------------------------


class JobCancelledError(HeadraceError):
    """A batch of the job was withdrawn, or the channel stops; what is wanted is computed again."""


class JobTimeoutError(RetryableError):
    """The job was past its deadline and was cancelled, or a call in it was interrupted.

    ``call`` is the call that did not return, where that is known.
    """

    def __init__(self, message: str, call: Call | None = None) -> None:
        super().__init__(message)
        self.call = call


class EngineDiedError(RetryableError):
    """The engine ended while it ran a job. Only the sink can tell what that had written by then."""


# --- the process cannot go on; a supervisor should start it afresh ------------------------------


class FatalError(HeadraceError):
    """The process must end, because what it does next could not be trusted."""


# --- what ``on_exception`` is told about one partition ------------------------------------------


class PartitionError(HeadraceError):
    """Base of the errors that concern one partition and are handed to ``on_exception``."""

    def __init__(self, partition: TopicPartition, message: str) -> None:
        super().__init__(message)
        self.partition = partition


class OffsetOutOfRangeError(PartitionError):
    """The broker no longer has (or never had) the record at the position.

    ``position`` is what was asked for; ``low`` and ``high`` bound what the broker has.
    """

    def __init__(self, partition: TopicPartition, position: int, low: int, high: int) -> None:
        super().__init__(
            partition,
            f"{partition}: offset {position} is out of range, the broker has {low} to {high}; "
            "the channel's offset_out_of_range policy decides where reading goes on",
        )
        self.position = position
        self.low = low
        self.high = high


class LogTruncatedError(PartitionError):
    """The log lost its end, with records before the position: what stands there now is not known.

    ``position`` is what was asked for, ``low`` and ``high`` bound what the broker has, and ``end``
    is where the log ends that was read; None: it is not known, or ``high``.
    """

    def __init__(
        self, partition: TopicPartition, position: int, low: int, high: int, end: int | None
    ) -> None:
        lost = min(position, high) if end is None else end
        super().__init__(
            partition,
            f"{partition}: the log lost its end: offset {position} was reached, the broker has "
            f"{low} to {high}, and the records from {lost} on are not those that were read; the "
            f"partition rests until it is moved: seek to {lost} to take what stands there now, or "
            "to another offset, or use headrace offsets reset (docs/runbooks.md)",
        )
        self.position = position
        self.low = low
        self.high = high
        self.end = end


class CoordinationSuspendedError(PartitionError):
    """ZooKeeper has not confirmed the session for too long; nothing is delivered or committed."""


class CommitFailedError(PartitionError):
    """Offsets could not be committed. ``offset`` is the one that was to be stored."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(partition, f"{partition}: commit of offset {offset} failed: {reason}")
        self.offset = offset


class SinkConflictError(PartitionError):
    """The sink's stored offset is not where the batch begins: another owner wrote there."""

    def __init__(self, partition: TopicPartition, expected: int, stored: int | None) -> None:
        super().__init__(
            partition,
            f"{partition}: the sink holds offset {stored}, but the batch continues from "
            f"{expected}; the batch is discarded and read again from the sink's offset",
        )
        self.expected = expected
        self.stored = stored


class BatchTimeoutError(PartitionError):
    """A batch was not answered within the channel's ``batch_timeout``."""


class InvalidResponseError(PartitionError):
    """The processor's answer is not a response, or asks for an impossible offset."""


class PoisonRecordError(PartitionError):
    """One record cannot be processed, and trying again is no use. ``offset`` names the record.

    A processor raises it for what it knows to be so: with ``rejects.failing``, ``skip`` and
    ``dead_letter`` then give up this record and no other, without more attempts.
    """

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(partition, self.text(partition, offset, reason))
        self.offset = offset
        self.reason = reason

    @staticmethod
    def text(partition: TopicPartition, offset: int, reason: str) -> str:
        """Return the message of an error about this record."""
        return f"{partition}: record at offset {offset}: {reason}"


class UndecodableRecordError(PoisonRecordError):
    """A record's value does not fit the configured decoding."""


class BatchCancelledError(PartitionError):
    """The batch was withdrawn (seek, revert, stop) or its claim ended; not a failure of it."""

"""Every error Headrace raises on purpose, ordered by what the one who meets it should do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


class KafkaUnavailableError(StartError):
    """No broker answered within the time allowed."""


class KafkaAccessError(KafkaUnavailableError):
    """The brokers do not let this user do what is named. They may later: it is waited for alike."""


class ZooKeeperUnavailableError(StartError):
    """No ZooKeeper server answered within the time allowed, or it refused the session."""


class ZooKeeperAccessError(StartError):
    """ZooKeeper denies a member access to a node that it cannot do without."""


class InstanceInUseError(StartError):
    """Another live process holds the same ``instance_id``."""


class UnknownTopicError(StartError):
    """A configured topic does not exist on the broker."""


class ImportPathError(StartError):
    """A ``package.module:name`` in the configuration cannot be imported or has a wrong shape."""


# --- what an operator asked for cannot be done as things are; nothing was changed ---------------


class RefusedError(HeadraceError):
    """Base of the refusals. ``value`` is what was asked for, ``next_step`` what to do about it."""

    def __init__(self, message: str, *, value: str, next_step: str) -> None:
        super().__init__(f"{message}; {next_step}")
        self.text = message
        self.value = value
        self.next_step = next_step


class NotRunningError(RefusedError):
    """The channel is not running, or stops just now."""


class NotHeldError(RefusedError):
    """The partition is not this process's at the moment."""


class NotPausedError(RefusedError):
    """Delivery of the partition does not rest."""


class PausedByOthersError(RefusedError):
    """A pause is to end that somebody else began, and nobody said whose."""


class ShorterPauseError(RefusedError):
    """A pause is to come in the place of its holder's own, and end sooner; nobody said so."""


class NoSuchOffsetError(RefusedError):
    """The log has no such offset."""


class NotInBatchError(RefusedError):
    """A record is not in the batch that is out or fails."""


class CommittedAlreadyError(RefusedError):
    """The record is done with: what is committed lies past it."""


class SinkOffsetsError(RefusedError):
    """The sink keeps offsets that cannot be moved from here, or did not let itself be moved."""


class ReplayError(RefusedError):
    """What becomes of the sink's output of records that are read again is not said, or not so."""


class UnfinishedError(RefusedError):
    """What was asked for is under way, but was not done within the time allowed."""


# --- the channel cannot go on -------------------------------------------------------------------


class TopicDeletedError(HeadraceError):
    """A topic of a bounded run was deleted before it was read up to its bound."""


class BoundedRunError(HeadraceError):
    """Something of a bounded run failed as often as it is tried; it cannot come to its end."""


class DeadLetterLimitError(HeadraceError):
    """More records fail than the limits of ``rejects`` take for an exception."""


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

    No record is to blame, and waiting helps only if somebody changes the place.
    """


class ResultRefusedError(HeadraceError):
    """A record of a result can never be produced: too large, or for what does not exist."""


# --- how a job of a processor ends, but for what its own code raises -----------------------------


class JobCancelledError(HeadraceError):
    """The job was cancelled: a batch in it was withdrawn, or the channel stops."""


class JobTimeoutError(RetryableError):
    """The job was cancelled because it was past its deadline."""


class EngineDiedError(RetryableError):
    """What runs the jobs ended under one. What that had written by then only the sink can tell."""


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
        super().__init__(partition, f"{partition}: record at offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class UndecodableRecordError(PoisonRecordError):
    """A record's value does not fit the configured decoding."""


class BatchCancelledError(PartitionError):
    """The batch was withdrawn (seek, revert, loss, stop) before it was answered; not a failure."""


class OwnershipLostError(PartitionError):
    """The claim ended before the work on it could take effect; not a failure of the batch."""

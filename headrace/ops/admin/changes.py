"""The endpoints that change something: each a POST, audited, with the token only."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
from fastapi import APIRouter, Body, Request
from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from headrace.channel.pauses import PauseMode, PauseReason
from headrace.core.clock import Clock, Deadline
from headrace.core.errors import HeadraceError, RefusedError
from headrace.core.positions import FORMS, Replay, parse_target
from headrace.core.records import TopicPartition
from headrace.ops.admin.configuration import ReloadAnswer, reload_answer
from headrace.ops.admin.document import Described, Document, Number, Offset, SendableText, moment
from headrace.ops.admin.models import ApiError, PauseStatus, SkipStatus, described, unknown
from headrace.ops.admin.ports import ProcessPhase
from headrace.ops.admin.reads import ChannelName, find_channel
from headrace.ops.admin.rejects import KINDS, RejectsStatus
from headrace.ops.admin.state import reader_of
from headrace.ops.admin.status import pause_status, skip_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.events import SeekResult
    from headrace.core.positions import Target
    from headrace.ops.admin.auth import Caller
    from headrace.ops.admin.loglevels import LogLevels
    from headrace.ops.admin.ports import Controller, Deployment, Process
    from headrace.ops.admin.rejects import Rejects
    from headrace.telemetry.metrics import PartitionSnapshot


class PauseAnswer(Document):
    """A pause that began."""

    pause: PauseStatus
    """The pause."""
    acknowledged: bool | None
    """True if all pauses of the channel had taken effect by the end of the wait: nothing is being
    processed, and what was answered is committed. Null: the request did not wait."""
    replaced: PauseStatus | None
    """The pause of the same person and scope that this one came in the place of; null: none."""
    others: list[PauseStatus]
    """Pauses of the channel and of its partitions that there were already and that go on."""


class ResumeAnswer(Document):
    """A pause that ended."""

    resumed: PauseStatus | None
    """The pause; null: there was none."""
    pauses: list[PauseStatus]
    """Those that go on."""


class SeekAnswer(Document):
    """A partition that was moved; that is committed."""

    topic: str
    """Its topic."""
    partition: Number
    """Its number."""
    before: Offset
    """The offset at which it would have gone on."""
    offset: Offset
    """The offset at which it goes on."""


class ResetAnswer(Document):
    """Partitions that were moved."""

    moved: list[SeekAnswer]
    """All of those that this process holds, or the one that was named."""


class SkipAnswer(SkipStatus):
    """A record that is left out from now on, and what it was in when that was asked for."""

    batch_offset: Offset | None
    """The first record of the batch that was out, or that had failed; null: there was none."""
    batch_end: Offset | None
    """The offset after that batch."""
    attempts: Number
    """The number of times in a row that the batch had failed."""
    last_error: SendableText | None
    """The last error of the partition."""


class AcknowledgeAnswer(Document):
    """Records that an operator has taken care of, or has seen."""

    acknowledged: dict[str, Number]
    """Records acknowledged by this request, by kind."""
    rejects: RejectsStatus
    """Records that are still not acknowledged, and who acknowledged last."""


class SnapshotAnswer(Document):
    """The files of a channel's state as they were at one moment."""

    folder: str
    """The folder on the process's machine that has them, next to the channel's store. Delete it
    when they are copied; the next snapshot of the channel does so as well, and the next start."""


class LogLevelAnswer(Document):
    """The log levels that now apply."""

    levels: dict[str, str]
    """By logger the least severity that is logged; "" stands for all others."""
    reverts_at: datetime | None
    """The time at which the level goes back to what it was; null: it stays."""


class StopAnswer(Document):
    """A stop that was asked for."""

    phase: ProcessPhase
    """The phase of the process: the stop begins within a second."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that a client asks for. ``channel`` is None where it is the process's."""

    action: str
    caller: Caller
    change: Change
    channel: str | None = None

    @property
    def by(self) -> str:
        """Return who, for people: the name that the caller gave, or else what it showed."""
        return self.change.by or f"{self.caller.proof} from {self.caller.host}"


@contextmanager
def audited(asked: Asked) -> Iterator[Asked]:
    """Log the change with what became of the block: done, refused or failed."""
    try:
        yield asked
    except (ApiError, HeadraceError) as error:
        _log(asked, "refused", f"{_name_of(error)}: {error}")
        raise
    except Exception as error:
        _log(asked, "failed", type(error).__name__)
        raise
    _log(asked, "done", None)


def _name_of(error: HeadraceError) -> str:
    """Return an error's name: what the API answers as ``error``, or else its class."""
    match error:
        case ApiError():
            return error.problem.error
        case RefusedError():
            return error.refusal.value
    return type(error).__name__


def _log(asked: Asked, outcome: str, error: str | None) -> None:
    wanted: dict[str, Any] = asked.change.model_dump(
        mode="json", exclude={"by"}, exclude_defaults=True
    )
    log.warning(
        "admin_change",
        action=asked.action,
        channel=asked.channel,
        requested=wanted,
        by=asked.by,
        proof=asked.caller.proof,
        address=asked.caller.address,
        outcome=outcome,
        error=error,
    )


#: The longest that an answer may be waited for, in seconds.
LONGEST_WAIT = 300.0

#: The longest pause that may be asked for by its length, in seconds: a year.
LONGEST_PAUSE = 366 * 86400.0

#: No control characters: what is sent here stands in logs and on terminals.
_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"


def _only_text(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise PydanticCustomError("not_text", "Input should be a time as text")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_only_text, json_schema_input_type=AwareDatetime)]
Topic = Annotated[str, Field(min_length=1, max_length=249, pattern=_PRINTABLE)]
Partition = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
#: No log gets there, and every JSON reader has such numbers exactly.
SeekOffset = Annotated[int, Field(strict=True, ge=0, le=2**53)]
RecordCount = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Reason = Annotated[str, Field(max_length=1000, pattern=_PRINTABLE)]
Logger = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.]+$")]
Who = Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTABLE)]
Wait = Annotated[float, Field(strict=True, ge=0, le=LONGEST_WAIT, allow_inf_nan=False)]
Length = Annotated[float, Field(strict=True, gt=0, le=LONGEST_PAUSE, allow_inf_nan=False)]


class Change(Described):
    """The base of all changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Who | None = None
    """The name of the requester, for the log and the status; null: what the caller showed."""


class ScopedChange(Change):
    """A change of a channel, or of one partition."""

    topic: Topic | None = None
    """The topic of the one partition that is meant; null: the whole channel."""
    partition: Partition | None = None
    """The number of that partition."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.topic is None) != (self.partition is None):
            raise PydanticCustomError("half", "topic and partition are given together or not")
        return self


class PauseRequest(ScopedChange):
    """A pause. The one that the same person began of the same scope is replaced, others go on."""

    mode: PauseMode = PauseMode.HOLD
    """The pause's effect on partitions."""
    reason: Reason = ""
    """The reason, which becomes the note of the pause."""
    until: Moment | None = None
    """The time at which it ends by itself."""
    for_s: Length | None = None
    """Seconds after which it ends by itself, in place of until."""
    shorten: Annotated[bool, Field(strict=True)] = False
    """True if it may replace a pause that would have ended later, or not by itself."""
    wait_s: Wait = 0.0
    """Seconds to wait until nothing is being processed."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.until is not None and self.for_s is not None:
            raise PydanticCustomError("two_ends", "until and for_s exclude each other")
        return self


class ResumeRequest(ScopedChange):
    """The end of a pause. Pauses of other reasons and other scopes go on."""

    pause_reason: Literal["operator", "downstream", "misfit"] = "operator"
    """The reason for the pause that ends: an operator's, the processor's (downstream), or that of
    partitions whose results fit nowhere (misfit), which are tried again."""
    of: Who | None = None
    """The operator whose pause ends, as the status has it; null: who asks."""

    @model_validator(mode="after")
    def _of_an_operator(self) -> Self:
        if self.of is not None and self.pause_reason != "operator":
            raise PydanticCustomError("of_nobody", "of names an operator, whose pause it ends")
        return self


class Replayed(Change):
    """A change that may have records read again."""

    replay: Replay | None = None
    """The treatment of the sink's output of those records, where the sink keeps offsets: append
    keeps it and writes the results again. Replacing it takes a stopped channel."""


class SeekRequest(Replayed):
    """A new position for one partition of a paused channel."""

    topic: Topic
    """The topic."""
    partition: Partition
    """The partition's number."""
    offset: SeekOffset
    """The next record to deliver."""
    wait_s: Wait = 30.0
    """Seconds to wait until it is done and committed."""


class ResetRequest(ScopedChange, Replayed):
    """New positions for one or all partitions of a paused channel that this process holds."""

    to: Annotated[str, Field(min_length=1, max_length=100, pattern=_PRINTABLE)]
    """earliest, latest, datetime:TIME, offset:N or shift-by:N, as for headrace offsets reset."""
    wait_s: Wait = 60.0
    """Seconds to wait until it is done and committed."""


class SkipRequest(Change):
    """A record that is left out, as one that no processing survives."""

    topic: Topic
    """The topic."""
    partition: Partition
    """The partition's number."""
    offset: SeekOffset
    """The record to skip."""
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=_PRINTABLE)]
    """The reason, for the log."""
    force: Annotated[bool, Field(strict=True)] = False
    """True if the record may be outside of the batch that is out or fails."""


class AcknowledgeRequest(Change):
    """The skipped or rejected records that an operator has seen; later ones stay open.

    Without a count, all that there are at this moment.
    """

    dead_letters: RecordCount | None = None
    """So many dead letters; null: none, where another count is given."""
    skipped_records: RecordCount | None = None
    """So many records that were passed over; null as before."""
    rejected_facts: RecordCount | None = None
    """So many records and timers of a channel with state; null as before."""


class SnapshotRequest(Change):
    """The files of a channel's state are linked into a folder, as they are now."""


class LogLevelRequest(Change):
    """A change of the log level."""

    level: Literal["debug", "info", "warning", "error"] | None
    """The least severity that is logged; null: a logger goes by the process's level again."""
    logger: Logger | None = None
    """The module or library that is meant, such as headrace.channel; null: the process."""
    for_s: Length | None = None
    """Seconds after which the level goes back to what it was; null: it stays."""

    @model_validator(mode="after")
    def _somebody_elses(self) -> Self:
        if self.level is None and self.logger is None:
            raise PydanticCustomError("no_level", "the process has to have a level")
        if self.logger == "root":
            raise PydanticCustomError("root", "leave logger out where the process is meant")
        return self


class ReloadRequest(Change):
    """The configuration file is read again."""

    wait_s: Wait = 60.0
    """Seconds to wait until all of it is in effect."""


class StopRequest(Change):
    """The process stops, as by SIGTERM."""

    reason: Reason = ""
    """The reason."""


#: Requests that may wait at a time: each keeps a thread, and others have to be answered too.
MOST_WAITING = 16


class Changes:
    """The endpoints that change something. They run on a pool of threads, and may block."""

    def __init__(
        self,
        controller: Controller,
        process: Process,
        deployment: Deployment | None,
        *,
        log_levels: LogLevels,
        rejects: Rejects,
        clock: Clock,
    ) -> None:
        self._controller = controller
        self._rejects = rejects
        self._deployment = deployment
        self._process = process
        self._log_levels = log_levels
        self._clock = clock
        self._waiting = BoundedSemaphore(MOST_WAITING)

    def pause(self, request: Request, name: ChannelName, body: PauseRequest) -> PauseAnswer:
        """Pause a channel or one partition, and wait until that is true."""
        with audited(Asked("pause", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            scope, before = scope_of(channel, body), channel.pauses
            pause = channel.pause(
                by=asked.by,
                mode=body.mode,
                partition=scope,
                until=self._end_of(body),
                note=body.reason,
                shorten=body.shorten,
            )
            acknowledged = None
            if body.wait_s > 0:
                acknowledged = self._wait_paused(channel, body.wait_s)
            own = [p for p in before if p.by == asked.by and p.is_of(PauseReason.OPERATOR, scope)]
            return PauseAnswer(
                pause=pause_status(pause),
                acknowledged=acknowledged,
                replaced=pause_status(own[0]) if own else None,
                others=[pause_status(each) for each in before if each not in own],
            )

    def resume(
        self,
        request: Request,
        name: ChannelName,
        body: Annotated[ResumeRequest, Body()] = ResumeRequest(),  # noqa: B008 - frozen
    ) -> ResumeAnswer:
        """End a pause; others go on."""
        with audited(Asked("resume", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            reason = PauseReason(body.pause_reason)
            scope = scope_of(channel, body)
            ended = channel.resume(reason, by=asked.by, partition=scope, of=body.of)
            return ResumeAnswer(
                resumed=None if ended is None else pause_status(ended),
                pauses=[pause_status(each) for each in channel.pauses],
            )

    def acknowledge(
        self,
        request: Request,
        name: ChannelName,
        body: Annotated[AcknowledgeRequest, Body()] = AcknowledgeRequest(),  # noqa: B008 - frozen
    ) -> AcknowledgeAnswer:
        """Acknowledge what was skipped or rejected."""
        with audited(Asked("acknowledge", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            given = {kind: getattr(body, kind) for kind in KINDS}
            counts = {kind: count for kind, count in given.items() if count is not None}
            try:
                done = self._rejects.acknowledge(channel.name, counts or given, asked.by)
            except OSError as error:
                raise ApiError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "not_saved",
                    f"it cannot be written to state_dir: {error.strerror}; nothing is acknowledged",
                    next_step="make room on the disk, or correct the rights of state_dir",
                ) from error
            return AcknowledgeAnswer(acknowledged=done, rejects=self._rejects.of(channel.name))

    def seek(self, request: Request, name: ChannelName, body: SeekRequest) -> SeekAnswer:
        """Move a partition of a paused channel to an offset, in the sink as well."""
        with audited(Asked("seek", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            partition = partition_of(channel, body.topic, body.partition)
            with self._waiter(body.wait_s) as deadline:
                applied = channel.seek(
                    partition, body.offset, by=asked.by, deadline=deadline, replay=body.replay
                )
            return _seek_answer(applied)

    def reset(self, request: Request, name: ChannelName, body: ResetRequest) -> ResetAnswer:
        """Reset the offsets of a paused channel's partitions that this process holds."""
        with audited(Asked("reset", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            chosen, target = scope_of(channel, body), _target(body.to)
            held = [TopicPartition(each.topic, each.partition) for each in channel.partitions()]
            partitions = sorted(held) if chosen is None else [chosen]
            with self._waiter(body.wait_s) as deadline:
                # all are looked at before one is moved, so that a refusal changes nothing
                wanted = [(p, channel.find(target, p, deadline)) for p in partitions]
                moving = _move_all(channel, wanted, asked.by, deadline, body.replay)
                return ResetAnswer(moved=list(moving))

    def skip(self, request: Request, name: ChannelName, body: SkipRequest) -> SkipAnswer:
        """Leave one record out, as one that no processing survives; needs no pause."""
        with audited(Asked("skip", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            partition = partition_of(channel, body.topic, body.partition)
            # looked at before, because the batch is retried at once
            found = _activity(channel, partition)
            skip = channel.skip(
                partition, body.offset, reason=body.reason, by=asked.by, force=body.force
            )
            return SkipAnswer(
                **skip_status(skip).model_dump(),
                batch_offset=None if found is None else found.batch_offset,
                batch_end=None if found is None else found.batch_end,
                attempts=0 if found is None else found.attempts,
                last_error=None if found is None else found.last_error,
            )

    def snapshot(
        self,
        request: Request,
        name: ChannelName,
        body: Annotated[SnapshotRequest, Body()] = SnapshotRequest(),  # noqa: B008 - frozen
    ) -> SnapshotAnswer:
        """Link the files of a channel's state into a folder; nothing waits for it."""
        with audited(Asked("snapshot", request.scope["caller"], body, name)):
            reader = reader_of(find_channel(self._controller, name))
            return SnapshotAnswer(folder=str(reader.copy_files().absolute()))

    def reload(
        self,
        request: Request,
        body: Annotated[ReloadRequest, Body()] = ReloadRequest(),  # noqa: B008 - frozen
    ) -> ReloadAnswer:
        """Read the configuration file again and put in place what is different."""
        with audited(Asked("reload", request.scope["caller"], body)) as asked:
            if self._deployment is None:
                raise ApiError(
                    HTTPStatus.CONFLICT,
                    "not_reloadable",
                    "a bounded run takes up no new configuration",
                    next_step="let it end, or stop it, and start it with the new file",
                )
            with self._waiter(body.wait_s) as deadline:
                return reload_answer(self._deployment.reload(asked.by, deadline))

    def log_level(self, request: Request, body: LogLevelRequest) -> LogLevelAnswer:
        """Log more or less, for a while or until the next start."""
        with audited(Asked("loglevel", request.scope["caller"], body)):
            levels = self._log_levels.change(body.level, body.logger or "", body.for_s)
            end = None if body.for_s is None else moment(self._clock.time() + body.for_s)
            return LogLevelAnswer(levels=dict(levels), reverts_at=end)

    def stop(
        self,
        request: Request,
        body: Annotated[StopRequest, Body()] = StopRequest(),  # noqa: B008 - frozen
    ) -> StopAnswer:
        """Stop the process in order, as SIGTERM does. Asking again changes nothing."""
        with audited(Asked("stop", request.scope["caller"], body)) as asked:
            self._process.ask_stop(asked.by)
            return StopAnswer(phase=self._process.phase)

    # --- parts ----------------------------------------------------------------------------------

    def _end_of(self, body: PauseRequest) -> float | None:
        if body.for_s is not None:
            return self._clock.time() + body.for_s
        if body.until is None:
            return None
        if body.until <= moment(self._clock.time()):
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "end_in_the_past",
                "the pause would be over before it begins",
                value=body.until.isoformat(),
                next_step="give a later time, or for_s",
            )
        return body.until.timestamp()

    @contextmanager
    def _waiter(self, seconds: float) -> Iterator[Deadline]:
        """Yield a deadline for a request that waits, unless too many wait already."""
        if not self._waiting.acquire(blocking=False):
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_waiting",
                f"{MOST_WAITING} requests wait already; nothing was changed",
                next_step="ask again when some of them are done",
            )
        try:
            yield Deadline.after(seconds, self._clock)
        finally:
            self._waiting.release()

    def _wait_paused(self, channel: InboundKafkaChannel, seconds: float) -> bool:
        if not self._waiting.acquire(blocking=False):
            # the pause has begun all the same, and the status says when it is true
            return False
        try:
            return channel.wait_paused(Deadline.after(seconds, self._clock))
        finally:
            self._waiting.release()

    def router(self, **options: Any) -> APIRouter:
        """Return the endpoints."""
        router = APIRouter()

        def add(path: str, endpoint: Any, summary: str, *statuses: int, code: int = 200) -> None:
            router.add_api_route(
                f"/api/v1/{path}",
                endpoint,
                methods=["POST"],
                summary=summary,
                status_code=code,
                responses=described(408, 422, *statuses),
                **options,
            )

        add("channels/{name}/pause", self.pause, "Pause a channel or a partition", 404, 409)
        add("channels/{name}/resume", self.resume, "End a pause", 404, 409)
        add(
            "channels/{name}/acknowledge",
            self.acknowledge,
            "Acknowledge records that were skipped or rejected",
            404,
            503,
        )
        add("channels/{name}/seek", self.seek, "Move a paused partition", 404, 409, 503)
        add("channels/{name}/reset", self.reset, "Move paused partitions", 404, 409, 503)
        add("channels/{name}/skip", self.skip, "Leave a record out", 404, 409)
        add("channels/{name}/snapshot", self.snapshot, "Copy the files of its state", 404, 503)
        add("reload", self.reload, "Take up the configuration file", 409, 503)
        add("loglevel", self.log_level, "Log more or less", 409)
        add("stop", self.stop, "Stop the process", code=202)
        return router


def _target(text: str) -> Target:
    try:
        return parse_target(text)
    except ValueError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_target",
            str(error),
            value=text,
            next_step=f"give {FORMS}",
        ) from error


def _move_all(
    channel: InboundKafkaChannel,
    wanted: Iterable[tuple[TopicPartition, int]],
    by: str,
    deadline: Deadline,
    replay: Replay | None,
) -> Iterator[SeekAnswer]:
    moved: list[str] = []
    for partition, offset in wanted:
        try:
            applied = channel.seek(partition, offset, by=by, deadline=deadline, replay=replay)
            yield _seek_answer(applied)
        except HeadraceError as error:
            if not moved:
                raise
            raise ApiError(
                HTTPStatus.CONFLICT,
                "partly_done",
                f"{', '.join(moved)} moved, then: {error}",
                value=str(partition),
                next_step="reset again, which does the rest",
            ) from error
        moved.append(str(partition))


def _activity(channel: InboundKafkaChannel, partition: TopicPartition) -> PartitionSnapshot | None:
    """Return a snapshot of a partition; None if it is not held."""
    found = (p for p in channel.partitions() if (p.topic, p.partition) == partition)
    return next(found, None)


def _seek_answer(applied: SeekResult) -> SeekAnswer:
    topic, number = applied.partition
    return SeekAnswer(topic=topic, partition=number, before=applied.before, offset=applied.offset)


def scope_of(channel: InboundKafkaChannel, body: ScopedChange) -> TopicPartition | None:
    """Return the partition that is meant, None for the whole channel.

    Raises:
        ApiError: the channel has no such topic or partition.
    """
    if body.topic is None or body.partition is None:
        return None
    return partition_of(channel, body.topic, body.partition)


def partition_of(channel: InboundKafkaChannel, topic: str, number: int) -> TopicPartition:
    """Return the partition, which the brokers know. Raises as ``scope_of`` does."""
    topics = channel.topics
    if topic not in topics:
        raise unknown("topic", topic, topics)
    if number >= topics[topic]:
        raise unknown("partition", f"{topic}-{number}", [f"{topic}-0 to {topics[topic] - 1}"])
    return TopicPartition(topic, number)

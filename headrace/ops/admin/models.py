"""Models of the API's answers, from which the OpenAPI document is made.

Keys are stable; later versions may add some. Times are UTC, durations seconds (``_s``), sizes
bytes. Offsets mean the next record. Null stands for what is not known or not there.
"""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from headrace.channel.pauses import PauseMode, PauseReason
from headrace.channel.states import ChannelState, PartitionState
from headrace.config import DeliveryGuarantee
from headrace.coordinators.member_info import AssignmentState, MemberState
from headrace.core.errors import HeadraceError, RefusedError
from headrace.ops.admin.configuration import ConfigSummary
from headrace.ops.admin.document import Document, Number, Offset, Seconds, SendableText
from headrace.ops.admin.ports import ProcessPhase
from headrace.ops.admin.rejects import RejectsStatus
from headrace.telemetry.thread_time import ThreadActivity as Doing
from headrace.telemetry.thread_time import ThreadRole
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response


class ProcessStatus(Document):
    """The process."""

    instance_id: str
    """Its name in its groups."""
    phase: ProcessPhase
    """Its phase."""
    version: str
    """The version of Headrace."""
    python: str
    """The version of Python."""
    host: str
    """The machine it runs on."""
    pid: int
    """Its process id."""
    config_file: str
    """The file it was configured by."""
    started_at: datetime
    """The time at which it started."""
    uptime_s: Seconds
    """Seconds since it started."""


class ZooKeeperStatus(Document):
    """The ZooKeeper session."""

    state: SessionState
    """The state of the session, as the client knows it."""
    hosts: list[str]
    """The servers."""
    session_id: str | None
    """The session, in hexadecimal digits."""
    session_timeout_s: Seconds
    """The time-out agreed on with the servers."""


class SparkStatus(Document):
    """The Spark session, which all channels share."""

    running: bool
    """True if its JVM runs."""
    master: str
    """The master that runs its jobs."""
    pid: int | None
    """The process id of the JVM."""
    generation: Number
    """The number of JVMs started so far."""
    cores: Number
    """The number of tasks that run at once."""


class PauseStatus(Document):
    """A pause of a channel, or of one partition."""

    reason: PauseReason
    """The reason for the pause."""
    mode: PauseMode
    """Its effect on partitions."""
    by: SendableText
    """The name of the requester."""
    since: datetime
    """The time at which it began."""
    until: datetime | None
    """The time at which it ends by itself; null: it does not."""
    topic: str | None
    """The topic of the one partition that it is of; null: it is of the whole channel."""
    partition: Number | None
    """The number of that partition."""
    note: SendableText
    """The reason in words."""


class RestoreStatus(Document):
    """The progress of restoring a partition's state. Counts are offsets of its changelog."""

    done: Number
    """Offsets read so far."""
    total: Number | None
    """Offsets to read; null while that is not known."""
    percent: Seconds | None
    """The part that was read, in percent."""
    left_s: Seconds | None
    """Seconds until the rest is read, if it goes on as before."""


class PartitionStatus(Document):
    """A partition that is held, as every answer about one has it."""

    topic: str
    """Its topic."""
    partition: Number
    """Its number."""
    state: PartitionState
    """Its state."""
    epoch: Number
    """The epoch of the claim."""
    position: Offset
    """The next offset to deliver: after a batch that is out."""
    batch_offset: Offset | None
    """The first record of the oldest batch that is out, or that failed and is retried; null: none
    is."""
    batch_end: Offset | None
    """The offset after that batch."""
    committed: Offset | None
    """The offset that a restart would begin at."""
    buffered_records: Number
    """Records fetched and not yet delivered."""
    held_bytes: Number
    """Bytes fetched and not yet answered, object overhead counted."""
    outstanding_batches: Number
    """Batches delivered and not yet answered."""
    attempts: Number
    """The number of times in a row that the batch at batch_offset has failed."""
    dead_letters: Number
    """Records put into the dead-letter topic since the partition was claimed."""
    last_error: SendableText | None
    """The last error that was told to the processor."""
    end: Offset | None
    """The end of the log as last fetched."""
    lag: Number | None
    """Records between the committed offset and the end."""
    lag_s: Seconds | None
    """Seconds that the next record has been waiting to be answered."""
    sink_age_s: Seconds | None
    """The age of the newest record that was answered for good. It rises where nothing comes."""
    records_per_s: Seconds
    """The rate at which the position moved in the last minute, in records a second."""
    suspect_records: Number
    """Records of a batch that was given up, among which those that fail are being looked for."""
    held_back_until: datetime | None
    """The time at which it is delivered again, after an error or because the processor asked for a
    wait."""
    callback_s: Seconds | None
    """Seconds since its running callback began."""
    restoring: RestoreStatus | None = None
    """The progress of restoring its state; null: it is there, or there is none."""


class MemberStatus(Document):
    """This process as a member of the channel's group."""

    state: MemberState
    """The state of its membership in the group."""
    assignment: AssignmentState
    """The progress in taking the partitions that the group's map gives it: none means that it
    rightly has nothing, overdue that partitions could not be taken in a minute."""
    epoch: Number | None
    """The epoch of this membership; null without a claim."""
    claims: Number
    """The partitions it has claimed."""
    lease_s: Seconds | None
    """Seconds for which it may act on its claims until ZooKeeper has to confirm them."""


class SkipStatus(Document):
    """A record that is left out, until the commit is past it."""

    topic: str
    """Its topic."""
    partition: Number
    """Its partition's number."""
    offset: Offset
    """Its own offset."""
    reason: SendableText
    """The reason."""
    by: SendableText
    """The name of the requester."""


class Totals(Document):
    """A channel in numbers. Counts are since the process started."""

    records: Number
    """Records answered."""
    records_per_s: Seconds
    """Records answered a second, over the last minute."""
    skipped_records: Number
    """Records passed over."""
    overflow_records: Number
    """Records left out or put into the dead-letter topic, because too many waited."""
    dead_letters: Number
    """Records put into the dead-letter topic."""
    errors: Number
    """Errors told to the processor."""
    commit_failures: Number
    """Commits that failed."""
    enforced: Number = 0
    """Pieces of work that were taken while one of several topics had no records, and was at its
    end for max_task_idle."""
    rebalances: Number
    """Changes of this member's share."""
    lag: Number
    """Records between the committed offsets and the ends, of all partitions held."""
    lag_per_s: float = 0.0
    """Records a second by which the lag grew over the last five minutes; below 0: it shrank."""
    catch_up_s: Seconds | None = None
    """The seconds until none is left, if it goes on so; 0: it has caught up, null: it does not."""
    held_bytes: Number
    """Bytes fetched and not yet answered."""
    partitions: dict[PartitionState, Number]
    """Partitions held, by state."""


class StageStatus(Document):
    """A stage of the data flow, over the last minute."""

    stage: str
    """Its name, as in headrace_stage_seconds."""
    per_s: Seconds
    """The number of times a second that it was done."""
    mean_s: Seconds | None
    """Seconds that it took on average; null if it was not done."""
    busy: Seconds
    """The seconds a second that it took; more than 1 where several do it at once."""


class ThreadsStatus(Document):
    """The channel's threads of one role, over the last minute."""

    role: ThreadRole
    """Their role."""
    parts: dict[Doing, Seconds]
    """The part of their time that each activity took."""


class PhaseStatus(Document):
    """Keys whose state is in one phase, of those that the reducer declares."""

    name: str
    """The phase."""
    keys: Number
    """Keys in it."""
    oldest_s: Seconds | None
    """The age of the oldest; null where no key in it has one."""


class OperatorStatus(Document):
    """An operator of a topology, over the partitions that are here.

    Counts are since the channel started; null: it is nothing that can happen to the operator.
    """

    name: str
    """Its name."""
    kind: str
    """Its kind: aggregate, join, lookup, table_join or table."""
    store: str | None
    """The kind of its store, as rows, windows, sessions, join or table; null: it has none."""
    records: Number
    """Rows that came to it."""
    late: Number | None
    """Rows that came when their windows and the grace were over."""
    alone: Number | None
    """Rows without a partner that a left or an outer join told."""
    closed: Number | None
    """Windows of keys that are over."""
    skipped: Number | None
    """Rows left out because they have no value, or not the key to look up."""
    rows: Number | None
    """Rows of its store; null, as the next one, while they are counted, or without a store."""
    bytes: Number | None
    """Bytes of keys and rows, as stored."""
    operator_time_lag_s: Seconds | None
    """Seconds by which its oldest operator time is behind the clock; null before a record, and of
    an operator without one."""


class StandbyStatus(Document):
    """The copy of another member's partition that this process keeps. It answers only what says
    stale.
    """

    partition: Number
    """The partition's number."""
    position: Offset
    """The offset of the changelog that it has followed to."""
    lag: Number | None
    """Offsets of the changelog that it is behind; null while that is not known."""
    problem: SendableText | None
    """The reason why it does not go on; null: it does."""


class StateTotals(Document):
    """The state that a channel keeps by key, of the partitions that are here.

    Counts are since the channel started.
    """

    rows: Number | None
    """Keys; null, as the next ones, while they are counted, some moments after restoring."""
    bytes: Number | None
    """Bytes of keys and rows, as stored."""
    timers: Number | None
    """Timers, those of ttl among them."""
    quarantined: Number | None
    """Keys in quarantine, whose facts are rejected."""
    keys_touched: Number
    """Keys that had facts or timers, in each micro-batch."""
    timers_fired: Number
    """Timers that fired."""
    late: Number
    """Records older than the stream time before them."""
    rejected: Number
    """Facts, records and timers, that were left out or put into the dead-letter topic."""
    restoring: Number
    """Partitions whose state is not there yet."""
    restore_remaining: Number
    """Offsets of the changelog that are still to be read."""
    unwritten_bytes: Number
    """Bytes of memory that rows take which are committed and not in the store's files yet."""
    stream_time_lag_s: Seconds | None
    """Seconds by which the oldest stream time is behind the clock."""
    phases: list[PhaseStatus]
    """Keys by phase, as the reducer declares them; none while they are counted."""
    amounts: dict[str, Number]
    """Sums over all keys, as the reducer declares them; none while they are counted."""
    counts: dict[str, Number]
    """Sums of what commits added to the counts that the reducer declares."""
    operators: list[OperatorStatus]
    """The operators of a topology that have figures of their own, in the order of the code."""
    standbys: list[StandbyStatus]
    """The copies of other members' partitions that are kept here, by number."""


class PoolStatus(Document):
    """The threads that a channel's processor has of its own."""

    threads: Number
    """Threads."""
    busy: Number
    """Those that make a call."""
    waiting: Number
    """Calls that wait for a thread."""
    ended: dict[str, Number]
    """Calls since the channel started, by outcome."""
    left: Number = 0
    """Threads that were left to calls that hang, beside those of the pool."""


class ChannelStatus(Document):
    """A channel."""

    name: str
    """Its name in the configuration."""
    state: ChannelState
    """Its state."""
    failure: SendableText | None
    """The reason for its failure; null: it has not failed."""
    group: str
    """Its group."""
    topics: dict[str, Number]
    """Its topics, as last seen, and how many partitions each has."""
    processor: str
    """The type of its processor."""
    sink: str | None
    """The type of its sink."""
    delivery: DeliveryGuarantee
    """Its delivery guarantee."""
    member: MemberStatus
    """This process as a member of the group."""
    paused: bool
    """True if the whole channel is paused."""
    pauses: list[PauseStatus]
    """All pauses, the oldest first."""
    skips: list[SkipStatus]
    """Records that are to be left out and that no commit is past yet."""
    totals: Totals
    """Its totals."""
    rejects: RejectsStatus | None = None
    """Records that were skipped or rejected, and are not acknowledged yet."""
    stages: list[StageStatus]
    """The time of its batches, by stage."""
    threads: list[ThreadsStatus]
    """The time of its threads, by role."""
    conditions: dict[str, Number]
    """Partitions of the group that need attention, by what is wrong with them, as this
    member sees it: unowned, pending, contended, missing or foreign."""
    state_by_key: StateTotals | None = None
    """The state that it keeps by key; null: none."""
    pool: PoolStatus | None = None
    """The threads that its processor has of its own; null: none."""
    partitions: list[PartitionStatus]
    """The partitions it holds, by topic and number."""


#: The page that says what to do about what is wrong.
RUNBOOKS = "https://github.com/headrace/headrace/blob/main/docs/runbooks.md"


class Status(Document):
    """Everything about the process at one moment."""

    at: datetime
    """The moment."""
    process: ProcessStatus
    """The process."""
    zookeeper: ZooKeeperStatus
    """The ZooKeeper session."""
    spark: SparkStatus | None
    """The Spark session; null where no channel uses it."""
    ready: bool
    """True if it is ready, as /health/ready says."""
    not_ready_because: list[SendableText]
    """Reasons why it is not ready."""
    config: ConfigSummary | None = None
    """The comparison of the file with what runs; null: this process takes up no changes."""
    runbooks: str = RUNBOOKS
    """The page that says what to do."""
    channels: list[ChannelStatus]
    """The channels, by name; during the start those that were opened so far."""


class Channels(Document):
    """The channels."""

    at: datetime
    """The time of this answer."""
    channels: list[ChannelStatus]
    """The channels, by name."""


class Partitions(Document):
    """The partitions of one channel that this process holds."""

    at: datetime
    """The time of this answer."""
    channel: str
    """The channel."""
    partitions: list[PartitionStatus]
    """The partitions, by topic and number."""


class Health(Document):
    """The result of a health check."""

    ok: bool
    """True if all is well."""
    reasons: list[SendableText]
    """Reasons why it is not."""


class Problem(Document):
    """The reason why something was refused, and the next step."""

    error: str
    """The name of the error; stable."""
    message: SendableText
    """The fault in words."""
    value: SendableText | None
    """The value that is wrong."""
    next_step: str
    """The next step."""


log = structlog.get_logger(__name__)

#: Characters of a value that are repeated to who sent it.
_QUOTED = 100


class ApiError(HeadraceError):
    """A request that is answered with a problem in place of a result."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        message: str,
        *,
        next_step: str,
        value: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(
            error=error,
            message=message,
            value=None if value is None else value[:_QUOTED],
            next_step=next_step,
        )
        self.headers = headers

    def response(self) -> Response:
        """Return it as it goes over the wire."""
        return JSONResponse(
            self.problem.model_dump(mode="json"), self.status, dict(self.headers or {})
        )


def unknown(what: str, value: str, known: Iterable[str]) -> ApiError:
    """Return the error for a name that nothing has, with the one that was probably meant."""
    names = sorted(known)
    near = get_close_matches(value, names, 1)
    step = f"did you mean {near[0]}? " if near else ""
    there = f"there are {', '.join(names)}" if names else f"there is no {what} at all"
    return ApiError(
        HTTPStatus.NOT_FOUND,
        f"unknown_{what}",
        f"there is no {what} {value[:_QUOTED]}",
        value=value,
        next_step=f"{step}{there}",
    )


def internal_error() -> ApiError:
    """Return what is said of an error that was not foreseen; the log has it."""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal_error",
        "the request failed by an error that Headrace did not foresee",
        next_step="look for admin_request_failed in the log, and report it",
    )


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return, for the OpenAPI document, with which statuses an endpoint answers a problem."""
    common = (400, 401, 403, 413, 500)
    return {
        status: {"model": Problem, "description": HTTPStatus(status).phrase}
        for status in sorted({*common, *statuses})
    }


def handle_errors(app: FastAPI) -> None:
    """Answer every error of ``app`` as a problem document."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HeadraceError, _headrace_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    answer = error.response()
    # a script in a browser neither sees where a redirect leads nor may follow it to another member
    is_led = error.status is HTTPStatus.TEMPORARY_REDIRECT
    if is_led and "no-redirect" in request.headers.get("prefer", ""):
        answer.status_code = HTTPStatus.MISDIRECTED_REQUEST
    return answer


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return ApiError(
        HTTPStatus.CONFLICT,
        error.refusal.value,
        error.text,
        value=error.value,
        next_step=error.next_step,
    ).response()


async def _headrace_error(_: Request, error: Exception) -> Response:
    """Answer what came from below: a service that the process depends on failed."""
    log.warning("admin_request_unanswered", error=str(error), kind=type(error).__name__)
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "unavailable",
        str(error),
        next_step="look at /api/v1/status for what does not answer, and ask again",
    ).response()


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        f"{place}: {first['msg']}",
        value=place,
        next_step="correct the request; /openapi.json says what is accepted",
    ).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {
        HTTPStatus.NOT_FOUND: ("not_found", "there is nothing at this path"),
        HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "this path has no such method"),
    }
    status = HTTPStatus(error.status_code)
    name, message = names.get(status, ("bad_request", str(error.detail)))
    return ApiError(
        status,
        name,
        message,
        value=f"{request.method} {request.url.path}",
        next_step="/openapi.json has all paths and their methods",
        headers=error.headers,
    ).response()

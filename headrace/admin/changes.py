"""The endpoints that change something: each a POST, audited, with the token only."""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Request

from headrace.admin import answers as a
from headrace.admin import requests as r
from headrace.admin.audit import Asked, audited
from headrace.admin.configuration import ReloadAnswer, reload_answer
from headrace.admin.looking import pause_status, skip_status
from headrace.admin.moments import moment
from headrace.admin.problems import ApiError, described, unknown
from headrace.admin.reads import ChannelName, find_channel
from headrace.channel.pauses import PauseReason
from headrace.clock import Clock, Deadline
from headrace.config.kinds.targets import FORMS, parse_target
from headrace.errors import HeadraceError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.admin.loglevels import LogLevels
    from headrace.admin.ports import Controller, Deployment, Process
    from headrace.channel.activity import Activity
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.news import Sought
    from headrace.config.kinds.targets import Replay, Target

#: Requests that may wait at a time: each keeps a thread, and others have to be answered too.
MOST_WAITING = 16


class Changes:
    """What each endpoint does. Its functions run on a pool of threads, and may block."""

    def __init__(
        self,
        controller: Controller,
        process: Process,
        deployment: Deployment | None,
        *,
        log_levels: LogLevels,
        clock: Clock,
    ) -> None:
        self._controller = controller
        self._deployment = deployment
        self._process = process
        self._log_levels = log_levels
        self._clock = clock
        self._waiting = BoundedSemaphore(MOST_WAITING)

    def pause(self, request: Request, name: ChannelName, body: r.PauseRequest) -> a.PauseAnswer:
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
            return a.PauseAnswer(
                pause=pause_status(pause),
                acknowledged=acknowledged,
                replaced=pause_status(own[0]) if own else None,
                others=[pause_status(each) for each in before if each not in own],
            )

    def resume(
        self,
        request: Request,
        name: ChannelName,
        body: Annotated[r.ResumeRequest, Body()] = r.ResumeRequest(),  # noqa: B008 - frozen
    ) -> a.ResumeAnswer:
        """End a pause; others go on."""
        with audited(Asked("resume", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            reason = PauseReason(body.pause_reason)
            scope = scope_of(channel, body)
            ended = channel.resume(reason, by=asked.by, partition=scope, of=body.of)
            return a.ResumeAnswer(
                resumed=None if ended is None else pause_status(ended),
                pauses=[pause_status(each) for each in channel.pauses],
            )

    def seek(self, request: Request, name: ChannelName, body: r.SeekRequest) -> a.SeekAnswer:
        """Have a partition of a paused channel go on at an offset, in the sink as well."""
        with audited(Asked("seek", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            partition = partition_of(channel, body.topic, body.partition)
            with self._waiter(body.wait_s) as deadline:
                sought = channel.seek(
                    partition, body.offset, by=asked.by, deadline=deadline, replay=body.replay
                )
            return _sought(sought)

    def reset(self, request: Request, name: ChannelName, body: r.ResetRequest) -> a.ResetAnswer:
        """Have the partitions that this process holds of a paused channel go on elsewhere."""
        with audited(Asked("reset", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            chosen, target = scope_of(channel, body), _target(body.to)
            held = [TopicPartition(each.topic, each.partition) for each in channel.activities()]
            partitions = sorted(held) if chosen is None else [chosen]
            with self._waiter(body.wait_s) as deadline:
                # all are looked at before one is moved, so that a refusal changes nothing
                wanted = [(p, channel.find(target, p, deadline)) for p in partitions]
                moving = _move_all(channel, wanted, asked.by, deadline, body.replay)
                return a.ResetAnswer(moved=list(moving))

    def skip(self, request: Request, name: ChannelName, body: r.SkipRequest) -> a.SkipAnswer:
        """Leave one record out, as one that no processing survives; needs no pause."""
        with audited(Asked("skip", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            partition = partition_of(channel, body.topic, body.partition)
            # looked at before, because the batch comes again at once
            found = _activity(channel, partition)
            skip = channel.skip(
                partition, body.offset, reason=body.reason, by=asked.by, force=body.force
            )
            return a.SkipAnswer(
                **skip_status(skip).model_dump(),
                batch_offset=None if found is None else found.batch_offset,
                batch_end=None if found is None else found.batch_end,
                attempts=0 if found is None else found.attempts,
                last_error=None if found is None else found.last_error,
            )

    def reload(
        self,
        request: Request,
        body: Annotated[r.ReloadRequest, Body()] = r.ReloadRequest(),  # noqa: B008 - frozen
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

    def log_level(self, request: Request, body: r.LogLevelRequest) -> a.LogLevelAnswer:
        """Log more or less, for a while or until the next start."""
        with audited(Asked("loglevel", request.scope["caller"], body)):
            levels = self._log_levels.change(body.level, body.logger or "", body.for_s)
            end = None if body.for_s is None else moment(self._clock.time() + body.for_s)
            return a.LogLevelAnswer(levels=dict(levels), reverts_at=end)

    def stop(
        self,
        request: Request,
        body: Annotated[r.StopRequest, Body()] = r.StopRequest(),  # noqa: B008 - frozen
    ) -> a.StopAnswer:
        """Stop the process in order, as SIGTERM does. Asking again changes nothing."""
        with audited(Asked("stop", request.scope["caller"], body)) as asked:
            self._process.ask_stop(asked.by)
            return a.StopAnswer(phase=self._process.phase)

    # --- parts ----------------------------------------------------------------------------------

    def _end_of(self, body: r.PauseRequest) -> float | None:
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
        """Give a deadline to a request that waits, unless too many wait already."""
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
        add("channels/{name}/seek", self.seek, "Move a paused partition", 404, 409, 503)
        add("channels/{name}/reset", self.reset, "Move paused partitions", 404, 409, 503)
        add("channels/{name}/skip", self.skip, "Leave a record out", 404, 409)
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
) -> Iterator[a.SeekAnswer]:
    moved: list[str] = []
    for partition, offset in wanted:
        try:
            sought = channel.seek(partition, offset, by=by, deadline=deadline, replay=replay)
            yield _sought(sought)
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


def _activity(channel: InboundKafkaChannel, partition: TopicPartition) -> Activity | None:
    """Look at a partition; None: it is not held."""
    found = (a for a in channel.activities() if (a.topic, a.partition) == partition)
    return next(found, None)


def _sought(sought: Sought) -> a.SeekAnswer:
    topic, number = sought.partition
    return a.SeekAnswer(topic=topic, partition=number, before=sought.before, offset=sought.offset)


def scope_of(channel: InboundKafkaChannel, body: r.ScopedChange) -> TopicPartition | None:
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

"""The endpoints that change something: each a POST, audited, with the token only."""

from __future__ import annotations

from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Request

from headrace.admin import documents as d
from headrace.admin import requests as r
from headrace.admin.audit import Asked, audited
from headrace.admin.looking import moment, pause_status
from headrace.admin.problems import ApiError, described, unknown
from headrace.admin.reads import ChannelName, find_channel
from headrace.channel.pauses import PauseReason
from headrace.clock import Clock, Deadline
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace.admin.loglevels import LogLevels
    from headrace.admin.ports import Controller, Process
    from headrace.channel.channel import InboundKafkaChannel

#: Requests that may wait at a time: each keeps a thread, and others have to be answered too.
MOST_WAITING = 16


class Changes:
    """What each endpoint does. Its functions run on a pool of threads, and may block."""

    def __init__(
        self, controller: Controller, process: Process, log_levels: LogLevels, clock: Clock
    ) -> None:
        self._controller = controller
        self._process = process
        self._log_levels = log_levels
        self._clock = clock
        self._waiting = BoundedSemaphore(MOST_WAITING)

    def pause(self, request: Request, name: ChannelName, body: r.PauseRequest) -> d.PauseAnswer:
        """Pause a channel or one partition, and wait until that is true."""
        with audited(Asked("pause", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            pause = channel.pause(
                by=asked.by,
                mode=body.mode,
                partition=scope_of(channel, body),
                until=self._end_of(body),
                note=body.reason,
            )
            acknowledged = None
            if body.wait_s > 0:
                acknowledged = self._wait_paused(channel, body.wait_s)
            return d.PauseAnswer(pause=pause_status(pause), acknowledged=acknowledged)

    def resume(
        self,
        request: Request,
        name: ChannelName,
        body: Annotated[r.ResumeRequest, Body()] = r.ResumeRequest(),  # noqa: B008 - frozen
    ) -> d.ResumeAnswer:
        """End a pause; others go on."""
        with audited(Asked("resume", request.scope["caller"], body, name)) as asked:
            channel = find_channel(self._controller, name)
            reason = PauseReason(body.pause_reason)
            ended = channel.resume(reason, by=asked.by, partition=scope_of(channel, body))
            return d.ResumeAnswer(
                resumed=None if ended is None else pause_status(ended),
                pauses=[pause_status(each) for each in channel.pauses],
            )

    def log_level(self, request: Request, body: r.LogLevelRequest) -> d.LogLevelAnswer:
        """Log more or less, for a while or until the next start."""
        with audited(Asked("loglevel", request.scope["caller"], body)):
            levels = self._log_levels.change(body.level, body.logger or "", body.for_s)
            end = None if body.for_s is None else moment(self._clock.time() + body.for_s)
            return d.LogLevelAnswer(levels=dict(levels), reverts_at=end)

    def stop(
        self,
        request: Request,
        body: Annotated[r.StopRequest, Body()] = r.StopRequest(),  # noqa: B008 - frozen
    ) -> d.StopAnswer:
        """Stop the process in order, as SIGTERM does. Asking again changes nothing."""
        with audited(Asked("stop", request.scope["caller"], body)) as asked:
            self._process.ask_stop(asked.by)
            return d.StopAnswer(phase=self._process.phase)

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

        add("channels/{name}/pause", self.pause, "Pause a channel or a partition", 404)
        add("channels/{name}/resume", self.resume, "End a pause", 404)
        add("loglevel", self.log_level, "Log more or less")
        add("stop", self.stop, "Stop the process", code=202)
        return router


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

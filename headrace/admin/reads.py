"""The endpoints that only look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime

from headrace.admin import documents as d
from headrace.admin import lately
from headrace.admin.health import not_live, not_ready
from headrace.admin.problems import described, unknown
from headrace.metrics import CONTENT_TYPE, metrics_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi.params import Depends

    from headrace.admin.looking import Lookout
    from headrace.admin.ports import Controller, Process
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.clock import Clock

AfterTime = Annotated[
    AwareDatetime | None, Query(description="Leaves out what was until then; null: nothing.")
]
AfterNumber = Annotated[
    int, Query(ge=0, description="Leaves out what has this number or a lower one.")
]
ChannelName = Annotated[str, Path(description="The channel's name in the configuration.")]


def find_channel(controller: Controller, name: str) -> InboundKafkaChannel:
    """Return the channel.

    Raises:
        ApiError: there is none of that name.
    """
    channels = dict(controller.channels)
    if name not in channels:
        raise unknown("channel", name, channels)
    return channels[name]


class Reads:
    """What each endpoint answers. Plain functions run on a pool of threads, and may block."""

    def __init__(
        self, controller: Controller, process: Process, lookout: Lookout, clock: Clock
    ) -> None:
        self._controller = controller
        self._process = process
        self._lookout = lookout
        self._clock = clock

    def partitions(self, name: ChannelName) -> d.Partitions:
        """Return the partitions that this process holds, of one channel."""
        return self._lookout.partitions(find_channel(self._controller, name))

    def channel(self, name: ChannelName) -> d.ChannelStatus:
        """Return one channel."""
        return self._lookout.channel(find_channel(self._controller, name))

    async def live(self, response: Response) -> d.Health:
        """Tell whether the process makes progress. Asks for no thread, which might be busy."""
        return _health(not_live(self._process, self._clock), response)

    async def ready(self, response: Response) -> d.Health:
        """Tell whether the process does its work."""
        return _health(not_ready(self._controller, self._process), response)

    def history(self, after: AfterTime = None) -> lately.History:
        """Return how the channels did in the last hour, or since a time."""
        return self._lookout.history(after)

    async def events(self, after: AfterNumber = 0) -> lately.Events:
        """Return what happened lately."""
        return self._lookout.events(after)

    def metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(metrics_text(self._controller.metrics), media_type=CONTENT_TYPE)

    def router(self, bearer: Depends, is_guarded: Callable[[str], bool]) -> APIRouter:
        """Return the endpoints; ``bearer`` goes to those that are guarded, by path."""
        router = APIRouter()

        def add(path: str, endpoint: Any, summary: str, *statuses: int, **more: Any) -> None:
            router.add_api_route(
                path,
                endpoint,
                methods=["GET"],
                summary=summary,
                responses=described(*statuses) | more.pop("responses", {}),
                dependencies=[bearer] if is_guarded(path) else None,
                **more,
            )

        look = self._lookout
        v1 = "/api/v1"
        add(f"{v1}/status", look.status, "Everything about the process")
        add(f"{v1}/channels", look.channels, "The channels")
        add(f"{v1}/channels/{{name}}", self.channel, "One channel", 404, 422)
        add(
            f"{v1}/channels/{{name}}/partitions",
            self.partitions,
            "The partitions of one channel",
            404,
            422,
        )
        add(f"{v1}/members", look.members, "The members of each group", 503)
        add(f"{v1}/history", self.history, "The last hour in numbers", 422)
        add(f"{v1}/events", self.events, "What happened lately", 422)
        add(f"{v1}/config", look.config, "The configuration, secrets masked")
        add(f"{v1}/stacks", look.stacks, "What every thread and partition is doing")
        unhealthy = {503: {"model": d.Health, "description": "It is not; reasons says why"}}
        add("/health/live", self.live, "Whether it makes progress", responses=unhealthy)
        add("/health/ready", self.ready, "Whether it does its work", responses=unhealthy)
        text = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
        add(
            "/metrics",
            self.metrics,
            "The metrics for Prometheus",
            responses=text,
            response_class=Response,
        )
        return router


def _health(reasons: list[str], response: Response) -> d.Health:
    if reasons:
        response.status_code = 503
    return d.Health(ok=not reasons, reasons=reasons)

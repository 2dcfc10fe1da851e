"""The endpoints that only look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AwareDatetime

from headrace.ops.admin import models as d
from headrace.ops.admin.health import not_live, not_ready
from headrace.ops.admin.history import Events, History  # noqa: TC001 - FastAPI looks them up
from headrace.ops.admin.models import described, unknown
from headrace.ops.admin.redaction import Redaction
from headrace.ops.admin.state import (
    After,
    Hex,
    KeyedState,
    KeyParameter,
    KeysPage,
    Led,
    Limit,
    OnePartition,
    Prefix,
    StaleState,
    StateReads,
    Tasks,
)
from headrace.ops.admin.stores import (
    From,
    KeyInDigits,
    KeyRows,
    OneTask,
    OneWindow,
    RowKey,
    RowLimit,
    RowsPage,
    Stale,
    StoreName,
    StoreReads,
    Stores,
    To,
    TopologyName,
)
from headrace.ops.admin.tap import (
    MEDIA_TYPE,
    USUAL,
    TapBy,
    TapHex,
    TapKey,
    TapLimit,
    TapLine,
    TapPartition,
    TapRate,
    TapReads,
    TapSeconds,
    tap_filter,
)
from headrace.telemetry.metrics import CONTENT_TYPE, metrics_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastapi.params import Depends

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Controller, Process
    from headrace.ops.admin.status import StatusBuilder

    _Responses = dict[int | str, dict[str, Any]]

AfterTime = Annotated[
    AwareDatetime | None, Query(description="Leaves out what was until then; null: nothing.")
]
AfterNumber = Annotated[
    int, Query(ge=0, description="Leaves out what has this number or a lower one.")
]
ChannelName = Annotated[str, Path(description="The channel's name in the configuration.")]

#: Said of an endpoint that answers no single document.
_PLAIN = {"response_class": Response}

_UNHEALTHY: _Responses = {503: {"model": d.Health, "description": "It does not; reasons says why"}}
_LINES: _Responses = {200: {"content": {MEDIA_TYPE: {}}, "model": TapLine}}
_TEXT: _Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A path to read from: the function that answers, and what the document says of it.

    ``statuses`` are refusals that are described everywhere in the same way; ``more`` is for
    FastAPI.
    """

    path: str
    answer: Callable[..., Any]
    summary: str
    statuses: tuple[int, ...] = ()
    responses: _Responses = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


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
    """The endpoints that read. Plain functions run on a pool of threads, and may block."""

    def __init__(
        self,
        controller: Controller,
        process: Process,
        builder: StatusBuilder,
        stores: StoreReads,
        clock: Clock,
    ) -> None:
        self._controller = controller
        self._process = process
        self._builder = builder
        self._clock = clock
        self._state = StateReads(controller)
        self._stores = stores
        self._taps = TapReads(process, lambda: Redaction(controller.config.admin.redact), clock)

    def partitions(self, name: ChannelName) -> d.Partitions:
        """Return the partitions that this process holds, of one channel."""
        return self._builder.partitions(find_channel(self._controller, name))

    def channel(self, name: ChannelName) -> d.ChannelStatus:
        """Return one channel."""
        return self._builder.channel(find_channel(self._controller, name))

    def state(
        self,
        name: ChannelName,
        key: KeyParameter,
        partition: OnePartition = None,
        *,
        is_hex: Hex = False,
        stale: StaleState = False,
        led: Led = 0,
    ) -> KeyedState:
        """Return one key of a channel with state, as committed."""
        channel = find_channel(self._controller, name)
        return self._state.key(
            channel, key, is_hex=is_hex, partition=partition, stale=stale, led=led
        )

    def states(
        self,
        name: ChannelName,
        prefix: Prefix = "",
        limit: Limit = 100,
        after: After = None,
        partition: OnePartition = None,
        *,
        is_hex: Hex = False,
    ) -> KeysPage:
        """Return keys that this process has, a page at a time."""
        channel = find_channel(self._controller, name)
        return self._state.page(
            channel, prefix=prefix, limit=limit, after=after, partition=partition, is_hex=is_hex
        )

    def tasks(self, name: ChannelName) -> Tasks:
        """Return where the state of each partition stands."""
        return self._state.tasks(find_channel(self._controller, name))

    def stores(self, topology: TopologyName) -> Stores:
        """Return the stores of a topology."""
        return self._stores.stores(topology)

    def store_rows(  # noqa: PLR0917 - one for each parameter of the query
        self,
        topology: TopologyName,
        store: StoreName,
        prefix: Prefix = "",
        window: OneWindow = None,
        limit: RowLimit = 100,
        after: After = None,
        partition: OneTask = None,
        *,
        stale: Stale = False,
        led: Led = 0,
    ) -> Response:
        """Return rows of a store, a page at a time."""
        return self._stores.page(
            topology,
            store,
            prefix=prefix,
            window=window,
            limit=limit,
            after=after,
            partition=partition,
            stale=stale,
            led=led,
        )

    def key_rows(  # noqa: PLR0917 - one for each parameter of the query
        self,
        topology: TopologyName,
        store: StoreName,
        key: RowKey,
        since: From = None,
        until: To = None,
        partition: OneTask = None,
        *,
        is_hex: KeyInDigits = False,
        stale: Stale = False,
        led: Led = 0,
    ) -> Response:
        """Return the row of a key, or its windows, as committed."""
        return self._stores.rows(
            topology,
            store,
            key,
            since=since,
            until=until,
            partition=partition,
            is_hex=is_hex,
            stale=stale,
            led=led,
        )

    async def tap(  # noqa: PLR0917 - one for each parameter of the query
        self,
        request: Request,
        name: ChannelName,
        partition: TapPartition = None,
        key: TapKey = None,
        rate: TapRate = 10.0,
        limit: TapLimit = None,
        for_s: TapSeconds = USUAL,
        by: TapBy = "",
        *,
        is_hex: TapHex = False,
    ) -> Response:
        """Return records as they pass. Asks for no thread: it goes on for long, and blocks not."""
        caller = request.scope["caller"]
        return self._taps.open(
            find_channel(self._controller, name),
            tap_filter(partition, key, rate, is_hex=is_hex),
            by=by or f"{caller.proof} from {caller.host}",
            limit=limit,
            for_s=for_s,
            is_head="is_head" in request.scope,
        )

    async def live(self, response: Response) -> d.Health:
        """Return whether the process makes progress. Needs no thread, which might be busy."""
        return _health(not_live(self._process, self._clock), response)

    async def ready(self, response: Response) -> d.Health:
        """Return whether the process does its work."""
        return _health(not_ready(self._controller, self._process), response)

    def history(self, after: AfterTime = None) -> History:
        """Return how the channels did in the last hour, or since a time."""
        return self._builder.history(after)

    async def events(self, after: AfterNumber = 0) -> Events:
        """Return the recent log events."""
        return self._builder.events(after)

    def metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(metrics_text(self._controller.metrics), media_type=CONTENT_TYPE)

    def router(self, bearer: Depends, is_guarded: Callable[[str], bool]) -> APIRouter:
        """Return the endpoints; ``bearer`` goes to those that are guarded, by path."""
        router = APIRouter()
        for each in self._endpoints():
            router.add_api_route(
                each.path,
                each.answer,
                methods=["GET"],
                summary=each.summary,
                responses=described(*each.statuses) | each.responses,
                dependencies=[bearer] if is_guarded(each.path) else None,
                **each.more,
            )
        return router

    def _endpoints(self) -> Iterator[_Endpoint]:
        look, channel = self._builder, "/api/v1/channels/{name}"
        yield _Endpoint("/api/v1/status", look.status, "Everything about the process")
        yield _Endpoint("/api/v1/channels", look.channels, "The channels")
        yield _Endpoint(channel, self.channel, "One channel", (404, 422))
        title = "The partitions of one channel"
        yield _Endpoint(f"{channel}/partitions", self.partitions, title, (404, 422))
        yield _Endpoint(f"{channel}/tasks", self.tasks, "The state of its partitions", (404, 422))
        title = "Keys with their states"
        yield _Endpoint(f"{channel}/state", self.states, title, (404, 422, 503))
        statuses = (307, 404, 409, 421, 422, 503)
        yield _Endpoint(f"{channel}/state/{{key:path}}", self.state, "One key's state", statuses)
        title = "Records as they pass, a line of JSON each"
        yield _Endpoint(f"{channel}/tap", self.tap, title, (404, 409, 422), _LINES, _PLAIN)
        title = "The plans of topologies of streams"
        yield _Endpoint("/api/v1/topologies", look.topologies, title)
        stores = "/api/v1/topologies/{topology}/stores"
        yield _Endpoint(stores, self.stores, "The stores of a topology", (404, 422, 503))
        title, refusals = "Rows of a store", (307, 404, 421, 422, 503)
        store = f"{stores}/{{store}}"
        page = {"response_model": RowsPage}
        yield _Endpoint(store, self.store_rows, title, refusals, more=page)
        title, key = "The rows of a key", {"response_model": KeyRows}
        yield _Endpoint(f"{store}/{{key:path}}", self.key_rows, title, refusals, more=key)
        yield _Endpoint("/api/v1/members", look.members, "The members of each group", (503,))
        yield _Endpoint("/api/v1/history", self.history, "The last hour in numbers", (422,))
        yield _Endpoint("/api/v1/events", self.events, "The recent log events", (422,))
        yield _Endpoint("/api/v1/config", look.config, "The configuration, secrets masked")
        yield _Endpoint(
            "/api/v1/stacks", look.stacks, "The calls that every thread and partition is in"
        )
        yield _Endpoint("/health/live", self.live, "Liveness: it makes progress", (), _UNHEALTHY)
        yield _Endpoint("/health/ready", self.ready, "Readiness: it does its work", (), _UNHEALTHY)
        title = "The metrics for Prometheus"
        yield _Endpoint("/metrics", self.metrics, title, (), _TEXT, _PLAIN)


def _health(reasons: list[str], response: Response) -> d.Health:
    if reasons:
        response.status_code = 503
    return d.Health(ok=not reasons, reasons=reasons)

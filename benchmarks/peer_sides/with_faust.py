"""faust-streaming: an agent that iterates over its stream, on aiokafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import faust
import uvloop

from benchmarks.peer_sides.wire import Meter, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def main() -> None:
    """Read once, in uvloop's loop, as ``faust --loop uvloop`` does."""
    uvloop.install()
    wire = Wire()
    request = next(wire.requests())
    meter = Meter(wire, request.records)
    app = faust.App(
        request.group,
        broker=f"kafka://{request.servers}",
        datadir=request.settings["directory"],
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        topic_disable_leader=True,
        web_enabled=False,
    )
    if request.work == "sum":
        topic = app.topic(request.topic, value_type=bytes, value_serializer="raw")
    else:
        topic = app.topic(request.topic, value_serializer="json")
    worker = faust.Worker(app, loglevel="ERROR", redirect_stdouts=False)

    async def total(stream: AsyncIterator[bytes]) -> None:
        async for value in stream:
            if meter.length(len(value)):
                worker.stop_and_shutdown()

    async def count(stream: AsyncIterator[dict[str, Any]]) -> None:
        async for value in stream:
            if meter.key(value["key"]):
                worker.stop_and_shutdown()

    async def on_assigned(_app: object, assigned: Any, **_: object) -> None:
        if assigned:
            meter.assigned()

    app.agent(topic)(total if request.work == "sum" else count)
    app.on_partitions_assigned.connect(on_assigned)
    worker.execute_from_commandline()


if __name__ == "__main__":
    main()

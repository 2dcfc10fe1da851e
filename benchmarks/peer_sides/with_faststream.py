"""FastStream on confluent-kafka: a subscriber to batches, which are acknowledged first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import uvloop
from faststream import FastStream
from faststream.confluent import KafkaBroker

from benchmarks.peer_sides.wire import Meter, Request, Wire

if TYPE_CHECKING:
    from faststream.confluent.message import KafkaMessage


async def _as_bytes(message: KafkaMessage) -> Any:
    return message.body


async def _as_objects(message: KafkaMessage) -> Any:
    return list(map(orjson.loads, message.body))


async def read(wire: Wire, request: Request) -> None:
    """Read once."""
    meter = Meter(wire, request.records)
    broker = KafkaBroker(
        request.servers,
        config=request.settings["properties"],
        apply_types=False,
        logger=None,
        allow_auto_create_topics=False,
    )
    app = FastStream(broker, logger=None)

    async def total(values: list[bytes]) -> None:
        if meter.lengths(len(values), sum(map(len, values))):
            app.exit()

    async def count(values: list[dict[str, Any]]) -> None:
        if meter.each_key([value["key"] for value in values], len(values)):
            app.exit()

    def on_assign(_consumer: object, partitions: list[object]) -> None:
        if partitions:
            meter.assigned()

    broker.subscriber(
        request.topic,
        group_id=request.group,
        batch=True,
        max_records=1000,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1000,
        on_assign=on_assign,
        decoder=_as_bytes if request.work == "sum" else _as_objects,
        check_crcs=False,
    )(total if request.work == "sum" else count)
    await app.run()


def main() -> None:
    """Read once, in uvloop's loop, which FastStream's own command takes."""
    wire = Wire()
    uvloop.run(read(wire, next(wire.requests())))


if __name__ == "__main__":
    main()

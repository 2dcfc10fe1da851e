"""aiokafka: ``getmany`` of a consumer in a group, which commits every second by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import uvloop
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

from benchmarks.peer_sides.wire import Meter, Request, Wire

if TYPE_CHECKING:
    from collections.abc import Callable


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        if assigned:
            self._meter.assigned()


async def read(wire: Wire, request: Request) -> None:
    """Read once."""
    meter = Meter(wire, request.records)
    take: Callable[[list[Any]], bool] = _sum(meter) if request.work == "sum" else _count(meter)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=request.servers,
        group_id=request.group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1000,
        check_crcs=False,
    )
    consumer.subscribe([request.topic], listener=_Listener(meter))
    await consumer.start()
    try:
        while True:
            batches = await consumer.getmany(timeout_ms=1000)
            for records in batches.values():
                if take(records):
                    return
    finally:
        await consumer.stop()


def _sum(meter: Meter) -> Callable[[list[Any]], bool]:
    def take(records: list[Any]) -> bool:
        return meter.lengths(len(records), sum(len(record.value) for record in records))

    return take


def _count(meter: Meter) -> Callable[[list[Any]], bool]:
    loads = orjson.loads

    def take(records: list[Any]) -> bool:
        return meter.each_key([loads(each.value)["key"] for each in records], len(records))

    return take


def main() -> None:
    """Read once, in uvloop's loop."""
    wire = Wire()
    uvloop.run(read(wire, next(wire.requests())))


if __name__ == "__main__":
    main()

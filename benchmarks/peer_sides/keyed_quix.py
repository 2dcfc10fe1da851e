"""Quix Streams with state: counts records by key, exactly once."""

from __future__ import annotations

from typing import Any

from quixstreams import Application

from benchmarks.peer_sides.wire import Meter, Wire
from benchmarks.peer_sides.with_quix import watch_assignment


def main() -> None:
    """Read once."""
    wire = Wire()
    request = next(wire.requests())
    meter = Meter(wire, request.records)
    app = Application(
        request.servers,
        consumer_group=request.group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        consumer_extra_config=request.settings["properties"],
        state_dir=request.settings["directory"],
        loglevel="ERROR",
    )

    def count(value: bytes, state: Any) -> int:
        total: int = state.get("n", 0) + 1
        state.set("n", total)
        if meter.lengths(1, len(value)):
            app.stop()
        return total

    topic = app.topic(request.topic, key_deserializer="bytes", value_deserializer="bytes")
    output = app.topic(request.settings["output"], key_serializer="bytes", value_serializer="json")
    app.dataframe(topic).apply(count, stateful=True).to_topic(output)
    watch_assignment(app, meter)
    app.run()


if __name__ == "__main__":
    main()

"""Quix Streams with windows: counts records by key and window, exactly once."""

from __future__ import annotations

from typing import Any

from quixstreams import Application

from benchmarks.peer_sides.wire import Meter, Wire
from benchmarks.peer_sides.with_quix import watch_assignment

#: Milliseconds, as in ``benchmarks.streams.topics``.
_MINUTE, _HOPPING, _GRACE = 60_000, 300_000, 30_000


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

    def read(value: bytes) -> None:
        if meter.length(len(value)):
            app.stop()

    def said(found: dict[str, int]) -> dict[str, int]:
        return {"begin": found["start"], "n": found["value"]}

    topic = app.topic(request.topic, key_deserializer="bytes", value_deserializer="bytes")
    output = app.topic(request.settings["output"], key_serializer="bytes", value_serializer="json")
    windows: Any = app.dataframe(topic).update(read)
    if request.settings["kind"] == "hopping":
        windows = windows.hopping_window(_HOPPING, _MINUTE, grace_ms=_GRACE)
    else:
        windows = windows.tumbling_window(_MINUTE, grace_ms=_GRACE)
    windows.count().current().apply(said).to_topic(output)
    watch_assignment(app, meter)
    app.run()


if __name__ == "__main__":
    main()

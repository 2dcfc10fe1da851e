"""Quix Streams: a function on each row of a streaming data frame."""

from __future__ import annotations

from typing import Any

from quixstreams import Application

from benchmarks.peer_sides.wire import Meter, Wire


def main() -> None:
    """Read once."""
    wire = Wire()
    request = next(wire.requests())
    meter = Meter(wire, request.records)
    app = Application(
        request.servers,
        consumer_group=request.group,
        auto_offset_reset="earliest",
        commit_interval=1.0,
        consumer_extra_config=request.settings["properties"],
        state_dir=request.settings["directory"],
        auto_create_topics=False,
        loglevel="ERROR",
    )

    def total(value: bytes) -> None:
        if meter.length(len(value)):
            app.stop()

    def count(value: dict[str, Any]) -> None:
        if meter.key(value["key"]):
            app.stop()

    kind = "bytes" if request.work == "sum" else "json"
    frame = app.dataframe(app.topic(request.topic, value_deserializer=kind))
    frame.update(total if request.work == "sum" else count)
    watch_assignment(app, meter)
    app.run()


def watch_assignment(app: Application, meter: Meter) -> None:
    """Note the assignment: the library has no callback for it of its user's own."""
    assign = app._on_assign  # noqa: SLF001

    def watched(consumer: Any, partitions: list[Any]) -> None:
        meter.assigned()
        assign(consumer, partitions)

    app._on_assign = watched  # noqa: SLF001


if __name__ == "__main__":
    main()

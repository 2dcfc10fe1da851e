"""librdkafka properties: what Headrace sets itself, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from headrace.logs import Repeats

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger("headrace.kafka.client")

#: A client property map as librdkafka takes it.
Properties = dict[str, Any]

#: The part of a channel's memory budget that librdkafka may fill with prefetched records.
PREFETCH_SHARE = 0.25

#: One property, by both its names.
_IN_FLIGHT, _IN_FLIGHT_TOO = "max.in.flight.requests.per.connection", "max.in.flight"

_KIB = 1024
_MIB = 1024 * _KIB


def base(properties: Mapping[str, Any]) -> Properties:
    """Return what every client starts from: the user's properties, and its log in ours."""
    bridge = _Bridge(Repeats())
    return {**properties, "logger": bridge, "log_level": 4, "error_cb": bridge.report}


def silent(properties: Mapping[str, Any]) -> Properties:
    """Return what a client starts from that is not polled all the time.

    What it has to say would queue up until the next poll, at some 40 lines a second without a
    broker. The committer's client is polled at every interval and says the same.
    """
    return {**properties, "log_level": 0}


def consumer(properties: Mapping[str, Any], group: str) -> Properties:
    """Return the properties of a consumer that never subscribes and never commits by itself.

    ``properties`` are those of ``base`` or ``silent``.
    """
    return {
        **properties,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def producer(properties: Mapping[str, Any]) -> Properties:
    """Return the properties of a producer, whatever ``properties`` say of requests in flight.

    One at a time on each connection. A broker takes any sequence as the first one of a producer
    that it knows nothing of. So where it refuses a partition's first request, because it has not
    heard yet that it leads the partition, and then takes the next one, that was in flight already,
    librdkafka takes both for stored: the records of the first are lost, and reported as delivered.
    A broker answers the requests of a connection one after the other in any case.
    """
    given = {name: value for name, value in properties.items() if name != _IN_FLIGHT_TOO}
    return {**given, _IN_FLIGHT: 1}


def source(properties: Mapping[str, Any], group: str, budget: int) -> Properties:
    """Return the properties of a fetching consumer with ``budget`` bytes for prefetched records.

    ``fetch.queue.backoff.ms``: when the prefetch queue is full, librdkafka waits a second before
    it fetches again; 10 ms keeps a fast reader fed (0.22 against 2.1 million records a second).
    ``fetch.wait.max.ms``: a broker that has nothing new keeps its answer back for so long, and the
    client asks it for nothing else meanwhile, so that a partition just assigned or resumed waits.
    librdkafka's 500 ms made a take-over 0.4 s longer; 100 ms cost ten small requests a second.
    ``auto.offset.reset=error``: out of range is reported, and the channel's policy decides.
    """
    queued = max(_MIB, int(budget))
    return {
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": queued // _KIB,
        "fetch.message.max.bytes": _MIB,
        "fetch.max.bytes": max(_MIB, min(50 * _MIB, queued // 2)),
        **consumer(silent(properties), group),
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


class _Bridge:
    """Takes one client's log lines and errors into ours. Called on the thread that polls it."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats

    def log(self, level: int, message: str, *args: object) -> None:
        """Write one line; librdkafka's text is the ``detail`` of a stable event."""
        repeated = self._repeats.admit((level, args[:1]))
        if repeated is not None:
            detail = message % args if args else message
            log.log(level, "kafka_client", detail=detail, repeated=repeated)

    def report(self, error: Any) -> None:
        """Write an error that concerns the client as a whole."""
        repeated = self._repeats.admit(error.code())
        if repeated is not None:
            log.warning("kafka_client_error", error=error.str(), repeated=repeated)

"""The topology of the demo: what the daemons run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.streams import (
    Field,
    Row,
    Topology,
    count,
    key,
    least,
    total,
    tumbling,
    window_start,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sinks.micro_batch import MicroBatch

FLIGHTS, PLANES, WEATHER, OBSERVED = "flights", "planes", "weather", "observed"


class Flight(Row):
    """A departure, by tail number; ``at`` in milliseconds, the delay in minutes."""

    at: Field[int]
    origin: Field[str]
    delay: Field[int | None]


class Plane(Row):
    """What is known of a plane, by tail number."""

    seats: Field[int]
    year: Field[int | None]


class Flown(Row):
    """A flight with what is known of its plane."""

    origin: Field[str]
    delay: Field[int | None]
    seats: Field[int | None]
    built: Field[int | None]


class Hour(Row):
    """The flights of an airport in an hour, which begins at ``begin``."""

    origin: Field[str]
    begin: Field[int]
    flights: Field[int]
    seats: Field[int | None]
    delay: Field[int | None]
    oldest: Field[int | None]


class Weather(Row):
    """What was observed at an airport at the full hour, by airport."""

    at: Field[int]
    temp: Field[float | None]
    wind: Field[float | None]
    visib: Field[float | None]


class ObservedHour(Hour):
    """An hour's flights, and the weather at its beginning."""

    temp: Field[float | None]
    wind: Field[float | None]
    visib: Field[float | None]


#: The columns of the tables, in order.
COLUMNS = tuple(Hour.__fields__)
OBSERVED_COLUMNS = tuple(ObservedHour.__fields__)

#: The latest minute of an hour: weather of the full hour is that much earlier at most.
REACH = "59m"

#: What is decoded of the rows for the table of hours with their weather.
SCHEMA = (
    "origin STRING, begin BIGINT, flights BIGINT, seats BIGINT, delay BIGINT, oldest BIGINT, "
    "temp DOUBLE, wind DOUBLE, visib DOUBLE"
)


def hours(grace: str, join_grace: str) -> Topology:
    """Return the topology: flights with their planes, by hour and airport, with the weather."""
    app = Topology()
    flown = app.stream(FLIGHTS, Flight, time=Flight.at).lookup(
        app.table(PLANES, Plane, name="known-planes"),
        Flown,
        name="flown",
        origin=Flight.origin,
        delay=Flight.delay,
        seats=Plane.seats,
        built=Plane.year,
    )
    by_origin = flown.group_by(Flown.origin, name="hours").window(tumbling("1h", grace=grace))
    table = by_origin.agg(
        Hour,
        origin=key,
        begin=window_start,
        flights=count(),
        seats=total(Flown.seats),
        delay=total(Flown.delay),
        oldest=least(Flown.built),
    )
    observed = table.final().join(
        app.stream(WEATHER, Weather, time=Weather.at),
        ObservedHour,
        name="observed",
        kind="left",
        before=REACH,
        after="0s",
        grace=join_grace,
        origin=Hour.origin,
        begin=Hour.begin,
        flights=Hour.flights,
        seats=Hour.seats,
        delay=Hour.delay,
        oldest=Hour.oldest,
        temp=Weather.temp,
        wind=Weather.wind,
        visib=Weather.visib,
    )
    observed.to(OBSERVED)
    return app


def stored(table: pa.Table, batch: MicroBatch) -> pa.Table:  # noqa: ARG001 - the contract's second argument
    """Return the rows as their table has them: the reducer of the channel that writes it."""
    return table.select(OBSERVED_COLUMNS)

"""A topology under attack: what its members run, what has to come of it, and what came.

Numbers in an order from 0 on are orders where they are even, and payments of the order before where
they are odd; of one order in ten there is none. The topology has three parts, with two changes of
key: it tells orders and payments apart, joins them, and counts what came of orders in windows.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.keyed import committed
from benchmarks.chaos.world import TOPIC
from headrace.streams import (
    Field,
    Row,
    Topology,
    count,
    key,
    tumbling,
    window_start,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAIRS, WINDOWS = "pairs", "windows"

#: The channels with state that it becomes, as topology and group ``chaos``.
NAME = "chaos"
STATEFUL = (f"{NAME}.orders", f"{NAME}.buckets")

#: When number 0 is, and how far numbers are apart, in milliseconds.
BEGIN, STEP = 1_600_000_000_000, 5

#: How many numbers may be produced that follow one of which nothing came yet, and in milliseconds:
#: what is later than that cannot be among what is processed.
AHEAD = 2_000
_SPREAD = AHEAD * STEP

_WITHIN = 1_000

#: The windows get what is told alone when the join's grace is over.
_JOIN_GRACE = _SPREAD
_GRACE = 2 * _SPREAD + _JOIN_GRACE

_BUCKETS, _SIZE = 20, 1_000

#: Orders without a payment: those with this remainder by ten.
_UNPAID = 3

#: The first numbers of those that end joins, of which nothing is counted, and of those that end
#: windows after that; and how many there are: each partition has some.
CLOSING_JOINS, CLOSING_WINDOWS, CLOSING = 1_000_000_000, 1_500_000_000, 256


class Sent(Row):
    """A number as it is produced."""

    text: Field[str]


class Number(Row):
    """A number."""

    n: Field[int]


class Order(Row):
    """An order."""

    pair: Field[int]


class Payment(Row):
    """A payment of an order."""

    pair: Field[int]


class Told(Row):
    """An order with its payment, null where it is alone."""

    pair: Field[int]
    paid: Field[int | None]


class Window(Row):
    """How many orders of a bucket were told in a window."""

    bucket: Field[int]
    begin: Field[int]
    n: Field[int]


def topology() -> Topology:
    """Return the topology."""
    app = Topology()
    number = Sent.text.cast(int)
    sent = app.stream(TOPIC, Sent, codec="string", time=number * STEP + BEGIN)
    numbers = sent.select(Number, n=number)
    orders = numbers.filter(Number.n % 2 == 0)
    payments = numbers.filter((Number.n % 2 == 1) & (Number.n // 2 % 10 != _UNPAID))
    told = (
        orders.select(Order, pair=Number.n // 2)
        .key_by(Order.pair, name="orders")
        .join(
            payments.select(Payment, pair=Number.n // 2).key_by(Payment.pair, name="payments"),
            Told,
            name="told",
            kind="left",
            within=f"{_WITHIN}ms",
            grace=f"{_JOIN_GRACE}ms",
            pair=Order.pair,
            paid=Payment.pair,
        )
    )
    told.to(PAIRS)
    closes_joins = (Told.pair >= CLOSING_JOINS // 2) & (Told.pair < CLOSING_WINDOWS // 2)
    buckets = told.filter(~closes_joins).group_by(Told.pair % _BUCKETS, name="buckets")
    windows = buckets.window(tumbling(f"{_SIZE}ms", grace=f"{_GRACE}ms"))
    windows.agg(Window, bucket=key, begin=window_start, n=count()).final().to(WINDOWS)
    return app


def section() -> dict[str, Any]:
    """Return the section of the configuration that has the topology."""
    return {
        NAME: {
            "code": "benchmarks.chaos.topology:topology",
            "group": NAME,
            "channel": {
                "batch": {"max_records": 200, "linger": "20ms"},
                "retry": {"backoff": "100ms", "max_backoff": "1s"},
                "processor": {"state": {"checkpoint": "1s"}},
            },
        }
    }


def is_paid(pair: int, numbers: int) -> bool:
    """Return whether an order has a payment among so many numbers."""
    return pair % 10 != _UNPAID and 2 * pair + 1 < numbers


def wanted_pairs(numbers: int) -> Counter[tuple[int, int | None]]:
    """Return what has to be told of the orders among so many numbers, each once."""
    orders = range((numbers + 1) // 2)
    return Counter((pair, pair if is_paid(pair, numbers) else None) for pair in orders)


def wanted_windows(numbers: int) -> Counter[tuple[int, int, int]]:
    """Return what has to be told of the windows of so many numbers, each once."""
    counts: Counter[tuple[int, int]] = Counter()
    for pair, paid in wanted_pairs(numbers):
        time = BEGIN + (2 * pair + (paid is not None)) * STEP
        counts[pair % _BUCKETS, time // _SIZE * _SIZE] += 1
    return Counter((bucket, begin, n) for (bucket, begin), n in counts.items())


@dataclass(frozen=True, slots=True)
class Conserved:
    """What came of the numbers, and what is wrong with it.

    ``lost`` orders were not told, and ``again`` counts what was told of an order beyond the first.
    ``alone`` were told without the partner that they have, ``strange`` in another way. ``counted``
    is the sum of the windows' counts; ``wrong_windows`` are missing, have another count, or were
    told again.
    """

    told: int
    lost: int
    again: int
    alone: int
    strange: int
    counted: int
    wrong_windows: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong, and each order is counted once."""
        wrong = (self.lost, self.again, self.alone, self.strange, self.wrong_windows)
        return not any(wrong) and self.counted == self.told


def read_pairs(servers: str) -> Counter[tuple[int, int | None]]:
    """Return what was told of orders, but for those that end joins. Blocks."""
    found = (each for each in _rows(servers, PAIRS) if each["pair"] < CLOSING_JOINS // 2)
    return Counter((each["pair"], each["paid"]) for each in found)


def read_windows(servers: str) -> Counter[tuple[int, int, int]]:
    """Return the windows that were told. Blocks."""
    rows = _rows(servers, WINDOWS)
    return Counter((each["bucket"], each["begin"], each["n"]) for each in rows)


def _rows(servers: str, topic: str) -> Iterable[Mapping[str, Any]]:
    return (json.loads(each.value() or b"") for each in committed(servers, topic))


def conservation(
    numbers: int,
    pairs: Counter[tuple[int, int | None]],
    windows: Counter[tuple[int, int, int]],
) -> Conserved:
    """Compare what was told with what has to be of so many numbers."""
    wanted = dict(wanted_pairs(numbers))
    told = Counter(pair for pair, _ in pairs.elements())
    right = wanted_windows(numbers)
    return Conserved(
        told=pairs.total(),
        lost=sum((pair not in told) for pair, _ in wanted),
        again=sum(n - 1 for n in told.values()),
        alone=sum(paid is None and is_paid(pair, numbers) for pair, paid in pairs),
        strange=sum(
            each not in wanted and not (each[1] is None and is_paid(each[0], numbers))
            for each in pairs
        ),
        counted=sum(n * times for (_, _, n), times in windows.items()),
        wrong_windows=((windows - right) + (right - windows)).total(),
    )

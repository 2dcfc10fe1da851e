"""Programs in the typed API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.keyed.api import Fired, at_event
from headrace.extensions.streams.aggregates import (
    approx_distinct,
    approx_quantile,
    approx_quantiles,
    count,
    mean,
    top,
    total,
)
from headrace.extensions.streams.expressions import key, window_end, window_start
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.keyed.api import Event, Timer


class Line(Row):
    text: Field[str]


class Word(Row):
    word: Field[str]


class Counted(Row):
    word: Field[str]
    n: Field[int]


def word_count() -> Topology:
    """Count words."""
    app = Topology()
    words = app.stream("lines", Line).explode(Word, word=Line.text.lower().split(" "))
    counted = words.group_by(Word.word, name="words").agg(Counted, word=key, n=count())
    counted.updates().to("word-counts")
    return app


class Click(Row):
    user: Field[str]
    url: Field[str]


class Visit(Row):
    user: Field[str]
    begin: Field[int]
    end: Field[int]
    clicks: Field[int]


def sessions() -> Topology:
    """Count the clicks of each visit of a user."""
    app = Topology()
    by_user = app.stream("clicks", Click).group_by(Click.user, name="visits")
    visits = by_user.window(session("30m", grace="5m"))
    visits.agg(Visit, user=key, begin=window_start, end=window_end, clicks=count()).final().to(
        "visits"
    )
    return app


class Order(Row):
    id: Field[str]
    amount: Field[float]


class Payment(Row):
    order: Field[str]
    paid: Field[float]


class Settled(Row):
    order: Field[str]
    amount: Field[float | None]
    paid: Field[float | None]


def settle() -> Topology:
    """Join orders with payments within ten minutes; one without the other comes out too."""
    app = Topology()
    orders = app.stream("orders", Order).key_by(Order.id, name="orders-by-id")
    payments = app.stream("payments", Payment).key_by(Payment.order, name="payments-by-order")
    orders.join(
        payments,
        Settled,
        within="10m",
        grace="1m",
        kind="outer",
        name="settled",
        order=key,
        amount=Order.amount,
        paid=Payment.paid,
    ).to("settled")
    return app


class User(Row):
    country: Field[str]
    premium: Field[bool]


class Enriched(Row):
    user: Field[str]
    url: Field[str]
    country: Field[str | None]


def enrich() -> Topology:
    """Add what a table knows of the user to each click."""
    app = Topology()
    users = app.table("users", User, name="users")
    clicks = app.stream("clicks", Click).key_by(Click.user, name="clicks-by-user")
    clicks.lookup(
        users, Enriched, kind="left", name="enriched", user=key, url=Click.url, country=User.country
    ).to("enriched")
    return app


class Pages(Row):
    url: Field[str]
    begin: Field[int]
    n: Field[int]


class Top(Row):
    begin: Field[int]
    pages: Field[list[str]]


def top_pages() -> Topology:
    """Find the ten most clicked pages of each five minutes, once the window is over."""
    app = Topology()
    by_url = app.stream("clicks", Click).group_by(Click.url, name="pages")
    windowed = by_url.window(hopping("5m", every="1m", grace="30s"))
    pages = windowed.agg(Pages, url=key, begin=window_start, n=count())
    by_begin = pages.final().group_by(Pages.begin, name="top")
    by_begin.agg(Top, begin=key, pages=top(10, by=Pages.n, of=Pages.url)).updates().to("top-pages")
    return app


class Sale(Row):
    buyer: Field[str]
    cents: Field[int]


class Buyer(Row):
    name: Field[str]


class Sold(Row):
    cents: Field[int]
    who: Field[str]


def sold() -> Topology:
    """Join sales and buyers, whom a field of a sale names."""
    app = Topology()
    buyers = app.table("buyers", Buyer, name="people")
    sales = app.table("sales", Sale, name="sales")
    sales.join(buyers, Sold, name="sold", on=Sale.buyer, cents=Sale.cents, who=Buyer.name).to(
        "sold"
    )
    return app


class Reach(Row):
    url: Field[str]
    users: Field[int]
    middle: Field[float | None]
    high: Field[list[float]]


def reach() -> Topology:
    """Count users of pages approximately, with quantiles of a length."""
    app = Topology()
    by_url = app.stream("clicks", Click).group_by(Click.url, name="reach")
    by_url.agg(
        Reach,
        url=key,
        users=approx_distinct(Click.user),
        middle=approx_quantile(Click.url.length(), 0.5),
        high=approx_quantiles(Click.url.length(), [0.9, 0.99]),
    ).to("reach")
    return app


class Parcel(Row):
    depot: Field[str]
    grams: Field[int]


class Depot(Row):
    depot: Field[str]
    parcels: Field[int]
    grams: Field[int | None]
    mean: Field[float | None]


def depots() -> Topology:
    """Count the parcels that are in each depot now."""
    app = Topology()
    parcels = app.table("parcels", Parcel, name="parcels")
    grouped = parcels.group_by(Parcel.depot, name="depots")
    grouped.agg(
        Depot,
        depot=Parcel.depot,
        parcels=count(),
        grams=total(Parcel.grams),
        mean=mean(Parcel.grams),
    ).to("depots")
    return app


class Quiet(Row):
    user: Field[str]
    clicks: Field[int]


def tell_quiet(
    user: str, state: int | None, facts: list[Event[Click] | Fired], now: int
) -> tuple[int | None, Sequence[Quiet], Mapping[str, Timer]]:
    """Tell a user's clicks once there was none for a minute."""
    (fact,) = facts
    if isinstance(fact, Fired):
        return None, [Quiet(user=user, clicks=state or 0)], {}
    assert fact.value.url <= "~"
    return (state or 0) + 1, [], {"quiet": at_event(fact.ts + 60_000)}


def quiet_users() -> Topology:
    """Find users who went."""
    app = Topology()
    clicks = app.stream("clicks", Click).key_by(Click.user, name="users")
    clicks.reduce(tell_quiet, name="quiet", rows=Quiet).filter(Quiet.clicks > 1).to("quiet")
    return app


def minutes_of_pages() -> Topology:
    """Count the clicks of pages in a store of the same name as that of ``top_pages``."""
    app = Topology()
    by_url = app.stream("clicks", Click).group_by(Click.url, name="pages")
    windowed = by_url.window(hopping("2m", every="1m", grace="30s"))
    windowed.agg(Pages, url=key, begin=window_start, n=count()).final().to("minutes")
    return app


class Seen(Row):
    user: Field[str]
    clicks: Field[int]


def count_clicks(
    user: str, state: int | None, facts: Sequence[Event[Click] | Fired], now: int
) -> tuple[int, list[Seen], Mapping[str, Timer]]:
    """Count the clicks of a user, of a keyed channel or of a topology."""
    del now
    clicks = (state or 0) + len(facts)
    return clicks, [Seen(user=user, clicks=clicks)], {}


def counted_clicks() -> Topology:
    """Count the clicks of users, who are the records' keys."""
    app = Topology()
    app.stream("clicks", Click).reduce(count_clicks, name="counts", rows=Seen).to("counts")
    return app


def clicks_by_user() -> Topology:
    """Count the clicks of users, by whom records are written again."""
    app = Topology()
    clicks = app.stream("clicks", Click, time=Click.user.cast(int)).key_by(Click.user, name="users")
    clicks.reduce(tell_quiet, name="quiet", rows=Quiet).to("quiet")
    return app

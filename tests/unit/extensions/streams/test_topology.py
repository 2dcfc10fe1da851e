from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import ConfigError
from headrace.extensions.streams.aggregates import (
    collect,
    count,
    fold,
    last,
    least,
    mean,
    top,
    total,
)
from headrace.extensions.streams.expressions import key, time, window_start
from headrace.extensions.streams.rows import Field, Row, field
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, join_windows, tumbling
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Callable


class Order(Row):
    id: Field[str]
    customer: Field[str]
    amount: Field[float]
    count: Field[int | None]
    tags: Field[list[str]]
    note: Field[str] = field(default="none")


class Payment(Row):
    order: Field[str]
    paid: Field[float]


class Sum(Row):
    id: Field[str]
    n: Field[int]


class Tag(Row):
    tag: Field[str]
    customer: Field[str | None]


class Joined(Row):
    id: Field[str]
    paid: Field[float | None]


class Data(Row):
    data: Field[bytes]


def orders(app: Topology) -> Any:
    """Return a stream of orders; what is called on it is not checked by types."""
    return app.stream("orders", Order)


def payments(app: Topology) -> Any:
    """Return a stream of payments."""
    return app.stream("payments", Payment)


def refuse(build: Callable[[Topology], object]) -> str:
    """Return the text of the error with which a topology is refused."""

    def plan() -> None:
        app = Topology()
        build(app)
        app.plan()

    with pytest.raises(ConfigError) as caught:
        plan()
    return str(caught.value)


#: Classes for expressions that a type checker refuses as well.
order: Any = Order
payment: Any = Payment


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda app: orders(app).filter(order.id > 10),
            "filter of Order: Order.id > 10: str and int are two types; cast one of them",
        ),
        (
            lambda app: orders(app).filter(payment.paid > 1.0),
            "filter of Order: Payment.paid is no field of the rows that come in, which are Order",
        ),
        (
            lambda app: orders(app).filter(order.id),
            "filter of Order: Order.id is str, which is no condition",
        ),
        (
            lambda app: orders(app).filter(key == 1),
            "filter of Order: key == 1: str and int are two types; cast one of them",
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id),
            "select of Sum: field n of Sum is missing; give n=...",
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id, n=order.count),
            (
                "select of Sum: field n of Sum is int and gets int | None; give .or_else(...), "
                "or declare the field with | None"
            ),
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id, n=order.amount),
            (
                "select of Sum: field n of Sum is int and gets float; cast the value, or declare "
                "the field so"
            ),
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id, n=1, m=2),
            "select of Sum: Sum has no field 'm'; its fields: id, n",
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id.lower() + 1, n=1),
            (
                "select of Sum: field id: Order.id.lower() + 1: str and int are two types; cast "
                "one of them"
            ),
        ),
        (
            lambda app: orders(app).select(Sum, id=order.id, n=window_start),
            "select of Sum: field n: window_start: there is none without .window(...)",
        ),
        (
            lambda app: orders(app).explode(Tag, tag=order.id),
            "explode of Tag: one field has to get a list of its type, and none does",
        ),
        (
            lambda app: orders(app).explode(Tag, tag=order.tags, customer=order.tags),
            "explode of Tag: one field has to get a list of its type, and tag and customer do",
        ),
        (
            lambda app: orders(app).group_by(order.amount, name="x"),
            (
                "group_by 'x': Order.amount is float, which is no key; keys are str, int, bool, "
                "or bytes alone"
            ),
        ),
        (
            lambda app: orders(app).group_by(name="x"),
            "group_by 'x': give an expression, as in Order.id",
        ),
        (
            lambda app: orders(app).key_by(order.id, name="my orders"),
            (
                "key_by 'my orders': 'my orders' is no name; state and topics are called by it, "
                "so take letters, digits, - and _, 100 at most"
            ),
        ),
        (
            lambda app: (
                orders(app).group_by(order.customer, name="x").agg(Sum, id=order.id, n=count())
            ),
            (
                "agg of 'x': field id: Order.id has a value in each row of the group; aggregate "
                "it, as in last(Order.id), or group by it as well"
            ),
        ),
        (
            lambda app: orders(app).group_by(order.id, name="x").agg(Sum, id=key, n=time),
            "agg of 'x': field n: each row has a time; aggregate it, as in most(time)",
        ),
        (
            lambda app: (
                orders(app).group_by(order.id, name="x").agg(Sum, id=key, n=total(order.id))
            ),
            (
                "agg of 'x': field n: total(Order.id): str is not added up; that is for Decimal, "
                "float, int"
            ),
        ),
        (
            lambda app: (
                orders(app).group_by(order.id, name="x").agg(Sum, id=key, n=total(order.count))
            ),
            (
                "agg of 'x': field n of Sum is int and gets int | None; give .or_else(...), or "
                "declare the field with | None"
            ),
        ),
        (
            lambda app: (
                orders(app).group_by(order.id, name="x").agg(Sum, id=key, n=mean(payment.paid))
            ),
            (
                "agg of 'x': field n: mean: Payment.paid is no field of the rows that come in, "
                "which are Order"
            ),
        ),
        (
            lambda app: (
                orders(app)
                .group_by(order.id, name="x")
                .window(hopping("5m", "1m"))
                .agg(Sum, id=key, n=fold(0, lambda n, row: n + 1, rows=Order))
            ),
            "agg of 'x': field n: fold(): these windows are made of parts; give merge=",
        ),
        (
            lambda app: (
                orders(app).group_by(order.id, order.customer, name="x").agg(Sum, id=key, n=count())
            ),
            "agg of 'x': field id: key: the key has 2 parts; name one as it was grouped by",
        ),
        (
            lambda app: orders(app).group_by(order.id, name="x").window(join_windows(before="1m")),
            (
                "window of 'x': JoinWindows(before=60000, after=0, grace=0) are no windows; take "
                "tumbling, hopping, sliding or session"
            ),
        ),
        (
            lambda app: (
                orders(app).group_by(order.id, name="x").agg(Sum, id=key, n=count()).final()
            ),
            (
                "final of Sum: the table has no windows, so no row of it is the last; take "
                "updates() or each(), or group with .window(...)"
            ),
        ),
        (
            lambda app: orders(app).join(
                payments(app), Joined, name="j", id=key, paid=payment.paid
            ),
            "join 'j': give within=\"10m\", or before= and after=",
        ),
        (
            lambda app: (
                orders(app)
                .key_by(order.count, name="c")
                .join(payments(app), Joined, name="j", within="1m", id="", paid=payment.paid)
            ),
            (
                "join 'j': Order has the key int and Payment str, so that no key of one is that "
                "of the other; key_by both alike"
            ),
        ),
        (
            lambda app: orders(app).join(orders(app), Joined, name="j", within="1m", id=key),
            (
                "join 'j': both sides are Order, so a field says not which one is meant; select "
                "one side into a row of another class"
            ),
        ),
        (
            lambda app: orders(app).join(
                payments(Topology()), Joined, name="j", within="1m", id=key, paid=payment.paid
            ),
            "join 'j': both sides have to be of one Topology()",
        ),
        (
            lambda app: orders(app).lookup(
                app.table("p", Payment, name="p"), Joined, name="j", on=order.id, id=key
            ),
            (
                "lookup 'j': on= is for a shared_table; key_by the stream, so that rows and "
                "table are in the same partition, and leave on= out"
            ),
        ),
        (
            lambda app: app.stream("data", Data),
            (
                "stream 'data': the rows: Data.data has bytes, which JSON does not; take a row "
                'of one field of bytes and codec="bytes", or text'
            ),
        ),
        (lambda app: app.stream("a b", Order), "stream 'a b': 'a b' is no name of a topic"),
        (
            lambda app: app.stream("a", Order, time=order.id),
            "stream 'a': time=Order.id is str; give int or datetime",
        ),
        (lambda app: app.stream("a", Order).map(3, Order), "map to Order: 3 is no function"),
        (
            lambda app: orders(app).merge(payments(app)),
            (
                "merge of Order: Order and Payment are two rows, and one stream has one; turn one "
                "into the other first"
            ),
        ),
    ],
)
def test_an_operator_that_does_not_fit_is_refused_where_it_stands(
    build: Callable[[Topology], object], text: str
) -> None:
    """The error names the operator, the value and the next step."""
    assert refuse(build) == text


def grouped(app: Topology, name: str, column: Any = Order.id) -> Any:
    """Return a table of counts."""
    return orders(app).group_by(column, name=name).agg(Sum, id=key, n=count())


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda app: None, "the topology is empty; begin with app.stream(topic, rows)"),
        (
            lambda app: orders(app).filter(Order.amount > 1),
            "filter of Order: nothing comes of it; end it with .to(topic), or leave it out",
        ),
        (
            lambda app: (grouped(app, "x"), grouped(app, "x", Order.customer)),
            (
                "key_by 'x': the name is that of aggregate 'x' as well, and state and topics are "
                "called by it; take another\n"
                "aggregate 'x': the name is that of aggregate 'x' as well, and state and topics "
                "are called by it; take another"
            ),
        ),
        (
            lambda app: orders(app).filter(Order.amount > 1).to("orders"),
            (
                "to 'orders': the topology reads the topic as well, so records would go round; "
                "write to another topic, or divide the topology in two"
            ),
        ),
        (
            lambda app: grouped(app, "x").to("topology.x.state"),
            "topic 'topology.x.state' is one that the topology keeps for itself; take another",
        ),
        (
            lambda app: (
                orders(app).key_by(Order.count, name="x").to("a"),
                app.stream("topology.x.by-key", Order).to("b"),
            ),
            "topic 'topology.x.by-key' is one that the topology keeps for itself; take another",
        ),
        (
            lambda app: (
                orders(app).to("a"),
                app.stream("orders", Order, time=Order.count.or_else(0)).to("b"),
            ),
            (
                "stream: topic 'orders' is read with another codec or time by stream; a topology "
                "reads a topic once, so read both alike"
            ),
        ),
        (
            lambda app: (
                orders(app).to("a"),
                app.stream("x", type("Order", (Row,), {"__module__": __name__})).to("b"),
            ),
            f"stream: two rows are called Order, of {__name__} and {__name__}; rename one",
        ),
    ],
)
def test_a_whole_that_does_not_fit_is_refused(
    build: Callable[[Topology], object], text: str
) -> None:
    """The plan names the operator, the value and the next step of each problem."""
    assert refuse(build) == text


def test_a_group_by_the_key_writes_no_topic() -> None:
    """Rows that are by the key already are grouped where they are; by a field of it as well."""
    app = Topology()
    by_id = app.stream("orders", Order).key_by(Order.id, name="by-id")
    by_id.group_by(key, name="a").agg(Sum, id=key, n=count())
    by_id.group_by(Order.id, name="b").agg(Sum, id=Order.id, n=count())
    named = by_id.select(Sum, id=Order.id, n=1).group_by(Sum.id, name="c")
    named.agg(Sum, id=key, n=count()).updates().group_by(Sum.id, name="d").agg(
        Sum, id=key, n=count()
    )
    plan = app.plan("t")
    assert [channel.name for channel in plan.channels] == ["t.by-id", "t.orders"]
    assert plan.channels[0].topics == ("t.by-id.by-key",)
    assert plan.channels[0].stores == ("a", "b", "c", "d")


def test_a_field_of_a_group_is_an_expression_that_it_is_grouped_by() -> None:
    """Parts of a key are named as they were grouped by, within larger expressions too."""
    app = Topology()
    by = app.stream("orders", Order).group_by(Order.id.lower(), Order.customer, name="x")
    table = by.agg(Sum, id=Order.id.lower() + Order.customer, n=count())
    operator = app.plan().document()["operators"][2]
    assert operator["fields"] == {"id": {"call": "add", "arguments": [{"key": 0}, {"key": 1}]}}
    assert [each["type"] for each in operator["key"]] == ["str", "str"]
    table.to("sums")
    assert app.plan().channels[1].writes == ("sums",)


def test_branches_take_each_row_once() -> None:
    """A row goes to the first condition that is true, and a null condition is not."""
    app = Topology()
    few, many, others = app.stream("orders", Order).branch(Order.count < 3, Order.count > 7)
    few.to("few")
    many.to("many")
    others.to("others")
    shown = [each["where"] for each in app.plan().document()["operators"] if each["op"] == "filter"]
    assert shown[0]["call"] == "less"
    assert [each["call"] for each in shown[1:]] == ["when", "when"]


def test_aggregates_have_the_types_of_what_they_are_of() -> None:
    """A count and a list are no null; others are where each of their values may be."""

    class Everything(Row):
        n: Field[int]
        amount: Field[float]
        some: Field[int | None]
        lowest: Field[str]
        latest: Field[list[str]]
        names: Field[list[int]]
        best: Field[list[str]]
        begin: Field[int]

    app = Topology()
    by = app.stream("orders", Order).group_by(Order.id, name="x").window(tumbling("1m"))
    by.agg(
        Everything,
        n=count(),
        amount=mean(Order.amount),
        some=total(Order.count),
        lowest=least(Order.note),
        latest=last(Order.tags),
        names=collect(Order.count, limit=3),
        best=top(3, by=Order.amount, of=Order.id),
        begin=window_start,
    )
    found = app.plan().document()["operators"][2]["aggregates"]
    assert list(found) == ["n", "amount", "some", "lowest", "latest", "names", "best"]
    assert found["best"]["limit"] == 3
    assert found["names"]["result"] == {"type": "list", "item": {"type": "int"}}


def test_a_join_by_a_foreign_key_is_two_channels() -> None:
    """The sides are joined by two topics, and are not in the same task."""
    app = Topology()
    left: Any = app.table("orders", Order, name="orders")
    right: Any = app.table("payments", Payment, name="payments")
    left.join(
        right, Joined, name="paid", on=Order.customer, kind="left", id=key, paid=Payment.paid
    ).to("joined")
    plan = app.plan("t")
    assert [(each.name, each.topics, each.writes) for each in plan.channels] == [
        ("t.orders", ("orders", "t.paid.respond"), ("joined", "t.paid.subscribe")),
        ("t.payments", ("payments", "t.paid.subscribe"), ("t.paid.respond",)),
    ]
    assert plan.internal_topics == (
        "t.orders.orders.state",
        "t.paid.respond",
        "t.paid.subscribe",
        "t.payments.payments.state",
    )


def test_a_shared_table_is_in_no_task() -> None:
    """A shared topic needs no number of partitions, and a lookup names a field of the row."""
    app = Topology()
    shared: Any = app.shared_table("payments", Payment, name="payments")
    orders(app).lookup(
        shared, Joined, name="paid", on=Order.customer, id=Order.id, paid=Payment.paid
    ).to("joined")
    (channel,) = app.plan("t").channels
    assert (channel.topics, channel.shared) == (("orders",), ("payments",))


def test_only_fields_in_use_are_read() -> None:
    """Fields that operators name are in use; all are where rows are stored or given to Python."""
    plan = programs.enrich().plan()
    used = {operator.label: plan.fields[place] for place, operator in enumerate(plan.operators[:3])}
    assert used == {
        "table 'users'": ("country",),
        "stream": ("user",),
        "key_by 'clicks-by-user'": ("url",),
    }
    app = Topology()
    app.stream("orders", Order).map(lambda row: row, Order).to("copy")
    assert app.plan().fields[0] == tuple(Order.__fields__)

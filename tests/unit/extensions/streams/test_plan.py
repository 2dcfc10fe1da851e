from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, StartError
from headrace.extensions.streams.aggregates import count, last, total
from headrace.extensions.streams.expressions import key
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.runtime.processor import require_no_former
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, tumbling
from headrace.kafka.ports import TopicInfo
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.plan import Plan

PROGRAMS = ["word_count", "sessions", "settle", "enrich", "top_pages", "sold"]

_PRINT = """
import sys
from tests.unit.extensions.streams import programs
for name in sys.argv[1:]:
    plan = getattr(programs, name)().plan("demo", "shop")
    print(plan.digest, plan.json(), plan.mermaid())
"""


class Order(Row):
    id: Field[str]
    customer: Field[str]
    amount: Field[float]


class Sum(Row):
    id: Field[str]
    n: Field[int]


class Total(Row):
    id: Field[str]
    amount: Field[float]


def printed(seed: str) -> bytes:
    """Return the plans of all programs, made by a process with this seed of hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", _PRINT, *PROGRAMS]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout


def test_a_plan_is_the_same_in_any_process() -> None:
    """Processes with different seeds of hashes make the same plans, fingerprints and pictures."""
    first = printed("0")
    assert first == printed("1")
    here = [getattr(programs, name)().plan("demo", "shop").digest for name in PROGRAMS]
    assert [line.split()[0].decode() for line in first.splitlines() if line[8:10] == b" {"] == here


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_is_json_that_comes_back(name: str) -> None:
    """The document is read again as it was, with each operator, channel and store."""
    plan: Plan = getattr(programs, name)().plan()
    document = plan.document()
    assert json.loads(plan.json()) == document
    places = sorted(place for each in document["channels"] for place in each["operators"])
    assert places == list(range(len(document["operators"])))


def test_a_picture_has_channels_operators_and_topics() -> None:
    """Each channel is a box, and topics are between them."""
    picture = programs.word_count().plan("demo").mermaid().splitlines()
    assert picture[0] == "flowchart LR"
    assert '  subgraph c0["demo.lines"]' in picture
    assert '  t1[("demo.words.by-key")]' in picture
    assert "  n2 --> t1" in picture


def build(order: Sequence[int], *, extra: bool = False) -> Plan:
    """Return the plan of three independent parts, written down in some order."""
    app = Topology()

    def counts() -> None:
        stream: Any = app.stream("orders", Order)
        if extra:
            stream = stream.filter(Order.amount > 1.0)
        stream.group_by(Order.id, name="counts").agg(Sum, id=key, n=count()).to("counts")

    def totals() -> None:
        by = app.stream("orders", Order).group_by(Order.customer, name="totals")
        by.window(tumbling("1m")).agg(Total, id=key, amount=total(Order.amount)).final().to(
            "totals"
        )

    def tables() -> None:
        orders = app.table("last-orders", Order, name="lasts")
        sums = app.table("sums", Sum, name="sums")
        orders.join(sums, Total, name="both", id=key, amount=Order.amount).to("both")

    parts = [counts, totals, tables]
    for each in order:
        parts[each]()
    return app.plan("t")


def kept(plan: Plan) -> tuple[Any, ...]:
    """Return what state and offsets hang on."""
    stores = [(each.name, each.changelog, each.fingerprint) for each in plan.stores]
    return stores, [(each.name, each.group, each.topics, each.stores) for each in plan.channels]


@given(st.permutations(range(3)), st.booleans())
def test_stores_are_found_wherever_an_operator_stands(order: list[int], extra: bool) -> None:
    """Names, topics and fingerprints are the same for parts in another order."""
    assert kept(build(order, extra=extra)) == kept(build([0, 1, 2]))


def fingerprint(change: Callable[[Any], object]) -> str:
    """Return the fingerprint of a store that is made so of a stream of orders."""
    app = Topology()
    change(app.stream("orders", Order))
    (store,) = [each for each in app.plan().stores if each.name == "x"]
    return store.fingerprint


def by(column: Any = Order.id) -> Callable[[Any], Any]:
    """Return a function that groups orders."""
    return lambda stream: stream.group_by(column, name="x")


def windowed(stream: Any) -> Any:
    """Return orders in the windows that others are compared with."""
    return by()(stream).window(hopping("5m", "1m"))


BASE = fingerprint(lambda s: windowed(s).agg(Sum, id=key, n=count()))


class Renamed(Row):
    name: Field[str]
    number: Field[int]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: by()(s).window(hopping("5m", "1m", grace="9m")).agg(Sum, id=key, n=count()),
        lambda s: windowed(s).agg(Renamed, number=count(), name=key),
        lambda s: windowed(s).agg(Sum, id=key, n=count()).final().to("a"),
        lambda s: (
            by()(s.filter(Order.amount > 1.0))
            .window(hopping("5m", "1m"))
            .agg(Sum, id=key, n=count())
        ),
    ],
)
def test_a_change_around_a_store_keeps_its_fingerprint(change: Callable[[Any], object]) -> None:
    """Grace, names of fields, what is made of it and filters before it change no stored row."""
    assert fingerprint(change) == BASE


@pytest.mark.parametrize(
    "change",
    [
        lambda s: by()(s).agg(Sum, id=key, n=count()),
        lambda s: by()(s).window(tumbling("5m")).agg(Sum, id=key, n=count()),
        lambda s: by()(s).window(hopping("4m", "1m")).agg(Sum, id=key, n=count()),
        lambda s: by(Order.customer)(s).window(hopping("5m", "1m")).agg(Sum, id=key, n=count()),
        lambda s: windowed(s).agg(Total, id=key, amount=total(Order.amount)),
        lambda s: windowed(s).agg(Total, id=key, amount=last(Order.amount)),
    ],
)
def test_a_change_of_what_is_stored_changes_the_fingerprint(
    change: Callable[[Any], object],
) -> None:
    """Windows, keys and aggregates are what stored rows are of."""
    assert fingerprint(change) != BASE


def test_fields_in_another_order_are_the_same_store() -> None:
    """The order in which aggregates are written down is not that in which they are kept."""

    class Both(Row):
        n: Field[int]
        amount: Field[float]

    one = fingerprint(lambda s: by()(s).agg(Both, n=count(), amount=total(Order.amount)))
    other = fingerprint(lambda s: by()(s).agg(Both, amount=total(Order.amount), n=count()))
    assert one == other


def test_another_version_has_other_topics() -> None:
    """A new version begins with an empty store, and the topics of the old one are left alone."""
    app = Topology()
    app.stream("orders", Order).group_by(Order.id, name="x").agg(Sum, version=2, id=key, n=count())
    assert app.plan("t").internal_topics == ("t.x.v2.by-key", "t.x.v2.by-key.state")


def passing() -> Plan:
    """Return the plan of a topology that writes its input to two topics."""
    app = Topology()
    orders = app.stream("orders", Order)
    orders.to("end")
    orders.to("copies")
    return app.plan("t")


def shared() -> Plan:
    """Return the plan of a lookup in a table that each member has whole."""
    app = Topology()
    sums = app.shared_table("sums", Sum, name="sums")
    orders: Any = app.stream("orders", Order)
    orders.lookup(sums, Sum, on=Order.id, name="found", id=Order.id, n=Sum.n.or_else(0)).to("found")
    return app.plan("t")


#: A line of a picture: a channel's beginning or end, a box, a topic, or an arrow.
_ID = r"[cnpt]\d+"
_LINE = re.compile(
    rf'flowchart LR|  subgraph {_ID}\["[\w. -]+"\]|  end'
    rf'| {{2,4}}{_ID}\["[\w. -]+"\]|  {_ID}\[\("[\w.-]+"\)\]|  ({_ID}) --> ({_ID})'
)


@pytest.mark.parametrize(
    "plan",
    [*(getattr(programs, name)().plan("demo", "shop") for name in PROGRAMS), passing(), shared()],
    ids=lambda plan: plan.channels[0].name,
)
def test_a_picture_has_a_label_for_each_id(plan: Plan) -> None:
    """Labels are in quotes and have none, and arrows lead between boxes that the picture has."""
    lines = plan.mermaid().splitlines()
    matches = [_LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    boxes = {each[1] for line in lines if (each := re.match(rf" *({_ID})[\[]", line))}
    ends = {end for match in matches if match is not None for end in match.groups() if end}
    assert ends
    assert ends <= boxes


def test_a_channel_without_operators_has_a_box_in_the_picture() -> None:
    """The rows that a channel writes as they came pass through its box, not beside it."""
    picture = passing().mermaid().splitlines()
    assert '    p0["rows as they are"]' in picture
    assert [line for line in picture if "-->" in line] == [
        "  t0 --> p0",
        "  p0 --> t1",
        "  p0 --> t2",
    ]


@pytest.mark.parametrize("group", ['the "shop"', "the shop", "läden"])
def test_a_group_that_topics_cannot_be_called_by_is_refused(group: str) -> None:
    """A topology keeps topics that are called by its group, and brokers would refuse the name."""
    with pytest.raises(ConfigError, match=r"is no name of a topic; take letters.* for its group"):
        programs.word_count().plan("demo", group)


def test_channels_come_after_those_that_write_what_they_read() -> None:
    """The names of channels are not in the order of the data."""
    plan = programs.top_pages().plan("demo")
    assert [each.name for each in plan.channels_in_order] == [
        "demo.clicks",
        "demo.pages",
        "demo.top",
    ]


def test_topics_by_key_are_made_of_what_their_channel_reads() -> None:
    """A channel that reads a topic by key that it writes itself does not take its size from it."""
    app = Topology()
    orders: Any = app.stream("orders", Order)
    again = orders.key_by(Order.customer, name="again")
    orders.merge(again).to("both")
    plan = app.plan("t")
    (only,) = plan.channels
    assert only.topics == ("orders", "t.again.by-key")
    assert plan.by_key_of(only) == {"t.again.by-key": ("orders",)}


def test_parts_are_called_by_what_they_read_whatever_operators_they_have() -> None:
    """So an operator that is added, or goes, leaves group and changelog as they are."""

    def named(*others: str) -> list[tuple[str, str]]:
        app = Topology()
        by_id = app.stream("orders", Order).group_by(Order.id, name="sums")
        by_id.agg(Sum, id=key, n=count())
        for name in others:
            app.stream("orders", Order).filter(Order.amount > 1).to(f"{name}-orders")
        return [(each.group, each.topics[0]) for each in app.plan("t").channels]

    assert named() == [("t.orders", "orders"), ("t.sums", "t.sums.by-key")]
    assert named("a", "b") == named()


def test_a_change_of_key_that_is_called_as_a_topic_is_refused() -> None:
    """Both parts would have one name."""
    app = Topology()
    app.stream("orders", Order).group_by(Order.id, name="orders").agg(Sum, id=key, n=count())
    with pytest.raises(ConfigError, match="'orders' is a topic that the topology reads as well"):
        app.plan("t")


class Named(Row):
    name: Field[str]


def test_a_part_whose_name_changed_begins_only_where_its_former_one_has_no_state() -> None:
    """It is called by its first topic, and says which changelog it had before it read that."""
    app = Topology()
    users = app.table("users", Order, name="users")
    named = app.table("names", Named, name="names")
    users.join(named, Sum, name="both", id=key, n=1).to("both")
    plan = app.plan("t")
    (channel,) = plan.channels
    assert channel.name == "t.names"
    formers = plan.former_parts(channel)
    assert formers == {"t.users.users.state": "users"}
    section: Any = SimpleNamespace(group=channel.group, topics=channel.topics)

    def start(*existing: str) -> None:
        describe = {name: TopicInfo(name, "id", 1) for name in existing}
        found = lambda names, _: {name: describe[name] for name in names if name in describe}  # noqa: E731
        catalog: Any = SimpleNamespace(describe=found)
        require_no_former(catalog, section, "own", formers, Deadline.after(1))

    start()
    start("own", "t.users.users.state")
    with pytest.raises(StartError, match=r"t\.users\.users\.state has the state of part users"):
        start("t.users.users.state")


def test_programs_import_no_library_that_no_topology_needs() -> None:
    """The code is called within seconds, and pandas alone takes as many on a busy machine."""
    code = "import sys, headrace.streams; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sides_of_a_join_by_a_foreign_key_are_parts_that_ask_each_other() -> None:
    """They are called by their tables, and have a store each; the topics have the join's name."""
    plan = programs.sold().plan("t", "g")
    left, right = plan.part("sales"), plan.part("buyers")
    assert left.topics == ("sales", "g.sold.respond")
    assert right.topics == ("buyers", "g.sold.subscribe")
    assert (left.writes, right.writes) == (("g.sold.subscribe", "sold"), ("g.sold.respond",))
    assert (left.stores, right.stores) == (("sales", "sold"), ("people", "sold.subscriptions"))
    stores = {each.name: each for each in plan.stores}
    assert stores["sold"].changelog == "g.sales.sales.state"
    assert stores["sold.subscriptions"].changelog == "g.buyers.buyers.state"
    assert plan.circles_in_order == ((right, left),)
    assert plan.inputs_of(left) == ("sales",)
    assert plan.answers_of(right) == {
        "g.sold.respond": ("sales",),
        "g.sold.subscribe": ("buyers",),
    }


def joined(change: Callable[[Any, Any], Any]) -> Plan:
    """Return the plan of a join by a foreign key of sales that may be other ones, and buyers."""
    app = Topology()
    sales = app.table("sales", programs.Sale, name="sales")
    change(sales, app.table("buyers", programs.Buyer, name="people")).to("sold")
    return app.plan("t")


def by_buyer(on: Any = programs.Sale.buyer, **fields: Any) -> Callable[[Any, Any], Any]:
    """Return a function that joins them."""
    made = {"cents": programs.Sale.cents, "who": programs.Buyer.name, **fields}
    return lambda sales, buyers: sales.join(buyers, programs.Sold, name="x", on=on, **made)


def test_a_join_by_a_foreign_key_goes_on_unless_what_is_stored_changes() -> None:
    """Filters before it and values of fields do not change rows; the foreign key does."""
    base = {each.name: each.fingerprint for each in joined(by_buyer()).stores}

    def changed(change: Callable[[Any, Any], Any]) -> set[str]:
        found = {each.name: each.fingerprint for each in joined(change).stores}
        assert found.keys() == base.keys()
        return {name for name in base if found[name] != base[name]}

    assert changed(by_buyer(cents=programs.Sale.cents * 2)) == set()
    assert (
        changed(lambda sales, buyers: by_buyer()(sales.filter(programs.Sale.cents > 0), buyers))
        == set()
    )
    assert changed(by_buyer(on=programs.Sale.buyer.lower())) == {"x"}


def test_a_part_begins_after_what_the_other_side_of_its_join_reads() -> None:
    """Topics between the sides have the partitions of what both read, so that has to be there."""
    app = Topology()
    words = app.stream("z-lines", programs.Word).key_by(programs.Word.word, name="z-words")
    counts = words.group_by(key, name="counts").agg(programs.Counted, word=key, n=count())
    sales = app.table("a-sales", programs.Sale, name="sales")
    sales.join(
        counts,
        programs.Sold,
        name="sold",
        on=programs.Sale.buyer,
        cents=programs.Sale.cents,
        who=programs.Counted.word,
    ).to("sold")
    order = [each.name for each in app.plan("t").channels_in_order]
    assert order == ["t.z-lines", "t.a-sales", "t.z-words"]

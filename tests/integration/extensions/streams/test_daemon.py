"""Topologies in daemons on real servers, which are killed and started again."""

from __future__ import annotations

import importlib
import json
import signal
import sqlite3
import sys
from contextlib import closing
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import partition_of
from headrace.streams import StreamsTest
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import spark_section, wait_at_work
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, arrived, rows
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from tests.integration.daemon.rig import Daemon, Site

_PROGRAM = """
from headrace.keyed import Fired, at_event
from headrace.streams import (
    Field, Row, Topology, approx_distinct, approx_quantile, count, hopping, key, session, sliding,
    tumbling, window_start, total
)


class Click(Row):
    url: Field[str]
    n: Field[int]


class Pages(Row):
    url: Field[str]
    begin: Field[int]
    n: Field[int]
    sum: Field[int]


class Totals(Row):
    url: Field[str]
    n: Field[int]


WINDOWS = {
    "tumbling": tumbling("10s", grace="1h"),
    "hopping": hopping("10s", every="2s", grace="1h"),
    "sliding": sliding("3s", grace="1h"),
    "session": session("2s", grace="1h"),
}


def windows(clicks, final, updates, kind, version=1):
    app = Topology()
    by_url = app.stream(clicks, Click).filter(Click.n >= 0).group_by(Click.url, name="pages")
    pages = by_url.window(WINDOWS[kind]).agg(
        Pages, version=version, url=key, begin=window_start, n=count(), sum=total(Click.n)
    )
    pages.final().to(final)
    pages.updates().to(updates)
    return app


class User(Row):
    name: Field[str]


class Order(Row):
    order: Field[int]


class Payment(Row):
    paid: Field[int]


class Settled(Row):
    key: Field[str]
    order: Field[int | None]
    paid: Field[int | None]


class Named(Row):
    order: Field[int | None]
    paid: Field[int | None]
    who: Field[str | None]


def settled(orders, payments, users, output):
    app = Topology()
    pairs = app.stream(orders, Order).join(
        app.stream(payments, Payment), Settled, name="settled", kind="outer", within="2s",
        grace="1s", key=key, order=Order.order, paid=Payment.paid,
    )
    people = app.table(users, User, name="people")
    pairs.lookup(
        people, Named, name="named", kind="left",
        order=Settled.order, paid=Settled.paid, who=User.name,
    ).to(output)
    return app


def doubled(click):
    if click.n % 13 == 0:
        raise ValueError(f"{click.n} cannot be doubled")
    return Click(url=click.url, n=2 * click.n)


def of_functions(clicks, output):
    app = Topology()
    by_url = app.stream(clicks, Click).map(doubled, Click).group_by(Click.url, name="totals")
    by_url.agg(Totals, url=key, n=total(Click.n)).updates().to(output)
    return app


class Sale(Row):
    buyer: Field[str | None]
    cents: Field[int]


class Buyer(Row):
    name: Field[str]


class Sold(Row):
    cents: Field[int]
    who: Field[str | None]


def sold(sales, buyers, output, kind):
    app = Topology()
    people = app.table(buyers, Buyer, name="people")
    app.table(sales, Sale, name="sales").join(
        people, Sold, name="sold", on=Sale.buyer, kind=kind, cents=Sale.cents, who=Buyer.name,
    ).to(output)
    return app


class Quiet(Row):
    url: Field[str]
    clicks: Field[int]


class Reach(Row):
    url: Field[str]
    numbers: Field[int]
    high: Field[float | None]


class Names(Row):
    name: Field[str]
    users: Field[int]


def tell_quiet(url, state, facts, now):
    (fact,) = facts
    if isinstance(fact, Fired):
        return None, [Quiet(url=url, clicks=state)], {}
    return (state or 0) + 1, [], {"quiet": at_event(fact.ts + 800)}


def steps(clicks, users, quiet, reach, names):
    app = Topology()
    by_url = app.stream(clicks, Click).key_by(Click.url, name="by-url")
    by_url.reduce(tell_quiet, name="quiet", rows=Quiet).to(quiet)
    by_url.group_by(key, name="reach").agg(
        Reach, url=key, numbers=approx_distinct(Click.n), high=approx_quantile(Click.n, 0.9)
    ).to(reach)
    people = app.table(users, User, name="people")
    people.group_by(User.name, name="names").agg(Names, name=User.name, users=count()).to(names)
    return app


class Labelled(Row):
    cents: Field[int]
    who: Field[str | None]


def labelled(sales, buyers, output):
    app = Topology()
    people = app.shared_table(buyers, Buyer, name="people")
    app.stream(sales, Sale).lookup(
        people, Labelled, name="labelled", on=Sale.buyer, cents=Sale.cents, who=Buyer.name,
    ).to(output)
    return app


def totals(clicks, output):
    app = Topology()
    by_url = app.stream(clicks, Click).group_by(Click.url, name="totals")
    by_url.agg(Totals, url=key, n=count()).updates().to(output)
    return app
"""

#: Milliseconds since the epoch of the first click: recent, or the brokers' retention drops them.
BEGIN = int(SYSTEM_CLOCK.time() * 1000) // 10_000 * 10_000 - 7_200_000

URLS = [f"/{letter}" for letter in "abcdefgh"]

Click = tuple[str, int, int]


def program(site: Site) -> ModuleType:
    """Write the program beside the configuration, and import it here as well."""
    name = f"program_{site.group.replace('.', '_')}"
    (site.directory / f"{name}.py").write_text(_PROGRAM, encoding="utf-8")
    sys.path.insert(0, str(site.directory))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(site.directory))


def topology(
    site: Site, code: ModuleType, function: str, options: dict[str, Any], **channel: Any
) -> dict[str, Any]:
    """Return a configuration of a topology alone."""
    document = site.document()
    common = document.pop("channels")["main"]
    kept = {name: common[name] for name in ("coordinator", "commit_interval")}
    batch = {"max_records": 20, "linger": 0}
    document["topologies"] = {
        "shop": {
            "code": f"{code.__name__}:{function}",
            "group": site.group,
            "options": options,
            "channel": {**kept, "batch": batch, "processor": {"max_records": 40}, **channel},
        }
    }
    return document


def clicks(count: int, seed: int, begin: int = BEGIN) -> list[Click]:
    """Return clicks: url, number, time; their times are half a second apart, about."""
    random = Random(seed)
    return [
        (random.choice(URLS), random.randrange(100), begin + 100 * at + random.randrange(2_000))
        for at in range(count)
    ]


def produce(site: Site, sent: Sequence[Click], partitions: int = 1) -> None:
    """Produce clicks without keys; those of one partition stay in their order by key as well."""
    for number in range(partitions):
        records = [
            FakeRecord(key_=None, value_=json.dumps({"url": url, "n": n}).encode(), timestamp_=time)
            for url, n, time in sent[number::partitions]
        ]
        site.broker.produce(site.partition(number), *records)


def end_windows(site: Site, after: int) -> list[Click]:
    """Produce a click of each page that is much later, so that all windows before are over."""
    late = after + 2 * 3_600_000
    sent = [(url, 1, late) for url in URLS]
    produce(site, sent)
    return sent


def run_in_process(made: Any, sent: Sequence[Click], topic: str) -> StreamsTest:
    """Return the same topology in this process, with all clicks in the order of their times."""
    test = StreamsTest(made, batch=10_000)
    for url, n, time in sorted(sent, key=lambda each: each[2]):
        test.pipe(topic, {"url": url, "n": n}, time=time)
    return test


def windows_in(site: Site, topic: str) -> list[tuple[str, int, int, int]]:
    """Return the windows that a topic has, in its order."""
    return [
        (value["url"], value["begin"], value["n"], value["sum"])
        for _, value in rows(site, topic)
        if value is not None
    ]


def stop(*daemons: Daemon) -> None:
    """End daemons as an operator does."""
    for daemon in daemons:
        daemon.signal(signal.SIGTERM)
    for daemon in daemons:
        assert daemon.wait() == 0, daemon.text()


@pytest.mark.parametrize(
    "kind",
    [
        "hopping",
        pytest.param("tumbling", marks=pytest.mark.slow),
        pytest.param("sliding", marks=pytest.mark.slow),
        pytest.param("session", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_windows_are_told_once_after_a_kill(site: Site, kind: str) -> None:
    """Each final window of a topology with a change of key is that of all its records."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options = {"clicks": site.topic, "final": final, "updates": updates, "kind": kind}
    document = topology(site, code, "windows", options)
    sent = clicks(400, 1)
    produce(site, sent)
    first = site.daemon(document).start()
    arrived(site, first, updates, 60)
    first.signal(signal.SIGKILL)
    first.wait()
    more = clicks(300, 2, BEGIN + 20_000)
    produce(site, more)
    second = site.daemon(document).start()
    arrived(site, second, updates, 200)
    over = end_windows(site, BEGIN + 60_000)
    test = run_in_process(code.windows(**options), [*sent, *more, *over], site.topic)
    wanted = sorted(
        (each.value["url"], each.value["begin"], each.value["n"], each.value["sum"])
        for each in test.read(final)
    )
    # a window of another partition is over only with a record of that
    deadline = Deadline.after(SPARK_WAIT)
    wait_for(lambda: len(windows_in(site, final)) >= len(wanted), deadline)
    stop(second)
    assert sorted(windows_in(site, final)) == wanted


@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_functions_in_workers_make_what_one_process_does_after_a_kill(
    site: Site, engine: str
) -> None:
    """Sums of what a Python function returns are exact, and each record that it fails for a letter.

    Spark's workers call the function; the start and the kill leave no record out or twice in.
    """
    code = program(site)
    output, letters = site.broker.create_topic(1), site.broker.create_topic(1)
    options = {"clicks": site.topic, "output": output}
    rejects = {"failing": "dead_letter", "topic": letters}
    document = topology(site, code, "of_functions", options, rejects=rejects)
    document["topologies"]["shop"]["engine"] = engine
    document["spark"] = spark_section(2)
    sent = clicks(300, 1)
    produce(site, sent, 2)
    first = site.daemon(document).start()
    arrived(site, first, output, 8)
    first.signal(signal.SIGKILL)
    first.wait()
    more = clicks(200, 2)
    produce(site, more, 2)
    second = site.daemon(document).start()
    failed = [n for _, n, _ in [*sent, *more] if n % 13 == 0]
    sums: dict[str, int] = {}
    for url, n, _ in [*sent, *more]:
        sums[url] = sums.get(url, 0) + (2 * n if n % 13 else 0)

    def found() -> dict[str, int]:
        return {value["url"]: value["n"] for _, value in rows(site, output) if value is not None}

    assert wait_for(lambda: found() == sums, Deadline.after(SPARK_WAIT)), second.text()
    arrived(site, second, letters, len(failed))
    stop(second)
    assert sorted(value["n"] for _, value in rows(site, letters)) == sorted(failed)
    assert "spark_ready" in second.text(), "by auto as well"


def with_pages(site: Site) -> Path:
    """Create a database with a table of windows by page, and return its file."""
    database = site.directory / "shop.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "CREATE TABLE pages (url TEXT, begin BIGINT, n BIGINT, sum BIGINT, UNIQUE (url, begin))"
        )
    return database


@pytest.mark.parametrize("mode", ["upsert", pytest.param("append", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_a_table_has_each_window_once_after_a_kill(site: Site, mode: str) -> None:
    """The rows of an aggregate are in a database, as they are, or once they are final."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options = {"clicks": site.topic, "final": final, "updates": updates, "kind": "tumbling"}
    document = topology(site, code, "windows", options)
    database = with_pages(site)
    sink: dict[str, Any] = {"type": "sql", "url": f"sqlite:///{database}", "table": "pages"}
    if mode == "upsert":
        sink |= {"mode": "upsert", "key": ["url", "begin"]}
    document["topologies"]["shop"]["tables"] = {"pages": sink}
    sent = clicks(400, 1)
    produce(site, sent)
    first = site.daemon(document).start()
    arrived(site, first, updates, 60)
    first.signal(signal.SIGKILL)
    first.wait()
    more = clicks(300, 2, BEGIN + 20_000)
    over = [(url, 1, BEGIN + 7_260_000) for url in URLS]
    produce(site, [*more, *over])
    second = site.daemon(document).start()
    made = code.windows(**options)
    test = run_in_process(made, [*sent, *more, *over], site.topic)
    wanted = {(each.value["url"], each.value["begin"]): each.value for each in test.read(final)}
    if mode == "upsert":
        wanted |= {(url, begin): row for (url, begin), row in test.store("pages").items()}
    expected = sorted(tuple(row.values()) for row in wanted.values())

    def stored() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(database)) as connection:
            return sorted(connection.execute("SELECT url, begin, n, sum FROM pages").fetchall())

    wait_for(lambda: stored() == expected, Deadline.after(SPARK_WAIT))
    stop(second)
    assert stored() == expected


@pytest.mark.timeout(400)
def test_a_join_of_two_topics_and_a_table_is_exact_after_a_kill(site: Site) -> None:
    """Each pair, and each order or payment alone, is told once, as the test kit tells it."""
    code = program(site)
    topics = [site.topic, site.broker.create_topic(2), site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    names = dict(zip(("orders", "payments", "users"), topics, strict=True))
    document = topology(site, code, "settled", {**names, "output": output})
    tests = [StreamsTest(code.settled(**names, output=output), batch=100_000) for _ in (0, 1)]

    def send(sent: Sequence[tuple[str, int, dict[str, Any], int]]) -> None:
        for topic, number, value, time in sent:
            tests[number % 2].pipe(topic, value, key=str(number), time=time)
        for topic in topics:
            for part in (0, 1):
                records = [
                    FakeRecord(
                        key_=b"%d" % number, value_=json.dumps(value).encode(), timestamp_=time
                    )
                    for of, number, value, time in sent
                    if of == topic and number % 2 == part
                ]
                site.broker.produce(TopicPartition(topic, part), *records)

    def facts(seed: int, begin: int) -> list[tuple[str, int, dict[str, Any], int]]:
        random = Random(seed)
        values = ("order", "paid", "name")
        made = []
        for at in range(300):
            kind = random.choice([0, 0, 1, 1, 2])
            value = {values[kind]: f"u{at}" if kind == 2 else at}
            made.append((topics[kind], random.randrange(10), value, begin + 37 * at))
        return made

    send(facts(1, BEGIN))
    first = site.daemon(document).start()
    arrived(site, first, output, 40)
    first.signal(signal.SIGKILL)
    first.wait()
    send(facts(2, BEGIN + 12_000))
    # what is alone is told once a record is later
    send([(topics[0], number, {"order": -1}, BEGIN + 60_000) for number in (0, 1)])
    second = site.daemon(document).start()
    wanted: dict[bytes, list[Any]] = {}
    for each in (out for test in tests for out in test.read(output)):
        wanted.setdefault((each.key or "").encode(), []).append(each.value)
    arrived(site, second, output, sum(map(len, wanted.values())))
    stop(second)
    got: dict[bytes, list[Any]] = {}
    for key, value in rows(site, output):
        got.setdefault(key, []).append(value)
    assert got == wanted


def changes(
    seed: int, size: int, begin: int, sales: str, buyers: str
) -> list[tuple[str, str, dict[str, Any] | None, int]]:
    """Return changes of sales and of their buyers, deletions among them."""
    random = Random(seed)
    found: list[tuple[str, str, dict[str, Any] | None, int]] = []
    for at in range(size):
        time, is_sale = begin + 37 * at, random.random() < 0.7
        name = str(random.randrange(40)) if is_sale else f"b{random.randrange(8)}"
        value: dict[str, Any] | None = {"name": f"n{seed}-{at}"}
        if is_sale:
            buyer = random.choice([None, *(f"b{number}" for number in range(8))])
            value = {"buyer": buyer, "cents": at}
        found.append(
            (sales if is_sale else buyers, name, random.choice([value] * 5 + [None]), time)
        )
    return found


def send_changes(
    site: Site, sent: Sequence[tuple[str, str, dict[str, Any] | None, int]], counts: dict[str, int]
) -> None:
    """Produce changes of tables to the partitions of their keys, of so many by topic."""
    found: dict[TopicPartition, list[FakeRecord]] = {}
    for topic, name, value, time in sent:
        number = partition_of(name.encode(), counts[topic])
        text = None if value is None else json.dumps(value).encode()
        record = FakeRecord(key_=name.encode(), value_=text, timestamp_=time)
        found.setdefault(TopicPartition(topic, number), []).append(record)
    for partition, records in found.items():
        site.broker.produce(partition, *records)


def last_of(site: Site, topic: str) -> dict[str, Any]:
    """Return the last value of each key of a topic, without deletions."""
    last = {(key or b"").decode(): value for key, value in rows(site, topic)}
    return {key: value for key, value in last.items() if value is not None}


@pytest.mark.parametrize("kind", ["left", pytest.param("inner", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_a_join_by_a_foreign_key_ends_with_the_last_rows_after_a_kill(
    site: Site, kind: str
) -> None:
    """Tables of different numbers of partitions are joined, at the end as in the test kit."""
    code = program(site)
    counts = {site.topic: 2, site.broker.create_topic(3): 3}
    buyers, sales = counts
    output = site.broker.create_topic(1)
    options = {"sales": sales, "buyers": buyers, "output": output, "kind": kind}
    document = topology(site, code, "sold", options)
    sent = changes(1, 300, BEGIN, sales, buyers)
    send_changes(site, sent, counts)
    first = site.daemon(document).start()
    arrived(site, first, output, 30)
    first.signal(signal.SIGKILL)
    first.wait()
    more = changes(2, 200, BEGIN + 20_000, sales, buyers)
    send_changes(site, more, counts)
    second = site.daemon(document).start()
    test = StreamsTest(code.sold(**options), batch=10_000)
    for topic, name, value, time in [*sent, *more]:
        test.pipe(topic, value, key=name, time=time)
    wanted = test.store("sold")
    wait_for(lambda: last_of(site, output) == wanted, Deadline.after(SPARK_WAIT))
    # one change more of each side, at a time when nothing is under way
    end: list[tuple[str, str, dict[str, Any] | None, int]] = [
        (buyers, "b1", {"name": "last"}, BEGIN + 60_000),
        (sales, "1", {"buyer": "b1", "cents": -1}, BEGIN + 60_001),
    ]
    send_changes(site, end, counts)
    for topic, name, value, time in end:
        test.pipe(topic, value, key=name, time=time)
    wanted = test.store("sold")
    wait_for(lambda: last_of(site, output) == wanted, Deadline.after(SPARK_WAIT))
    stop(second)
    assert last_of(site, output) == wanted


def holds_both_sides(daemon: Daemon) -> bool:
    """Return whether partitions of two channels have started in a daemon."""
    events = daemon.events()
    found = {each["channel"] for each in events if each["event"] == "start_position_found"}
    return len(found) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_join_by_a_foreign_key_tells_each_row_once_while_members_of_three_are_killed(
    site: Site,
) -> None:
    """Each sale is told once with its buyer, and once more with the buyer's other name."""
    code = program(site)
    counts = {site.broker.create_topic(4): 4, site.broker.create_topic(3): 3}
    buyers, sales = counts
    output = site.broker.create_topic(1)
    options = {"sales": sales, "buyers": buyers, "output": output, "kind": "inner"}
    document = topology(site, code, "sold", options)

    def name_buyers(word: str, begin: int) -> None:
        sent = [(buyers, f"b{n}", {"name": f"{word} {n}"}, begin + n) for n in range(8)]
        send_changes(site, sent, counts)

    def sell(first: int, end: int) -> None:
        values = [(n, {"buyer": f"b{n % 8}", "cents": n}) for n in range(first, end)]
        sent = [(sales, str(n), value, BEGIN + 1000 + n) for n, value in values]
        send_changes(site, sent, counts)

    name_buyers("first", BEGIN)
    one, two, three = (
        site.daemon({**document, "instance_id": name}).start() for name in ("one", "two", "three")
    )
    for each in (one, two, three):
        assert wait_at_work(partial(holds_both_sides, each), SPARK_WAIT), each.text()
    sell(0, 300)
    arrived(site, one, output, 100)
    sell(300, 600)
    two.signal(signal.SIGKILL)
    two.wait()
    sell(600, 900)
    arrived(site, one, output, 900)
    again = site.daemon({**document, "instance_id": "two"}).start()
    assert wait_at_work(partial(holds_both_sides, again), SPARK_WAIT), again.text()
    name_buyers("second", BEGIN + 60_000)
    arrived(site, one, output, 1000)
    three.signal(signal.SIGKILL)
    three.wait()
    arrived(site, one, output, 1800)
    stop(one, again)
    told = sorted((value["cents"], value["who"]) for _, value in rows(site, output))
    assert told == sorted(
        (n, f"{word} {n % 8}") for n in range(900) for word in ("first", "second")
    )


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_reducers_groups_of_tables_and_sketches_are_exact_after_a_kill(
    site: Site, engine: str
) -> None:
    """Each timer fires once, a row that moved is taken away once, and sketches are the same."""
    code = program(site)
    users, quiet, reach, names = (site.broker.create_topic(1) for _ in range(4))
    options = {"clicks": site.topic, "users": users, "quiet": quiet, "reach": reach, "names": names}
    document = topology(site, code, "steps", options)
    document["topologies"]["shop"]["engine"] = engine
    document["spark"] = spark_section(2)
    test = StreamsTest(code.steps(**options), batch=100_000)
    random = Random(6)

    def send(sent: Sequence[Click]) -> None:
        produce(site, sent)
        moves = []
        for url, n, time in sent:
            test.pipe(site.topic, {"url": url, "n": n}, time=time)
            value = {"name": random.choice(["ann", "bob"])} if random.random() < 0.8 else None
            test.pipe(users, value, key=url, time=time)
            text = None if value is None else json.dumps(value).encode()
            moves.append(FakeRecord(key_=url.encode(), value_=text, timestamp_=time))
        site.broker.produce(TopicPartition(users, 0), *moves)

    def last(topic: str) -> dict[bytes, Any]:
        return dict(rows(site, topic))

    send(sorted(clicks(300, 8), key=lambda each: each[2]))
    first = site.daemon(document).start()
    arrived(site, first, quiet, 10)
    first.signal(signal.SIGKILL)
    first.wait()
    send(sorted(clicks(300, 9, BEGIN + 40_000), key=lambda each: each[2]))
    # each partition has a later record at the end
    send([(url, 1, BEGIN + 100_000) for url in URLS])
    # counts of so few names are what they have to be in between, too: this one is there at the end
    test.pipe(users, {"name": "zoe"}, key="/last", time=BEGIN + 100_000)
    site.broker.produce(
        TopicPartition(users, 0),
        FakeRecord(key_=b"/last", value_=b'{"name": "zoe"}', timestamp_=BEGIN + 100_000),
    )
    second = site.daemon(document).start()
    wanted = sorted((each.value["url"], each.value["clicks"]) for each in test.read(quiet))
    ends = {
        topic: {(each.key or "").encode(): each.value for each in test.read(topic)}
        for topic in (reach, names)
    }
    deadline = Deadline.after(SPARK_WAIT)
    wait_for(lambda: all(last(topic) == end for topic, end in ends.items()), deadline)
    wait_for(lambda: len(rows(site, quiet)) >= len(wanted), deadline)
    stop(second)
    assert sorted((value["url"], value["clicks"]) for _, value in rows(site, quiet)) == wanted
    assert {topic: last(topic) for topic in ends} == ends


@pytest.mark.timeout(400)
def test_a_shared_table_is_whole_before_the_first_record_and_followed(site: Site) -> None:
    """Each sale has its buyer of another partition, also after a kill and a change meanwhile."""
    code = program(site)
    counts = {site.topic: 2, site.broker.create_topic(3): 3}
    sales, buyers = counts
    output = site.broker.create_topic(1)
    options = {"sales": sales, "buyers": buyers, "output": output}
    document = topology(site, code, "labelled", options)

    def name_buyer(number: int, name: str) -> None:
        send_changes(site, [(buyers, f"b{number}", {"name": name}, BEGIN)], counts)

    def sell(begin: int, end: int) -> None:
        for n in range(begin, end):
            value = {"buyer": f"b{n % 9}", "cents": n}
            send_changes(site, [(sales, str(n), value, BEGIN + n)], counts)

    def found() -> dict[int, str | None]:
        return {value["cents"]: value["who"] for _, value in rows(site, output)}

    for number in range(8):
        name_buyer(number, f"n{number}")
    sell(0, 90)
    first = site.daemon(document).start()
    arrived(site, first, output, 40)
    first.signal(signal.SIGKILL)
    first.wait()
    second = site.daemon(document).start()
    arrived(site, second, output, 90)
    assert found() == {n: None if n % 9 == 8 else f"n{n % 9}" for n in range(90)}
    name_buyer(8, "late")
    # it is followed without an order among records, so the next ones may come before it
    asked = count(98, 9)

    def is_followed() -> bool:
        number = next(asked)
        sell(number, number + 1)
        return "late" in found().values()

    assert wait_for(is_followed, Deadline.after(SPARK_WAIT)), second.text()
    stop(second)
    written = [value["cents"] for _, value in rows(site, output)]
    assert len(written) == len(set(written))


@pytest.mark.slow
@pytest.mark.parametrize("standbys", [0, 1])
def test_groups_are_counted_once_while_members_come_and_die(site: Site, standbys: int) -> None:
    """A second member joins, the first is killed: the last count of each page is that of all."""
    code = program(site)
    output = site.broker.create_topic(1)
    processor = {"max_records": 40, "state": {"standbys": standbys}}
    options = {"clicks": site.topic, "output": output}
    document = topology(site, code, "totals", options, processor=processor)
    sent = clicks(300, 3)
    produce(site, sent, 2)
    first = site.daemon({**document, "instance_id": "one"}).start()
    arrived(site, first, output, 20)
    second = site.daemon({**document, "instance_id": "two"}).start()
    second.wait_event("controller_started", SPARK_WAIT)
    if standbys:
        second.wait_event("standby_started", SPARK_WAIT)
    more = clicks(300, 4)
    produce(site, more, 2)
    first.signal(signal.SIGKILL)
    first.wait()
    wanted = {url: sum(each[0] == url for each in [*sent, *more]) for url in URLS}

    def last() -> dict[str, int]:
        found = committed_records(site.broker.address, output)
        values = [json.loads(each.value() or b"{}") for each in found]
        return {each["url"]: each["n"] for each in values}

    wait_for(lambda: last() == wanted, Deadline.after(SPARK_WAIT))
    stop(second)
    assert last() == wanted
    counts = [value["n"] for key, value in rows(site, output) if key == b"/a"]
    assert counts == sorted(counts)


def test_a_bounded_run_processes_all_parts_of_a_topology_and_its_tables(site: Site) -> None:
    """Each part ends after the one that writes what it reads."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options = {"clicks": site.topic, "final": final, "updates": updates, "kind": "tumbling"}
    document = topology(site, code, "windows", options)
    database = with_pages(site)
    document["topologies"]["shop"]["tables"] = {
        "pages": {
            "type": "sql",
            "url": f"sqlite:///{database}",
            "table": "pages",
            "mode": "upsert",
            "key": ["url", "begin"],
        }
    }
    sent = clicks(300, 7)
    produce(site, sent, 2)
    daemon = site.daemon(document).start("--until", "latest")
    assert daemon.wait() == 0, daemon.text()
    with closing(sqlite3.connect(database)) as connection:
        ((count,),) = connection.execute("SELECT sum(n) FROM pages").fetchall()
    assert count == len(sent)


def test_records_that_fail_and_late_ones_go_to_the_topic(site: Site) -> None:
    """A value of another type, one without a field, and one whose windows are over."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    letters = site.broker.create_topic(1)
    options: dict[str, Any] = {
        "clicks": site.topic,
        "final": final,
        "updates": updates,
        "kind": "tumbling",
    }
    rejects = {"failing": "dead_letter", "late": "dead_letter", "topic": letters}
    daemon = site.daemon(topology(site, code, "windows", options, rejects=rejects)).start()
    values = [{"url": "/a", "n": 1}, {"url": "/a", "n": "x"}, {"n": 3}]
    records = [
        FakeRecord(key_=None, value_=json.dumps(each).encode(), timestamp_=BEGIN) for each in values
    ]
    site.broker.produce(site.partition(0), *records)
    arrived(site, daemon, updates, 1)
    over = end_windows(site, BEGIN)
    arrived(site, daemon, updates, 1 + len(over))
    site.broker.produce(site.partition(0), records[0])
    arrived(site, daemon, letters, 3)
    stop(daemon)
    found = committed_records(site.broker.address, letters)
    said = [dict(each.headers() or ()) for each in found]
    assert [json.loads(each.value() or b"") for each in found] == [*values[1:], values[0]]
    assert b"n" in (said[0]["headrace.message"] or b"")
    assert said[2]["headrace.error"] == b"LateRecord"
    assert windows_in(site, final) == [("/a", BEGIN, 1, 1)]


@pytest.mark.parametrize("failing", ["skip", "dead_letter"])
def test_a_topology_that_no_record_got_through_is_named_once(site: Site, failing: str) -> None:
    """Their offsets are committed, so that nothing but this line tells of code that never works."""
    code = program(site)
    outputs = {name: site.broker.create_topic(1) for name in ("final", "updates")}
    options: dict[str, Any] = {"clicks": site.topic, **outputs, "kind": "tumbling"}
    rejects = {"failing": failing}
    if failing == "dead_letter":
        rejects["topic"] = site.broker.create_topic(1)
    values = [{"url": "/a", "n": "x"}, {"n": 3}] * 50
    records = [
        FakeRecord(key_=None, value_=json.dumps(each).encode(), timestamp_=BEGIN) for each in values
    ]
    site.broker.produce(site.partition(0), *records)
    daemon = site.daemon(topology(site, code, "windows", options, rejects=rejects)).start()
    line = daemon.wait_event("processor_never_worked")
    assert line["code"] == f"{code.__name__}:windows"
    assert line["channel"].startswith("shop.")
    assert "n" in line["error"]
    stop(daemon)
    assert [each["event"] for each in daemon.events()].count("processor_never_worked") == 1


def test_a_store_whose_window_changed_is_refused_until_it_has_another_version(site: Site) -> None:
    """The start names the store; with version=2 it begins from nothing."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options: dict[str, Any] = {
        "clicks": site.topic,
        "final": final,
        "updates": updates,
        "kind": "tumbling",
    }
    produce(site, clicks(20, 1))
    first = site.daemon(topology(site, code, "windows", options)).start()
    arrived(site, first, updates, 5)
    stop(first)
    changed = site.daemon(topology(site, code, "windows", {**options, "kind": "session"})).start()
    assert changed.wait() != 0
    assert "store pages of topology shop was changed" in changed.text()
    options |= {"kind": "session", "version": 2}
    again = site.daemon(topology(site, code, "windows", options)).start()
    before = len(committed_records(site.broker.address, updates))
    produce(site, clicks(20, 2))
    arrived(site, again, updates, before + 1)
    stop(again)

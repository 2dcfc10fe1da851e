"""Stores of topologies, as the API shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.restore import RestoreProgress
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.standby_reader import StandbyProgress
from headrace.ops.admin.models import Problem
from headrace.ops.admin.stores import KeyRows, RowsPage, StoreQuestion, StoreReads
from headrace.streams import Field, Row, Topology, count, key, tumbling, window_start
from headrace.testing import in_memory_channel, running
from tests.unit.channel.in_memory import eventually
from tests.unit.channel.recorder import Recorder
from tests.unit.ops.admin.test_state import WithState, _publish, kept, problem
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from headrace.channel.channel import InboundKafkaChannel
    from tests.unit.ops.admin.scene import Scene
    from tests.unit.ops.admin.test_state import Kept

__all__ = ["kept"]

STORES = "/api/v1/topologies/shop/stores"

#: A key of each of the two partitions.
FIRST, SECOND = "a", "d"


class Click(Row):
    n: Field[int]


class Minute(Row):
    url: Field[str]
    begin: Field[int]
    clicks: Field[int]


class Total(Row):
    url: Field[str]
    clicks: Field[int]


class Pair(Row):
    url: Field[str]
    n: Field[int]
    clicks: Field[int]


class Other(Row):
    m: Field[int]


class Both(Row):
    n: Field[int]
    m: Field[int]


def shop() -> Topology:
    """Return a topology with a store of each kind that the API tells apart."""
    app = Topology()
    events = app.stream("events", Click)
    minutes = events.group_by(key, name="minutes").window(tumbling("1m", grace="10m"))
    minutes.agg(Minute, url=key, begin=window_start, clicks=count()).final().to("minutes")
    totals = events.group_by(key, name="totals").agg(Total, url=key, clicks=count())
    totals.updates().to("totals")
    pairs = events.group_by(key, Click.n, name="pairs")
    pairs.agg(Pair, url=key, n=Click.n, clicks=count()).updates().to("pairs")
    others = events.select(Other, m=Click.n)
    events.join(others, Both, name="both", within="1s", n=Click.n, m=Other.m).to("both")
    return app


def row(time: int, *parts: int) -> KeyRow:
    """Return a row of an aggregate as it is stored."""
    return KeyRow(json.dumps([time, *parts]).encode())


def begin_of(milliseconds: int) -> str:
    """Return a time as a key of a row has it."""
    return f"{milliseconds:019d}"


@pytest.fixture
def shown(bare: Scene, kept: Kept) -> Iterator[InboundKafkaChannel]:
    """Return the running channel of the topology's parts, whose stores have rows."""
    processor = {
        "type": "streams",
        "code": f"{__name__}:shop",
        "topology": "shop",
        "topology_group": "shop",
        "part": "events",
        "stores": "made:1",
    }
    channel = bare.controller.add(WithState(kept), processor=processor)
    # in memory a channel is called as its member
    for part in ("events", "pairs"):
        bare.controller.channels[f"shop.{part}"] = channel
    del bare.controller.channels["member"]
    minutes = f"minutes/{begin_of(60_000)}/a", f"minutes/{begin_of(120_000)}/a"
    kept.commit(
        0,
        {
            b"totals/a": row(119_000, 3),
            b"totals/ab": row(119_000, 1),
            minutes[0].encode(): row(119_000, 2),
            minutes[1].encode(): row(121_000, 1),
            b"minutes:time": KeyRow(b"121000"),
        },
        121_000,
    )
    kept.commit(1, {b"totals/d": row(5_000, 7)})
    with running(channel):
        eventually(lambda: len(channel.partitions()) == 2)
        yield channel


def rows_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the rows of an answer."""
    assert answer.status_code == 200, answer.text
    return [each["row"] for each in answer.json()["rows"]]


@pytest.mark.usefixtures("shown")
def test_stores_are_listed_with_windows_keys_fields_and_channel(bare: Scene) -> None:
    """A store of a join is there too; what is here now stands beside the partitions."""
    found = bare.get(STORES).json()
    assert found["topology"] == "shop"
    by_name = {each["name"]: each for each in found["stores"]}
    assert list(by_name) == ["both", "minutes", "pairs", "totals"]
    assert by_name["minutes"] == {
        "name": "minutes",
        "kind": "windows",
        "windows": {"kind": "time", "size": 60_000, "every": 60_000, "grace": 600_000},
        "key": [{"type": "str", "field": "url"}],
        "fields": {"url": "str", "begin": "int", "clicks": "int"},
        "channel": "shop.events",
        "partitions": 2,
        "here": [0, 1],
    }
    assert by_name["totals"]["windows"] is None
    assert by_name["both"]["kind"] == "join"


@pytest.mark.usefixtures("shown")
def test_a_row_has_the_operator_s_fields_and_its_offset(bare: Scene) -> None:
    """The key, its partition's position and the row; the document is the one that is declared."""
    answer = bare.get(f"{STORES}/totals/a")
    assert answer.status_code == 200
    KeyRows.model_validate_json(answer.text)
    assert answer.json() == {
        "topology": "shop",
        "store": "totals",
        "partitions": 2,
        "position": {
            "partition": 0,
            "offset": 5,
            "offsets": {"events": 5},
            "operator_time": None,
            "standby": None,
        },
        "rows": [
            {
                "key": "a",
                "hex": False,
                "partition": 0,
                "window": None,
                "time": "1970-01-01T00:01:59Z",
                "timers": [],
                "problem": None,
                "row": {"url": "a", "clicks": 3},
            }
        ],
    }


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(
    ("query", "begins"),
    [
        ("", [60_000, 120_000]),
        ("?from=60001", [120_000]),
        ("?from=1970-01-01T00:01:00Z&to=1970-01-01T00:02:00Z", [60_000]),
        ("?to=60000", []),
        ("?from=120000&to=120000", []),
    ],
)
def test_windows_of_a_key_are_between_two_times(bare: Scene, query: str, begins: list[int]) -> None:
    """From a time on and before another, in milliseconds or ISO 8601; none is no error."""
    answer = bare.get(f"{STORES}/minutes/a{query}")
    assert [each["begin"] for each in rows_of(answer)] == begins
    found = answer.json()
    assert found["position"]["operator_time"] == "1970-01-01T00:02:01Z"
    if begins == [60_000]:
        window = {"start": "1970-01-01T00:01:00Z", "end": "1970-01-01T00:02:00Z"}
        assert found["rows"][0]["window"] == window


@pytest.mark.usefixtures("shown")
def test_a_key_of_several_parts_is_an_array_however_it_is_spaced(bare: Scene, kept: Kept) -> None:
    """A key of other parts is refused with the types."""
    name = b'["a",2]'
    number = partition_of(name, 2)
    kept.commit(number, {b"pairs/" + name: row(1_000, 4)})
    for text in ('["a",2]', '[ "a", 2 ]'):
        answer = bare.get(f"{STORES}/pairs/{quote(text, safe='')}")
        assert rows_of(answer) == [{"url": "a", "n": 2, "clicks": 4}]
    for text in ("a", '["a"]', '["a","b"]', '["a",null]', "[", "[" * 9_000):
        answer = bare.get(f"{STORES}/pairs/{quote(text, safe='')}")
        assert problem(answer, 422) == ("invalid_key", f"{text} is no key of store pairs")
        assert answer.json()["next_step"] == "its keys are an array in JSON of str, int"


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(
    ("path", "status", "name", "said"),
    [
        ("/api/v1/topologies/shot/stores", 404, "unknown_topology", "did you mean shop?"),
        ("/api/v1/topologies/shot/stores/totals/a", 404, "unknown_topology", "did you mean shop?"),
        (f"{STORES}/minute/a", 404, "unknown_store", "did you mean minutes?"),
        (f"{STORES}/total", 404, "unknown_store", "did you mean totals?"),
        (f"{STORES}/both/a", 422, "no_rows", "ask for a store of an aggregate"),
        (f"{STORES}/both", 422, "no_rows", "ask for a store of an aggregate"),
        (f"{STORES}/totals/a?from=1", 422, "no_windows", "leave from out"),
        (f"{STORES}/totals?window=1", 422, "no_windows", "leave window out"),
        (f"{STORES}/minutes/a?from=noon", 422, "invalid_time", "write milliseconds since 1970"),
        (f"{STORES}/minutes/a?to=1969-01-01", 422, "invalid_time", "write milliseconds since 1970"),
        (f"{STORES}/minutes/a?to=9{'9' * 15}", 422, "invalid_time", "write milliseconds"),
        (f"{STORES}/minutes/a?from=2&to=1", 422, "invalid_time", "give the earlier time first"),
        (f"{STORES}/minutes?window=1", 422, "invalid_window", "each multiple of 60000 ms"),
        (f"{STORES}/totals/b", 404, "unknown_key", "headrace streams rows shop totals"),
        (f"{STORES}/totals?partition=2", 404, "unknown_partition", "it has 2"),
        (f"{STORES}/totals?after=x", 422, "invalid_after", "give next as the page before"),
        (f"{STORES}/totals?limit=0", 422, "invalid_request", "/openapi.json"),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_to_ask(
    bare: Scene, path: str, status: int, name: str, said: str
) -> None:
    """Each error has a name of its own, and the next step."""
    answer = bare.get(path)
    assert problem(answer, status)[0] == name
    assert said in answer.json()["next_step"]


@pytest.mark.usefixtures("shown")
def test_pages_of_rows_follow_each_other_over_partitions(bare: Scene) -> None:
    """Each row once, by partition and key, whatever the page's size; a prefix chooses."""
    for prefix, wanted in (("", ["a", "ab", "d"]), ("a", ["a", "ab"]), ("z", [])):
        for limit in (1, 2, 100):
            found, after = list[str](), ""
            while True:
                answer = bare.get(f"{STORES}/totals?prefix={prefix}&limit={limit}{after}")
                page = RowsPage.model_validate_json(answer.text)
                assert len(page.rows) <= limit
                found += [each.key for each in page.rows]
                if page.next is None:
                    break
                after = f"&after={page.next}"
            assert found == wanted
    whole = bare.get(f"{STORES}/totals").json()
    assert [each["offset"] for each in whole["positions"]] == [5, 1]
    assert (whole["restoring"], whole["elsewhere"], whole["partitions"]) == ([], 0, 2)
    assert rows_of(bare.get(f"{STORES}/totals?partition=1")) == [{"url": "d", "clicks": 7}]
    assert rows_of(bare.get(f"{STORES}/minutes?window=1970-01-01T00:02:00Z")) == [
        {"url": "a", "begin": 120_000, "clicks": 1}
    ]


@pytest.mark.usefixtures("shown")
def test_an_empty_key_is_a_key(bare: Scene, kept: Kept) -> None:
    """It is found by itself, and is on one page."""
    kept.commit(partition_of(b"", 2), {b"totals/": row(1_000, 9)})
    assert rows_of(bare.get(f"{STORES}/totals/")) == [{"url": "", "clicks": 9}]
    page = bare.get(f"{STORES}/totals?limit=1&partition={partition_of(b'', 2)}").json()
    assert [each["key"] for each in page["rows"]] == [""]
    after = bare.get(f"{STORES}/totals?after={page['next']}").json()
    assert "" not in [each["key"] for each in after["rows"]]


@pytest.mark.usefixtures("shown")
def test_a_key_that_a_producer_put_elsewhere_is_found_in_its_partition(
    bare: Scene, kept: Kept
) -> None:
    """Unless the partition is named in which it should be."""
    expected = partition_of(b"odd", 2)
    kept.commit(1 - expected, {b"totals/odd": row(1_000, 2)})
    found = bare.get(f"{STORES}/totals/odd").json()
    assert found["position"]["partition"] == 1 - expected
    answer = bare.get(f"{STORES}/totals/odd?partition={expected}")
    assert problem(answer, 404)[0] == "unknown_key"


@pytest.mark.usefixtures("shown")
def test_a_key_is_answered_alike_with_its_partition_and_without(bare: Scene) -> None:
    """The answer is the same to the byte, so it does not tell whether keys were read together."""
    keys = {"a": 0, "ab": 0, "d": 1}
    paths = [f"totals/{key}" for key in keys]
    paths += [f"minutes/{key}" for key in keys]
    paths += ["minutes/a?from=120000", "minutes/a?to=120000&from=60000", "minutes/a?from=x"]
    for path in paths:
        key = path.partition("/")[2].partition("?")[0]
        named = f"{path}{'&' if '?' in path else '?'}partition={keys[key]}"
        one, other = bare.get(f"{STORES}/{path}"), bare.get(f"{STORES}/{named}")
        assert (one.status_code, one.content) == (other.status_code, other.content), path
        assert one.headers["content-type"] == other.headers["content-type"]


@pytest.mark.usefixtures("shown")
def test_a_row_whose_partition_is_restored_is_503(bare: Scene, kept: Kept) -> None:
    """The answer has progress and a time to retry; pages say which partition they lack."""
    kept.state.release(1)
    kept.restoring[1] = RestoreProgress(34, 100, 12.2)
    for path in ("totals/d", "minutes/d", "totals?partition=1"):
        answer = bare.get(f"{STORES}/{path}")
        assert problem(answer, 503) == ("restoring", "events-1: restoring 34 %, 12 s left")
        assert answer.headers["retry-after"] == "12"
    page = bare.get(f"{STORES}/totals").json()
    assert [each["key"] for each in page["rows"]] == ["a", "ab"]
    assert [each["partition"] for each in page["restoring"]] == [1]


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("path", ["totals/d", "minutes/d"])
@pytest.mark.parametrize("becomes", ["restored", "given up"])
def test_a_row_whose_partition_changes_while_it_is_looked_for_is_503(
    bare: Scene, kept: Kept, monkeypatch: pytest.MonkeyPatch, path: str, becomes: str
) -> None:
    """The partition was not read then, so that no answer says that there is no such row."""
    look = kept.reader.partitions
    if becomes == "restored":
        kept.state.release(1)

    def look_and_change() -> list[Any]:
        found = look()
        if becomes == "restored":
            kept.state.admit(1)
        else:
            kept.state.release(1)
        return found

    monkeypatch.setattr(kept.reader, "partitions", look_and_change)
    # what reads keys together has looked before, and found nothing here
    monkeypatch.setattr(kept.reader, "has", lambda _: False)
    name, _ = problem(bare.get(f"{STORES}/{path}"), 503)
    assert name == ("restoring" if becomes == "restored" else "unavailable")


@pytest.mark.parametrize("admin", ["https://other.example:9465", None])
def test_rows_of_another_member_lead_there_with_the_question(
    bare: Scene, kept: Kept, shown: InboundKafkaChannel, admin: str | None
) -> None:
    """307 where its API is published, else 421 that names the member; windows lead there too."""
    other = in_memory_channel(
        Recorder(), bare.controller.broker, zookeeper=bare.controller.zookeeper, member="other"
    )
    with running(other):
        eventually(lambda: len(other.partitions()) == 1 == len(shown.partitions()))
        (here,) = (each.partition for each in shown.partitions())
        kept.held = {here}
        name = SECOND if here == 0 else FIRST
        _publish(bare, admin)
        paths = {
            f"{STORES}/totals/{name}": f"{STORES}/totals/{name}?partition={1 - here}&led=1",
            f"{STORES}/minutes/{name}?from=1&to=9": (
                f"{STORES}/minutes/{name}?partition={1 - here}&from=1&to=9&led=1"
            ),
            f"{STORES}/totals?partition={1 - here}&prefix=x&limit=7": (
                f"{STORES}/totals?partition={1 - here}&prefix=x&limit=7&led=1"
            ),
        }
        for path, place in paths.items():
            answer = bare.get(path)
            assert problem(answer, 307 if admin else 421)[0] == "held_elsewhere"
            assert f"in events-{1 - here}, which member other has" in answer.json()["message"]
            assert answer.headers.get("location") == (f"{admin}{place}" if admin else None)
            seen = bare.client.get(path, headers={**bare.trusted, "Prefer": "no-redirect"})
            assert (seen.status_code, seen.content) == (421, answer.content)
        assert bare.get(f"{STORES}/totals").json()["elsewhere"] == 1


@pytest.fixture
def copied(kept: Kept) -> Kept:
    """Return a state in which the second partition is another member's, and here is a copy."""
    kept.held = {0}
    kept.copies.places[1] = StandbyProgress(80, 12)
    return kept


@pytest.mark.usefixtures("shown", "copied")
def test_a_copy_answers_what_says_stale_with_its_offset_and_lag(bare: Scene) -> None:
    """The rows are there by key and on pages, and held partitions answer as ever."""
    wanted = {
        "partition": 1,
        "offset": None,
        "offsets": {},
        "operator_time": None,
        "standby": {"partition": 1, "position": 80, "lag": 12, "problem": None},
    }
    for path in ("totals/d?stale=true", "totals/d?partition=1&stale=true"):
        answer = bare.get(f"{STORES}/{path}")
        assert rows_of(answer) == [{"url": "d", "clicks": 7}]
        assert answer.json()["position"] == wanted
    page = bare.get(f"{STORES}/totals?partition=1&stale=true")
    assert rows_of(page) == [{"url": "d", "clicks": 7}]
    assert page.json()["positions"] == [wanted]
    whole = bare.get(f"{STORES}/totals?stale=true").json()
    assert [each["key"] for each in whole["rows"]] == ["a", "ab", "d"]
    assert [each["standby"] is None for each in whole["positions"]] == [True, False]
    assert whole["elsewhere"] == 0
    plain, stale = (bare.get(f"{STORES}/totals/a{query}") for query in ("", "?stale=true"))
    assert plain.content == stale.content


@pytest.mark.usefixtures("shown", "copied")
def test_a_copy_without_a_row_says_that_it_is_one(bare: Scene) -> None:
    """Status 404, as of an owner; windows that the copy lacks are no rows."""
    absent = next(each for each in "efghij" if partition_of(each.encode(), 2) == 1)
    _, message = problem(bare.get(f"{STORES}/totals/{absent}?stale=true"), 404)
    assert message.endswith("it would be in partition 1, of which a copy is here")
    answer = bare.get(f"{STORES}/minutes/{absent}?stale=true")
    assert rows_of(answer) == []
    assert answer.json()["position"]["standby"]["lag"] == 12


@pytest.mark.usefixtures("shown", "copied")
@pytest.mark.parametrize("said", ["", "stale=false"])
def test_a_copy_never_answers_as_if_it_were_the_owner(bare: Scene, said: str) -> None:
    """Without stale its rows are on no page, and its keys have no owner here."""
    for path in ("totals/d?", "totals/d?partition=1&", "totals?partition=1&", "minutes/d?"):
        assert problem(bare.get(f"{STORES}/{path}{said}"), 503)[0] == "not_owned"
    whole = bare.get(f"{STORES}/totals?{said}").json()
    assert [each["key"] for each in whole["rows"]] == ["a", "ab"]
    assert whole["elsewhere"] == 1


@pytest.mark.usefixtures("shown", "copied")
def test_a_restored_partition_is_503_also_where_a_copy_would_do(bare: Scene, kept: Kept) -> None:
    """The partition is held again, and nothing tells how far what is written of it is."""
    kept.held = {0, 1}
    kept.state.release(1)
    for path in ("totals/d?stale=true", "totals?partition=1&stale=true"):
        assert problem(bare.get(f"{STORES}/{path}"), 503)[0] == "restoring"


def test_a_question_without_an_owner_leads_to_a_copy_if_it_says_stale(
    bare: Scene, kept: Kept, shown: InboundKafkaChannel
) -> None:
    """Status 307 to a member that is warm for the partition, and 503 where none is."""
    other = in_memory_channel(
        Recorder(), bare.controller.broker, zookeeper=bare.controller.zookeeper, member="other"
    )
    with running(other):
        eventually(lambda: len(other.partitions()) == 1 == len(shown.partitions()))
        (here,) = (each.partition for each in shown.partitions())
        # it has given this one up, and none has taken it yet
        kept.held = set()
        name = FIRST if here == 0 else SECOND
        path = f"{STORES}/totals/{name}"
        for admin, warm, status in (
            ("https://other.example:9465", {here}, 307),
            ("https://other.example:9465", {1 - here}, 503),
            ("https://other.example:9465", None, 503),
            (None, {here}, 503),
        ):
            _publish(bare, admin, None if warm is None else frozenset(warm))
            found, message = problem(bare.get(f"{path}?stale=true"), status)
            assert found == ("held_elsewhere" if status == 307 else "not_owned")
            assert problem(bare.get(path), 503)[0] == "not_owned"
            if status == 307:
                assert f"events-{here}, of which member other has a copy" in message
                place = f"{admin}{path}?partition={here}&stale=true&led=1"
                assert bare.get(f"{path}?stale=true").headers["location"] == place


#: Keys that paths have another meaning for, or none.
STRANGE_KEYS = [
    b".",
    b"..",
    b"/",
    b"a/../b",
    b"%2F",
    b"",
    b"a\nb",
    b"?#&",
    b"\xff",
    "\u00e9".encode(),
]


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("key", STRANGE_KEYS)
def test_a_key_that_is_no_name_in_a_path_is_found_by_its_digits(
    bare: Scene, kept: Kept, key: bytes
) -> None:
    """The answer has the key as it is, or its digits where it is no text."""
    number = partition_of(key, 2)
    kept.commit(number, {b"totals/" + key: row(1_000, 4)})
    answer = bare.get(f"{STORES}/totals/{key.hex()}?hex=true")
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["rows"]
    assert (bytes.fromhex(found["key"]) if found["hex"] else found["key"].encode()) == key


@pytest.mark.usefixtures("shown")
def test_what_is_no_text_in_a_path_is_refused_and_not_taken_for_another_key(bare: Scene) -> None:
    """The answer names the way to ask for it."""
    answer = bare.get(f"{STORES}/totals/%FF")
    assert problem(answer, 400)[0] == "invalid_path"
    assert "hex=true" in answer.json()["next_step"]
    assert problem(bare.get(f"{STORES}/totals/xy?hex=true"), 422)[0] == "invalid_key"


@pytest.mark.usefixtures("shown")
def test_a_row_in_memory_is_answered_without_a_look_at_the_disk(bare: Scene, kept: Kept) -> None:
    """A row by key has no operator time, so none is looked for."""
    before = kept.store.cache_misses
    (found,) = StoreReads(bare.controller).rows_of_keys(StoreQuestion("shop", "totals"), ["a"])
    assert found is not None
    assert kept.store.cache_misses == before


@pytest.mark.usefixtures("shown")
def test_rows_without_an_owner_are_503(bare: Scene, kept: Kept) -> None:
    """The channel has given the partition up, and nobody else has it: ask again."""
    kept.held = {0}
    answer = bare.get(f"{STORES}/totals/d")
    assert problem(answer, 503)[0] == "not_owned"
    assert answer.headers["retry-after"] == "1"


def test_a_store_of_a_channel_that_is_not_run_here_is_421(
    bare: Scene, shown: InboundKafkaChannel
) -> None:
    """The plan has it; the answer names the channel."""
    bare.controller.channels["other"] = bare.controller.channels.pop("shop.events")
    answer = bare.get(f"{STORES}/totals/a")
    assert problem(answer, 421)[0] == "held_elsewhere"
    assert "channel shop.events, which this process does not run" in answer.json()["message"]
    del shown


def test_a_store_of_a_channel_that_is_not_open_yet_is_503(
    bare: Scene, shown: InboundKafkaChannel
) -> None:
    """During the start the configuration has the topology, and the answer is to ask again."""
    configured = {"shop.events": shown.config}
    bare.controller.config = bare.controller.config.model_copy(update={"channels": configured})
    bare.controller.channels.clear()
    answer = bare.get(f"{STORES}/totals/a")
    assert problem(answer, 503)[0] == "not_started"
    assert answer.headers["retry-after"] == "1"
    found = {each["name"]: each for each in bare.get(STORES).json()["stores"]}
    assert (found["totals"]["partitions"], found["totals"]["here"]) == (None, [])


@pytest.mark.usefixtures("shown")
def test_rows_take_the_token_also_on_loopback(bare: Scene) -> None:
    """They have what records brought; which stores there are takes none."""
    for path in ("totals", "totals/a", "totals/", "minutes/x/y", "totals/%0a"):
        assert bare.client.get(f"{STORES}/{path}").status_code == 401, path
    assert bare.client.get(STORES).status_code == 200


#: What stands in a question: texts of any kind, and such as some questions have.
_TEXTS = st.text(CHARACTERS, max_size=8) | st.sampled_from(
    ["a", '["a",2]', "0", "60000", "120000", "1970-01-01", "9" * 5_000, "0:", "1:00", "-1"]
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
@pytest.mark.usefixtures("shown")
def test_no_question_fails(bare: Scene, data: st.DataObject) -> None:
    """Each has an answer or a problem, whatever stands in it."""
    names = st.sampled_from(["totals", "minutes", "pairs", "both"])
    # what is no name of one part is another path
    store = data.draw(names | _TEXTS.filter(lambda text: text and "/" not in text))
    path = f"{STORES}/{quote(store, safe='')}"
    if data.draw(st.booleans()):
        path += f"/{quote(data.draw(_TEXTS), safe='')}"
    options = ["from", "to", "window", "prefix", "after", "limit", "partition", "stale"]
    chosen = data.draw(st.dictionaries(st.sampled_from(options), _TEXTS, max_size=3))
    answer = bare.client.get(path, headers=bare.trusted, params=chosen)
    assert answer.status_code in {200, 404, 422, 503}, answer.text
    if answer.is_error:
        Problem.model_validate_json(answer.content)

"""The client of rows and states: whom it asks, what it follows, and what it gives up for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from headrace import QuestionError, StateClient
from headrace.core.errors import ConfigError, UnreachableError
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.row import KeyRow
from headrace.keyed import at_event
from headrace.ops.admin.state_client import StandbyCopy
from tests.unit.ops.admin.scene import TOKEN
from tests.unit.ops.admin.test_state import kept, with_state
from tests.unit.ops.admin.test_stores import begin_of, row, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ops.admin.state_client import Key
    from tests.unit.ops.admin.scene import Scene
    from tests.unit.ops.admin.test_state import Kept

__all__ = ["kept", "shown"]

ONE, TWO = "http://one:1", "http://two:2"

#: A key of each of two partitions.
FIRST, SECOND = "a", "d"


def client_of(scene: Scene, token: str | None = TOKEN) -> StateClient:
    """Return a client of the scene's process, without a network."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = scene.client.request(
            request.method, str(request.url.raw_path, "ascii"), headers=dict(request.headers)
        )
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)

    return StateClient(
        ["http://localhost:9465"], token=token, transport=httpx.MockTransport(answer)
    )


@pytest.mark.usefixtures("shown")
def test_rows_and_windows_are_those_of_the_api(bare: Scene, kept: Kept) -> None:
    """Each with its times, partition and offsets; what is not there is None, or no window."""
    with client_of(bare) as client:
        totals, minutes = client.store("shop", "totals"), client.store("shop", "minutes")
        found = totals.get("a")
        assert found is not None
        assert (found.key, found.row) == ("a", {"url": "a", "clicks": 3})
        assert (found.partition, found.offsets, found.window) == (0, {"events": 5}, None)
        assert found.time == datetime(1970, 1, 1, 0, 1, 59, tzinfo=UTC)
        assert totals.get("b") is None
        first, second = minutes.windows("a")
        minute = [datetime(1970, 1, 1, 0, number, tzinfo=UTC) for number in (1, 2, 3)]
        assert [first.window, second.window] == [(minute[0], minute[1]), (minute[1], minute[2])]
        assert minutes.windows("a", until=minute[1]) == [first]
        assert minutes.windows("a", since=60_001) == [second]
        assert minutes.get("a") == second
        assert (minutes.windows("b"), minutes.get("b")) == ([], None)
        name = b'["a",2]'
        kept.commit(partition_of(name, 2), {b"pairs/" + name: row(1_000, 4)})
        pair = client.store("shop", "pairs").get(("a", 2))
        assert pair is not None
        assert pair.row == {"url": "a", "n": 2, "clicks": 4}


@pytest.mark.usefixtures("shown")
def test_all_rows_come_page_after_page(
    bare: Scene, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of all partitions are there, or those that a prefix or a window chooses."""
    monkeypatch.setattr("headrace.ops.admin.state_client._PAGE", 2)
    kept.commit(1, {b"totals/%d" % number: row(1, number) for number in range(5)})
    kept.commit(1, {f"minutes/{begin_of(120_000)}/d".encode(): row(121_000, 5)})
    kept.commit(1, {b"minutes:time": KeyRow(b"121000")})
    with client_of(bare) as client:
        found = [each.key for each in client.store("shop", "totals").rows()]
        assert found == ["a", "ab", "0", "1", "2", "3", "4", "d"]
        assert [each.key for each in client.store("shop", "totals").rows("a")] == ["a", "ab"]
        minutes = client.store("shop", "minutes").rows(window=120_000)
        assert [(each.key, each.row["clicks"]) for each in minutes] == [("a", 1), ("d", 5)]


@pytest.mark.usefixtures("shown")
def test_a_refusal_has_its_name_and_the_next_step(bare: Scene) -> None:
    """Questions that no member would answer are asked once; so is one without the token."""
    with client_of(bare) as client:
        with pytest.raises(QuestionError, match="there is no store total; did you mean") as raised:
            client.store("shop", "total").get("a")
        assert (raised.value.name, raised.value.value) == ("unknown_store", "total")
        with pytest.raises(QuestionError, match="has no windows") as raised:
            client.store("shop", "totals").windows("a", since=1)
        assert raised.value.name == "no_windows"
    with client_of(bare, None) as client, pytest.raises(QuestionError) as raised:
        client.store("shop", "totals").get("a")
    assert raised.value.name == "token_missing"


def test_a_state_of_a_keyed_channel_has_timers(bare: Scene, kept: Kept) -> None:
    """Keys are text, numbers or bytes; one without state is None."""
    kept.commit(0, {b"a": KeyRow.of(b'{"n":2}', {"quiet": at_event(61_000)})})
    kept.commit(0, {b"\xff": KeyRow(b"1"), b"12": KeyRow(b"3")})
    with with_state(bare, kept), client_of(bare) as client:
        channel = client.channel("member")
        found = channel.get("a")
        assert found is not None
        assert (found.row, found.partition, found.offsets) == ({"n": 2}, 0, {"events": 3})
        assert found.timers == {"quiet": datetime(1970, 1, 1, 0, 1, 1, tzinfo=UTC)}
        others = [channel.get(b"\xff"), channel.get(12), channel.get("b")]
        assert [each and each.row for each in others] == [1, 3, None]


@dataclass
class Members:
    """Two members in memory, each with the partitions that a test says, or dead."""

    owners: dict[int, str] = field(default_factory=lambda: {0: ONE, 1: TWO})
    dead: set[str] = field(default_factory=set)
    copies: set[str] = field(default_factory=set)
    refuses: Callable[[str, int], httpx.Response | None] = lambda *_: None
    asked: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer as the API does."""
        url = f"{request.url.scheme}://{request.url.netloc.decode()}"
        self.asked.append(url)
        self.tokens.add(request.headers.get("authorization"))
        if url in self.dead:
            raise httpx.ConnectError("refused", request=request)
        key = request.url.path.rpartition("/")[2]
        number = partition_of(key.encode(), 2)
        refusal = self.refuses(url, number)
        if refusal is not None:
            return refusal
        stale = request.url.params.get("stale") == "true" and url in self.copies
        if self.owners[number] != url and not stale:
            place = f"{self.owners[number]}{request.url.raw_path.decode()}"
            return refused(307, "held_elsewhere", Location=place)
        position: dict[str, Any] = {"partition": number, "offset": 1, "offsets": {"t": 1}}
        if self.owners[number] != url:
            standby = {"partition": number, "position": 8, "lag": 3, "problem": None}
            position |= {"offset": None, "offsets": {}, "standby": standby}
        document = {"key": key, "partition": number, "window": None, "time": None, "row": url}
        one = {**document, "hex": False, "timers": [], "problem": None}
        return httpx.Response(200, json={"partitions": 2, "position": position, "rows": [one]})

    def client(self, urls: tuple[str, ...] = (ONE, TWO), **options: Any) -> StateClient:
        """Return a client of them."""
        transport = httpx.MockTransport(self.answer)
        return StateClient(urls, token="t", transport=transport, **options)

    def who(self, client: StateClient, key: str) -> str:
        """Return which member answered for a key."""
        found = client.store("shop", "totals").get(key)
        assert found is not None
        return str(found.row)


def refused(status: int, name: str, **headers: str) -> httpx.Response:
    """Return a refusal as the API has it."""
    problem = {"error": name, "message": f"it is {name}", "value": None, "next_step": "wait"}
    return httpx.Response(status, json=problem, headers=headers)


def test_a_question_goes_to_the_member_that_had_the_partition_before() -> None:
    """The first one is led there; others of the partition go there at once."""
    members = Members()
    client = members.client()
    assert members.who(client, SECOND) == TWO
    assert members.asked == [ONE, TWO]
    members.asked.clear()
    others = [key for key in "efghijkl" if partition_of(key.encode(), 2) == 1]
    assert {members.who(client, key) for key in others} == {TWO}
    assert set(members.asked) == {TWO}
    assert members.tokens == {"Bearer t"}


def test_a_member_that_no_url_names_is_found_and_forgotten_with_its_end() -> None:
    """Members that are named are asked for what it had."""
    members = Members()
    client = members.client((ONE,))
    assert members.who(client, SECOND) == TWO
    members.dead.add(TWO)
    members.owners[1] = ONE
    assert members.who(client, SECOND) == ONE
    members.asked.clear()
    assert members.who(client, SECOND) == ONE
    assert members.asked == [ONE]


def test_a_partition_is_asked_for_again_until_it_is_there() -> None:
    """While it has no owner, is restored, or members lead to each other or to a dead one."""
    members, steps = Members(), list[str]()

    def refuse(url: str, number: int) -> httpx.Response | None:
        del number
        steps.append(url)
        match len(steps):
            case 1:
                return refused(503, "not_owned")
            case 2 | 3 | 4 | 5:
                other = TWO if url == ONE else ONE
                place = f"{other}/api/v1/topologies/shop/stores/totals/a"
                return refused(307, "held_elsewhere", Location=place)
            case 6:
                return refused(421, "held_elsewhere")
            case 7:
                return refused(503, "restoring")
        return None

    members.refuses = refuse
    assert members.who(members.client(), FIRST) == ONE
    assert len(steps) >= 8


def test_a_copy_answers_for_a_dead_owner_where_the_store_is_stale() -> None:
    """Rows have how far it is; the member is not taken for the owner, who is asked without it."""
    members = Members(copies={ONE})
    with members.client() as client:
        stale = client.store("shop", "totals", stale=True)
        found = stale.get(SECOND)
        assert found is not None
        assert (found.row, found.offsets, found.standby) == (ONE, {}, StandbyCopy(8, 3))
        assert members.who(client, SECOND) == TWO
        members.dead.add(TWO)
        found = stale.get(SECOND)
        assert found is not None
        assert found.row == ONE
        first = stale.get(FIRST)
        assert first is not None
        assert (first.row, first.standby) == (ONE, None)


def test_a_dead_owner_is_waited_for_until_another_has_its_partition() -> None:
    """Members lead to it for as long as they take it to live."""
    members = Members(dead={TWO})

    def refuse(url: str, number: int) -> httpx.Response | None:
        del url, number
        if members.asked.count(TWO) == 2:
            members.owners[1] = ONE
        return None

    members.refuses = refuse
    client = members.client()
    assert members.who(client, SECOND) == ONE
    assert members.asked.count(TWO) >= 2


@pytest.mark.parametrize("name", ["restoring", "not_owned", "unavailable"])
def test_a_partition_that_does_not_come_raises_its_last_refusal(name: str) -> None:
    """The name says why, after the time-out."""
    members = Members(refuses=lambda *_: refused(503, name))
    with pytest.raises(QuestionError, match="wait") as raised:
        members.who(members.client(timeout=0.1), FIRST)
    assert raised.value.name == name


def test_members_that_do_not_answer_are_named() -> None:
    """None of them is there; one that is no Headrace is not asked again."""
    members = Members(dead={ONE, TWO})
    with pytest.raises(UnreachableError, match="does not answer: refused"):
        members.who(members.client(timeout=0.1), FIRST)
    assert set(members.asked) == {ONE, TWO}
    for found in (httpx.Response(200, text="hi"), httpx.Response(502, text="hi")):
        members = Members(refuses=lambda *_, found=found: found)
        with pytest.raises(UnreachableError, match=r"one:1 answered 20|one:1 answered 502"):
            members.who(members.client(timeout=0.1), FIRST)
        assert members.asked == [ONE]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("http://two:2/x", "where the token could be read on the way"),
        ("", "leads to nowhere"),
        ("ftp://two/x", "leads to ftp://two/x"),
    ],
)
def test_the_token_goes_nowhere_that_it_could_be_read(place: str, said: str) -> None:
    """From https it is not led to http, nor to what is no address of an API."""
    members = Members(refuses=lambda *_: refused(307, "held_elsewhere", Location=place))
    with pytest.raises(UnreachableError, match=said):
        members.who(members.client(("https://one:1",)), FIRST)
    assert members.asked == ["https://one:1"]


def test_a_client_without_a_member_or_with_a_wrong_address_is_refused() -> None:
    """The error says what to name."""
    with pytest.raises(ConfigError, match="name one member at least"):
        StateClient([])
    with StateClient(["one:1"]) as client, pytest.raises(ConfigError, match="cannot be asked"):
        client.store("shop", "totals").get("a")
    with pytest.raises(ConfigError, match="cannot be used"):
        StateClient([ONE], ca_file="/nowhere/ca.pem")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "target"),
    [
        (".", "2e?hex=true"),
        ("..", "2e2e?hex=true"),
        ("a\nb", "610a62?hex=true"),
        (b"\xff", "ff?hex=true"),
        ("", ""),
        ("/", "%2F"),
        ("a/../b", "a%2F..%2Fb"),
        ("%2F", "%252F"),
        ("?#&", "%3F%23%26"),
        ("\u00e9", "%C3%A9"),
        (("a", 1), "%5B%22a%22%2C1%5D"),
    ],
)
def test_any_key_is_asked_for_as_it_is(key: Key, target: str) -> None:
    """Also one that an address has another meaning for, of stores and of channels."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        problem = {"error": "unknown_key", "message": "none", "value": "", "next_step": "none"}
        return httpx.Response(404, json=problem)

    transport = httpx.MockTransport(answer)
    with StateClient(["http://localhost:9465"], transport=transport) as client:
        assert client.store("shop", "totals").get(key) is None
        assert client.channel("orders").get(key) is None
    assert asked == [
        f"/api/v1/topologies/shop/stores/totals/{target}",
        f"/api/v1/channels/orders/state/{target}",
    ]

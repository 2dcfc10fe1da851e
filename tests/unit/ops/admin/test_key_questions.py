"""Questions for keys that come together, and are read together."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from headrace.ops.admin.key_questions import KeyQuestions
from headrace.ops.admin.stores import StoreQuestion
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Message, Receive, Scope, Send


class Reads:
    """Answers keys but for ``other``; a read takes until ``go_on`` says so."""

    def __init__(self) -> None:
        self.read: list[tuple[StoreQuestion, list[str]]] = []
        self.began, self.go_on = Event(), Event()

    def rows_of_keys(self, question: StoreQuestion, keys: Sequence[str]) -> list[str | None]:
        """Return an answer to each key."""
        self.read.append((question, list(keys)))
        self.began.set()
        assert self.go_on.wait(PATIENCE)
        if "broken" in keys:
            raise ValueError("it cannot be read")
        return [None if key == "other" else json.dumps([question.store, key]) for key in keys]


async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what is passed on."""
    del scope, receive
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"endpoint"})


async def asked(app: KeyQuestions, path: str, query: str = "", method: str = "GET") -> str:
    """Return the body of an answer."""
    heard: list[Message] = []

    async def send(message: Message) -> None:
        heard.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
    await app({**scope, "query_string": query.encode(), "headers": []}, receive, send)
    return b"".join(each.get("body", b"") for each in heard).decode()


STORE = "/api/v1/topologies/shop/stores/totals"


def test_questions_that_come_while_one_is_read_are_read_together() -> None:
    """Each gets the answer to its own key, and there are two reads in all."""
    reads = Reads()
    app = KeyQuestions(endpoint, reads)  # type: ignore[arg-type]  # a double of what it calls

    async def ask_all() -> list[str]:
        first = asyncio.create_task(asked(app, f"{STORE}/a"))
        await asyncio.to_thread(reads.began.wait, PATIENCE)
        others = [asyncio.create_task(asked(app, f"{STORE}/{key}")) for key in "bcd"]
        # they run to where they wait, in their order, before this goes on
        await asyncio.sleep(0)
        reads.go_on.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(ask_all()) == [f'["totals", "{key}"]' for key in "abcd"]
    assert [keys for _, keys in reads.read] == [["a"], ["b", "c", "d"]]


def test_no_read_has_more_questions_than_a_commit_may_wait_for() -> None:
    """Questions that wait are read in parts, in their order, and each has its own answer."""
    reads = Reads()
    reads.go_on.set()
    app = KeyQuestions(endpoint, reads)  # type: ignore[arg-type]  # a double of what it calls
    names = [str(number) for number in range(500)]

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(asked(app, f"{STORE}/{name}") for name in names))

    assert asyncio.run(ask_all()) == [f'["totals", "{name}"]' for name in names]
    assert [key for _, keys in reads.read for key in keys] == names
    assert max(len(keys) for _, keys in reads.read) == 200


def test_stores_and_bounds_are_read_apart() -> None:
    """A question with other bounds, or for another store, does not wait for the first."""
    reads = Reads()
    reads.go_on.set()
    app = KeyQuestions(endpoint, reads)  # type: ignore[arg-type]  # a double of what it calls

    async def ask_all() -> list[str]:
        questions = [
            asked(app, f"{STORE}/a"),
            asked(app, f"{STORE}/a", "from=1&to=2"),
            asked(app, f"{STORE}/a", "to=2&from=1&stale=true"),
            asked(app, STORE.replace("totals", "others") + "/a"),
        ]
        return await asyncio.gather(*questions)

    totals = ['["totals", "a"]'] * 3
    assert asyncio.run(ask_all()) == [*totals, '["others", "a"]']
    assert Counter(question for question, _ in reads.read) == {
        StoreQuestion("shop", "totals"): 1,
        StoreQuestion("shop", "totals", "1", "2"): 1,
        StoreQuestion("shop", "others"): 1,
    }


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [
        (f"{STORE}/other", "", "GET"),
        (f"{STORE}/a", "partition=1", "GET"),
        (f"{STORE}/a", "from=1&from=2", "GET"),
        (f"{STORE}/a", "stale=maybe", "GET"),
        (f"{STORE}/a", "", "POST"),
        (STORE, "", "GET"),
        ("/api/v1/status", "", "GET"),
    ],
)
def test_a_question_that_is_not_plain_goes_to_the_endpoint(
    path: str, query: str, method: str
) -> None:
    """So does one to which there is no plain answer."""
    reads = Reads()
    reads.go_on.set()
    app = KeyQuestions(endpoint, reads)  # type: ignore[arg-type]  # a double of what it calls
    assert asyncio.run(asked(app, path, query, method)) == "endpoint"


def test_an_error_reaches_all_who_were_read_together_and_nobody_after() -> None:
    """The next question is read again."""
    reads = Reads()
    reads.go_on.set()
    app = KeyQuestions(endpoint, reads)  # type: ignore[arg-type]  # a double of what it calls

    async def ask_all() -> tuple[list[Any], str]:
        both = [asked(app, f"{STORE}/{key}") for key in ("broken", "a")]
        failed: list[Any] = await asyncio.gather(*both, return_exceptions=True)
        return failed, await asked(app, f"{STORE}/a")

    failed, after = asyncio.run(ask_all())
    assert [type(each) for each in failed] == [ValueError, ValueError]
    assert after == '["totals", "a"]'

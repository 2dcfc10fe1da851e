"""Plain questions for keys, which are answered without the application and read together."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.ops.admin.auth import Rules
from headrace.ops.admin.key_questions import KeyQuestions
from headrace.ops.admin.stores import StoreQuestion
from tests.unit.channel.in_memory import eventually
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

TOKEN = "a-token-of-a-test-that-is-long-enough"

#: Seconds, unless a program says otherwise.
USUAL_INTERVAL = 0.005

STORE = "/api/v1/topologies/shop/stores/totals"

HEAD = f"Host: 127.0.0.1:9465\r\nAuthorization: Bearer {TOKEN}\r\n"


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


class Asked:
    """Questions to a double of the stores."""

    def __init__(self, *, waits: bool = False) -> None:
        self.reads = Reads()
        if not waits:
            self.reads.go_on.set()
        rules = Rules(TOKEN, open_reads=True, hosts=frozenset({"localhost"}))
        self.questions = KeyQuestions(self.reads, rules)  # type: ignore[arg-type]  # a double

    async def ask(
        self, target: str, head: str = HEAD, *, line: str = "GET {} HTTP/1.1", subject: str = ""
    ) -> str:
        """Return an answer, or which of the two ways of giving none it was."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        request = f"{line.format(target)}\r\n{head}\r\n".encode()
        if not self.questions.take(request, subject or None, future.set_result):
            return "not taken"
        found = await asyncio.wait_for(future, PATIENCE)
        return "given back" if found is None else found.decode()


def run(work: Callable[[], Coroutine[object, object, list[str]]]) -> list[str]:
    """Run questions in a loop of their own."""
    return asyncio.run(work())


def test_questions_that_come_while_one_is_read_are_read_together() -> None:
    """Each gets the answer to its own key, and there are two reads in all."""
    asked = Asked(waits=True)

    async def ask_all() -> list[str]:
        first = asyncio.create_task(asked.ask(f"{STORE}/a"))
        await asyncio.to_thread(asked.reads.began.wait, PATIENCE)
        others = [asyncio.create_task(asked.ask(f"{STORE}/{key}")) for key in "bcd"]
        # they run to where they wait, in their order, before this goes on
        await asyncio.sleep(0)
        asked.reads.go_on.set()
        return await asyncio.gather(first, *others)

    assert run(ask_all) == [f'["totals", "{key}"]' for key in "abcd"]
    assert [keys for _, keys in asked.reads.read] == [["a"], ["b", "c", "d"]]


def test_no_read_has_more_questions_than_a_commit_may_wait_for() -> None:
    """Questions that wait are read in parts, in their order, and each has its own answer."""
    asked = Asked()
    names = [str(number) for number in range(500)]

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(asked.ask(f"{STORE}/{name}") for name in names))

    assert run(ask_all) == [f'["totals", "{name}"]' for name in names]
    assert [key for _, keys in asked.reads.read for key in keys] == names
    assert max(len(keys) for _, keys in asked.reads.read) <= 200


def test_stores_and_bounds_are_read_apart() -> None:
    """A question with other bounds, or for another store, does not wait for the first."""
    asked = Asked()

    async def ask_all() -> list[str]:
        targets = [
            f"{STORE}/a",
            f"{STORE}/a?from=1&to=2",
            f"{STORE}/a?to=2&from=1&stale=true",
            STORE.replace("totals", "others") + "/a",
        ]
        return await asyncio.gather(*map(asked.ask, targets))

    totals = ['["totals", "a"]'] * 3
    assert run(ask_all) == [*totals, '["others", "a"]']
    assert Counter(question for question, _ in asked.reads.read).keys() == {
        StoreQuestion("shop", "totals"),
        StoreQuestion("shop", "totals", "1", "2"),
        StoreQuestion("shop", "others"),
    }


@pytest.mark.parametrize(
    ("path", "key"),
    [("a%20b", "a b"), ("a/b", "a/b"), ("a%2Fb", "a/b"), ("%C3%A9", "é"), ("%2E%2E", "..")],
)
def test_a_key_is_read_as_it_is_written_in_the_path(path: str, key: str) -> None:
    """Escaped characters in it are part of the key."""
    asked = Asked()

    async def ask_all() -> list[str]:
        return [await asked.ask(f"{STORE}/{path}")]

    assert json.loads(run(ask_all)[0]) == ["totals", key]


@pytest.mark.parametrize(
    ("target", "line", "head"),
    [
        (f"{STORE}/a?partition=1", "GET {} HTTP/1.1", HEAD),
        (f"{STORE}/a?from=1&from=2", "GET {} HTTP/1.1", HEAD),
        (f"{STORE}/a?stale=maybe", "GET {} HTTP/1.1", HEAD),
        (STORE, "GET {} HTTP/1.1", HEAD),
        (f"{STORE}/", "GET {} HTTP/1.1", HEAD),
        ("/api/v1/status", "GET {} HTTP/1.1", HEAD),
        (f"{STORE}/a", "POST {} HTTP/1.1", HEAD),
        (f"{STORE}/a", "GET {} HTTP/1.0", HEAD),
        (f"{STORE}/a", "GET {} HTTP/1.1", ""),
        (f"{STORE}/a", "GET {} HTTP/1.1", "Host: localhost\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD.replace(TOKEN, "another")),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD.replace("127.0.0.1", "evil.example")),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + "Host: localhost\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + "Content-Length: 3\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + "Transfer-Encoding: chunked\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + "Connection: close\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + "Origin: http://evil.example\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD + " folded\r\n"),
        (f"{STORE}/a", "GET {} HTTP/1.1", HEAD.replace("Host:", "Host :")),
    ],
)
def test_what_is_no_plain_question_is_not_taken(target: str, line: str, head: str) -> None:
    """Also after one with the same key that was: the application answers, or refuses."""
    asked = Asked()

    async def ask_all() -> list[str]:
        plain = await asked.ask(f"{STORE}/a")
        return [plain, await asked.ask(target, head, line=line)]

    assert run(ask_all) == ['["totals", "a"]', "not taken"]


def test_a_certificate_lets_in_as_a_token_does_and_its_head_alone_does_not() -> None:
    """The same head is looked at for each client's certificate."""
    asked, head = Asked(), "Host: localhost\r\n"

    async def ask_all() -> list[str]:
        return [await asked.ask(f"{STORE}/a", head, subject=name) for name in ("", "me", "")]

    assert run(ask_all) == ["not taken", '["totals", "a"]', "not taken"]


def test_the_endpoint_answers_where_there_is_no_plain_answer_or_a_read_fails() -> None:
    """All that are read with the failed one go back as well, the next one is read anew."""
    asked = Asked()

    async def ask_all() -> list[str]:
        both = await asyncio.gather(*(asked.ask(f"{STORE}/{key}") for key in ("broken", "a")))
        return [*both, await asked.ask(f"{STORE}/other"), await asked.ask(f"{STORE}/a")]

    with capture_logs() as logs:
        found = run(ask_all)
    assert found[0] == "given back"
    assert found[2:] == ["given back", '["totals", "a"]']
    assert [each["event"] for each in logs] == ["admin_rows_not_read"]


def test_threads_have_short_turns_while_questions_are_read() -> None:
    """Some moments after the last one they are as long as before."""
    # a thread of the test before may still wait for more
    eventually(lambda: sys.getswitchinterval() == USUAL_INTERVAL)
    asked = Asked(waits=True)

    async def ask_all() -> list[str]:
        first = asyncio.create_task(asked.ask(f"{STORE}/a"))
        await asyncio.to_thread(asked.reads.began.wait, PATIENCE)
        during = sys.getswitchinterval()
        asked.reads.go_on.set()
        await first
        return [str(during < USUAL_INTERVAL)]

    assert run(ask_all) == ["True"]
    eventually(lambda: sys.getswitchinterval() == USUAL_INTERVAL)

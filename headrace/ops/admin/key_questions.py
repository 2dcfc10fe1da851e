"""Plain questions for keys of stores, which are answered many times a second.

A program that asks thousands of times a second sends the same head each time, but for the key. Such
a request reaches no layer of the application: its head is compared with those that were looked at
before, and what waits is read together, so that a store is looked into once for all. Whatever else
a question is, or comes to, the endpoint answers.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from queue import Empty, Queue
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from headrace.ops.admin.key_paths import is_text
from headrace.ops.admin.models import ApiError
from headrace.ops.admin.page_files import ALWAYS
from headrace.ops.admin.stores import StoreQuestion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.ops.admin.auth import Rules
    from headrace.ops.admin.stores import StoreReads

log = structlog.get_logger(__name__)

_REQUEST = re.compile(
    rb"GET /api/v1/topologies/([\w.-]+)/stores/([\w.-]+)/([!-\"$->@-~]+)(?:\?([!-\"$-~]*))? "
    rb"HTTP/1\.1\r\n",
    re.ASCII,
)

#: A line of a head, and the names that say nothing of what is to be answered, but for who asks.
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~\w-]+):[ \t]*([\t -~]*)", re.ASCII)
_PLAIN_NAMES = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"connection",
        b"host",
        b"user-agent",
    }
)

#: Heads that are known to come from who may ask. More are looked at again.
_MOST_HEADS = 256

#: Questions that are read together: a commit waits for so many rows.
_AT_A_TIME = 200

#: Seconds that a thread waits for the next question for a store, so that none is begun for each.
_READ_ON = 0.2

#: Seconds that a thread computes at a time while questions are read. Python's own 5 ms are waited
#: for several times before a question is answered.
_SHORT_INTERVAL = 0.0005

#: Where an answer goes: its body, or None where the endpoint is to answer.
_Answer: TypeAlias = "Callable[[bytes | None], None]"


class KeyQuestions:
    """Answers plain questions for keys: ``PlainRequests``. For the loop's thread.

    Each store is read by one thread at a time, for all who ask for it with the same bounds, so
    that one that takes long holds up no questions but those that take as long.
    """

    head = b"content-type: application/json\r\n" + b"".join(
        f"{name.lower()}: {value}\r\n".encode()
        for name, value in {**ALWAYS, "Cache-Control": "no-store"}.items()
    )

    def __init__(self, reads: StoreReads, rules: Rules) -> None:
        self._reads = reads
        self._rules = rules
        self._heads: set[tuple[bytes, str | None]] = set()
        self._lock = Lock()
        self._waiting: dict[StoreQuestion, Queue[tuple[str, _Answer]]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def take(self, request: bytes, subject: str | None, answer: _Answer) -> bool:
        """Start answering a request, unless it is no plain question."""
        found = _REQUEST.match(request)
        if found is None:
            return False
        head = request[found.end() :]
        if (head, subject) not in self._heads and not self._admit(head, subject):
            return False
        topology, store, key, query = found.groups()
        question = _question_of(topology, store, query)
        if question is None or (b"%" in key and not is_text(key)):
            return False
        self._put(question, unquote(key.decode()), answer)
        return True

    def _admit(self, head: bytes, subject: str | None) -> bool:
        """Return whether a head lets in and asks for nothing but an answer."""
        fields: dict[bytes, bytes] = {}
        for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n"):
            found = _FIELD.fullmatch(line)
            if found is None or (name := found[1].lower()) in fields or name not in _PLAIN_NAMES:
                return False
            fields[name] = found[2].rstrip(b" \t")
        if fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return False
        headers = Headers(raw=list(fields.items()))
        with suppress(ApiError):
            self._rules.check_host(headers)
            if self._rules.identify(headers, subject) is not None:
                if len(self._heads) >= _MOST_HEADS:
                    self._heads.clear()
                self._heads.add((head, subject))
                return True
        return False

    def _put(self, question: StoreQuestion, key: str, answer: _Answer) -> None:
        with self._lock:
            waiting = self._waiting.get(question)
            if waiting is not None:
                waiting.put((key, answer))
                return
            waiting = self._waiting[question] = Queue()
            waiting.put((key, answer))
        loop = asyncio.get_running_loop()
        task = loop.create_task(run_in_threadpool(self._read, question, waiting, loop))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    def _read(
        self,
        question: StoreQuestion,
        waiting: Queue[tuple[str, _Answer]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Read those that wait, and then those that came meanwhile, until none comes."""
        with _SHORT_INTERVALS:
            self._read_on(question, waiting, loop)

    def _read_on(
        self,
        question: StoreQuestion,
        waiting: Queue[tuple[str, _Answer]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        patience = 0.0
        while True:
            taken: list[tuple[str, _Answer]] = []
            with suppress(Empty):
                taken.append(waiting.get(timeout=patience))
                while len(taken) < _AT_A_TIME:
                    taken.append(waiting.get_nowait())
            if not taken:
                with self._lock:
                    if waiting.empty():
                        # bounds may differ with each question
                        del self._waiting[question]
                        return
                continue
            bodies = self._read_once(question, [key for key, _ in taken])
            # of bounds that are asked for once, many would wait
            is_plain = question.since is None and question.until is None
            patience = _READ_ON if is_plain and any(bodies) else 0.0
            try:
                loop.call_soon_threadsafe(_deliver, taken, bodies)
            except RuntimeError:
                # the loop ended, and all connections with it
                return

    def _read_once(self, question: StoreQuestion, keys: Sequence[str]) -> list[bytes | None]:
        try:
            answers = self._reads.rows_of_keys(question, keys)
            return [None if each is None else each.encode() for each in answers]
        except Exception:
            log.exception("admin_rows_not_read", store=question.store)
            # the endpoint says why
            return [None] * len(keys)


def _deliver(taken: Sequence[tuple[str, _Answer]], bodies: Sequence[bytes | None]) -> None:
    for (_, answer), body in zip(taken, bodies, strict=True):
        answer(body)


class _ShortIntervals:
    """Has threads give way to each other sooner while it is entered, by any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entered = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(_SHORT_INTERVAL, self._usual))
            self._entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                sys.setswitchinterval(self._usual)


#: One for the process, which has one interval.
_SHORT_INTERVALS = _ShortIntervals()


def _question_of(topology: bytes, store: bytes, query: bytes | None) -> StoreQuestion | None:
    if query is None:
        return StoreQuestion(topology.decode(), store.decode())
    pairs = parse_qsl(query.decode(), keep_blank_values=True)
    said = dict(pairs)
    # the owner's rows are never stale: only where it is not here the endpoint looks for a copy
    if len(said) < len(pairs) or said.keys() - {"from", "to", "stale"}:
        return None
    if said.get("stale") not in {None, "true", "false"}:
        return None
    return StoreQuestion(topology.decode(), store.decode(), said.get("from"), said.get("to"))

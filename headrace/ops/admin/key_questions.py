"""Questions for keys of stores that come together are read together: a store is looked into once.

A program that asks thousands of times a second sends plain questions, for keys whose rows are here.
What such a question costs by itself, from the choice of the endpoint to a thread of the pool and
the store's view of one moment, is then paid once for all that wait. Whatever else a question is, or
comes to, the endpoint answers.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from fastapi import Response
from starlette.concurrency import run_in_threadpool

from headrace.ops.admin.stores import StoreQuestion

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.ops.admin.stores import StoreReads

_PATH = re.compile(r"/api/v1/topologies/([^/]+)/stores/([^/]+)/(.+)")

#: Questions that are read together: a commit waits for so many rows.
_AT_A_TIME = 200

#: Questions by key and future, which is None in the end where the endpoint is to answer.
_Waiting = list[tuple[str, asyncio.Future[str | None]]]


class KeyQuestions:
    """Answers plain questions for keys, and passes on everything else. For the loop's thread.

    Each store is read by one thread at a time, for all who ask for it with the same bounds, so
    that one that takes long holds up no questions but those that take as long.
    """

    def __init__(self, app: ASGIApp, reads: StoreReads) -> None:
        self._app = app
        self._reads = reads
        self._waiting: dict[StoreQuestion, _Waiting] = {}
        self._reading: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        asked = _key_asked_for(scope)
        answer = None if asked is None else await self._ask(*asked)
        if answer is None:
            await self._app(scope, receive, send)
            return
        await Response(answer, media_type="application/json")(scope, receive, send)

    async def _ask(self, question: StoreQuestion, key: str) -> str | None:
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if (waiting := self._waiting.get(question)) is not None:
            waiting.append((key, future))
        else:
            self._waiting[question] = [(key, future)]
            task = asyncio.create_task(self._read(question))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        return await future

    async def _read(self, question: StoreQuestion) -> None:
        """Read those that wait, and then those that came meanwhile, until none is left."""
        while taken := self._waiting[question][:_AT_A_TIME]:
            del self._waiting[question][:_AT_A_TIME]
            keys = [key for key, _ in taken]
            try:
                answers = await run_in_threadpool(self._reads.rows_of_keys, question, keys)
            except Exception as error:  # noqa: BLE001 - each of them tells it to who asked
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        del self._waiting[question]


def _key_asked_for(scope: Scope) -> tuple[StoreQuestion, str] | None:
    """Return the key that a request asks for, None where it is no plain question for one."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    found = _PATH.fullmatch(scope["path"])
    if found is None:
        return None
    topology, store, key = found.groups()
    if not scope["query_string"]:
        return StoreQuestion(topology, store), key
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    said = dict(pairs)
    # the owner's rows are never stale: only where it is not here the endpoint looks for a copy
    if len(said) < len(pairs) or said.keys() - {"from", "to", "stale"}:
        return None
    if said.get("stale") not in {None, "true", "false"}:
        return None
    return StoreQuestion(topology, store, said.get("from"), said.get("to")), key

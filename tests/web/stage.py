"""The real page in front of made-up processes."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.ops.admin.page_files import SafeHeaders, page_routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from tests.web.scenes import Process

#: Seconds until the server has to listen, or to have ended.
WAIT = 20.0


class Stage:
    """Serves the page and what ``process``, which may be replaced at any time, answers.

    ``asked`` has the paths of the API that were asked for, ``posted`` those that something was sent
    to, with who and what, and ``questions`` the queries to stores. ``token`` is what changes and
    rows take.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = ""
        self.asked: list[str] = []
        self.posted: list[tuple[str, Any]] = []
        self.questions: list[str] = []
        self.token = "the-token"

    def app(self) -> Starlette:
        """Return the application."""
        api = Route("/api/{path:path}", self._answer)
        changes = Route("/api/{path:path}", self._change, methods=["POST"])
        return Starlette(
            routes=[*page_routes(), changes, api], middleware=[Middleware(SafeHeaders)]
        )

    async def _change(self, request: Request) -> Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return JSONResponse({"message": "no such token"}, status_code=401)
        self.posted.append((request.url.path, await request.json()))
        return JSONResponse({})

    async def _answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if "/stores/" in request.url.path:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return JSONResponse({"message": "no such token"}, status_code=401)
            self.questions.append(str(request.url.query))
            status, body = self.process.rows[request.scope["path"]]
            return Response(body, status, media_type="application/json")
        return JSONResponse(self.process.answers()[request.url.path]())


@contextmanager
def serving(process: Process) -> Iterator[Stage]:
    """Serve on a free port of the loopback."""
    stage = Stage(process)
    settings = uvicorn.Config(stage.app(), log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stage.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = Thread(target=server.run, args=[[listening]], daemon=True)
        thread.start()
        try:
            assert wait_for(lambda: server.started, Deadline.after(WAIT))
            yield stage
        finally:
            server.should_exit = True
            thread.join(WAIT)

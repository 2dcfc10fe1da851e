"""The files of the status page, and the headers that keep browsers to them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where the files are served, but for the page itself, which is at the root.
FOLDER = "/page/"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: The page may load and ask what comes from where it came from, and nothing else; none frames it,
#: and no text becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

#: What every answer has.
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # kept, and asked for again each time: another version of Headrace has other files
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    etag: str


def page_routes() -> list[Route]:
    """Return what serves the page. Reads its files, once."""
    folder = files("headrace.ops.admin").joinpath("page")
    found = {each.name: each.read_bytes() for each in folder.iterdir()}
    return [
        _route("/" if name == "index.html" else f"{FOLDER}{name}", name, body)
        for name, body in sorted(found.items())
        if PurePath(name).suffix in _TYPES
    ]


def _route(path: str, name: str, body: bytes) -> Route:
    file = _File(body, _TYPES[PurePath(name).suffix], f'"{sha256(body).hexdigest()[:32]}"')

    async def answer(request: Request) -> Response:
        headers = {**_PAGE, "ETag": file.etag}
        known = request.headers.get("if-none-match", "")
        if file.etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return Route(path, answer, methods=["GET"], include_in_schema=False)


class SafeHeaders:
    """Adds to every answer what browsers need to know; what has no rule of its own is not kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, adding)

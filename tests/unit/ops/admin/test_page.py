"""The status page's files and what is served with them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from tests.unit.channel.in_memory import filled_broker
from tests.unit.ops.admin.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = files("headrace.ops.admin").joinpath("page")

FILES = {each.name: each.read_text(encoding="utf-8") for each in PAGE.iterdir()}

#: A file that another one loads, as these few kinds of files write it.
_LOADS = re.compile(r'(?:src|href)="(/page/[^"]+)"|(?:from|import) "\./([^"]+)"')


def _loaded(text: str) -> Iterator[str]:
    for absolute, relative in _LOADS.findall(text):
        yield absolute or f"/page/{relative}"


def test_the_page_is_at_the_root_with_a_strict_policy(bare: Scene) -> None:
    """Only the page's own files load, no site can frame it, and it is revalidated."""
    answer = bare.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_a_file_that_the_browser_has_is_not_sent_again(bare: Scene) -> None:
    """The tag of a file is answered with 304, another one with the file."""
    tag = bare.client.get("/page/page.css").headers["etag"]
    known = bare.client.get("/page/page.css", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    assert bare.client.get("/page/page.css", headers={"If-None-Match": '"x"'}).status_code == 200


def test_every_file_of_the_page_is_served(bare: Scene) -> None:
    """A file that the page or a module names is served with the type that browsers insist on."""
    wanted = {path for text in FILES.values() for path in _loaded(text)}
    assert {"/page/main.js", "/page/page.css", "/page/icon.svg", "/page/dom.js"} <= wanted
    for path in wanted:
        answer = bare.client.get(path)
        assert answer.status_code == 200, path
        if path.endswith(".js"):
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"


def test_the_page_needs_no_token_where_its_data_do() -> None:
    """On an address of the network the page comes without the token, and asks for it."""
    scene = Scene(filled_broker(), open_reads=False)
    for path in ("/", "/page/main.js", "/page/page.css"):
        assert scene.client.get(path).status_code == 200
    for path in ("/api/v1/status", "/api/v1/events", "/api/v1/history"):
        assert scene.client.get(path).status_code == 401


def test_a_path_outside_of_the_page_is_not_found(bare: Scene) -> None:
    """No file outside of the folder is served, and none can be written."""
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/none.js", "/page/"):
        assert bare.client.get(path).status_code == 404, path
    assert bare.post("/").status_code == 405


def test_answers_of_the_api_are_not_cached(scene: Scene) -> None:
    """Answers are true for a moment only, and some are secret."""
    for path in ("/api/v1/status", "/api/v1/config", "/health/ready", "/metrics", "/nothing"):
        assert scene.get(path).headers["cache-control"] == "no-store"
        assert scene.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_names_another_host_or_makes_markup_of_text(name: str) -> None:
    """Addresses are those of drawings' name space only; text never becomes markup or code."""
    text = FILES[name].replace("http://www.w3.org/2000/svg", "")
    assert re.search(r"(https?:)?//[a-z]+[.:]", text) is None
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "style=",
    ):
        assert word not in text


def test_the_page_is_small() -> None:
    """All of it together stays what a phone loads in a moment."""
    assert sum(len(text.encode()) for text in FILES.values()) < 125_000

"""Requests that no client means to send, against the OpenAPI document."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ops.admin.models import Problem
from tests.unit.ops.admin.scene import TOKEN
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from tests.unit.ops.admin.scene import Scene

#: What must not be in any answer: the token, and what the configuration keeps as a secret.
SECRETS = (TOKEN, "hush")

#: Refusals that come before a request reaches what the document describes.
AT_THE_DOOR = {"400", "401", "403", "404", "405", "408", "411", "413", "415", "421", "422"}

#: What JSON has of them.
FLOATS = st.floats(allow_nan=False, allow_infinity=False)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)

#: Values that some field takes, so that requests get further than the check of their form. No
#: request may wait: nothing it could wait for would come.
USUAL: Mapping[str, list[Any]] = {
    "topic": ["events", "other"],
    "partition": [0, 1, 2],
    "offset": [0, 5, 10, 2**63 - 1],
    "mode": ["hold", "drain"],
    "to": ["earliest", "latest", "offset:3", "shift-by:-1", "datetime:2024-01-01T00:00:00Z"],
    "until": ["2100-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"],
    "for_s": [0.001, 1e9],
    "level": ["debug", "error"],
    "logger": ["headrace.none"],
    "reason": ["why", "\x1b[31m"],
    "pause_reason": ["operator", "downstream", "misfit", "error"],
    "by": ["ann", ""],
}
WAITS = st.sampled_from([0, 0.001, -1, 1e9, None, "5", True])

NAMES = st.just("member") | st.text(CHARACTERS, min_size=1, max_size=5)


def _value(name: str) -> st.SearchStrategy[Any]:
    if name == "wait_s":
        return WAITS
    return st.sampled_from(USUAL.get(name, [None])) | ANYTHING


@st.composite
def requests(draw: st.DrawFn, document: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Draw a method, a path of the document and what is sent."""
    path = draw(st.sampled_from(sorted(document["paths"])))
    method = draw(st.sampled_from([*sorted(document["paths"][path]), "get", "post", "delete"]))
    body = document["paths"][path].get(method, {}).get("requestBody")
    options: dict[str, Any] = {}
    if body is not None:
        options["json"] = draw(ANYTHING | _bodies(document, body))
        if draw(st.integers(0, 5)) == 0:
            options = {"content": draw(st.binary(max_size=30) | st.just(b"[" * 5000))}
    if path.endswith("/tap"):
        # one without an end goes on for a minute
        options["params"] = {"for_s": 0}
    return method.upper(), path.replace("{name}", _quoted(draw(NAMES))), options


def _bodies(document: Mapping[str, Any], body: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    schema = body["content"]["application/json"]["schema"]
    name = json.dumps(schema).partition("#/components/schemas/")[2].partition('"')[0]
    properties = list(document["components"]["schemas"][name]["properties"])
    fields = {each: _value(each) for each in properties}
    return st.fixed_dictionaries({}, optional={**fields, "unknown": ANYTHING})


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02x}" for byte in name.encode())


def _check(document: Mapping[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    status = str(answer.status_code)
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    assert status in AT_THE_DOOR | operation.get("responses", {}).keys()
    assert not any(secret in answer.text for secret in SECRETS)
    if answer.status_code >= HTTPStatus.BAD_REQUEST and "health" not in path:
        Problem.model_validate_json(answer.content)


@pytest.fixture(scope="session")
def document(stage: Scene) -> Any:
    """The OpenAPI document."""
    return stage.client.get("/openapi.json").json()


QUICK = settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@QUICK
@given(st.data())
def test_no_request_fails_or_tells_a_secret(
    scene: Scene, document: Any, data: st.DataObject
) -> None:
    """Every answer is one that the document has, and none is a 500."""
    method, path, options = data.draw(requests(document))
    answer = scene.client.request(method, path, headers=scene.trusted, **options)
    _check(document, method, _template(document, path), answer)


def _template(document: Mapping[str, Any], path: str) -> str:
    """Return the path of the document that a drawn one was made of."""
    parts = path.split("/")
    found: str = next(
        each
        for each in document["paths"]
        if len(each.split("/")) == len(parts)
        and all(a in {b, "{name}"} for a, b in zip(each.split("/"), parts, strict=True))
    )
    return found


@QUICK
@given(st.data())
def test_no_request_without_the_token_changes_anything(
    scene: Scene, document: Any, data: st.DataObject
) -> None:
    """Without it, or with another one, changes are refused and tell nothing."""
    method, path, options = data.draw(requests(document))
    shown = data.draw(st.sampled_from([{}, {"Authorization": "Bearer x"}, {"Authorization": ""}]))
    answer = scene.client.request(method, path, headers=shown, **options)
    _check(document, method, _template(document, path), answer)
    assert method != "POST" or answer.is_error
    assert scene.stops == []
    assert scene.controller.channels["member"].pauses == ()

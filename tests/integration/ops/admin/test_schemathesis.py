"""The admin API as schemathesis sees it: what its OpenAPI document allows, and what it does not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from headrace.testing import running
from tests.unit.channel.in_memory import filled_broker
from tests.unit.ops.admin.scene import BASE, Scene
from tests.unit.ops.admin.test_fuzz import SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

schemathesis: Any = pytest.importorskip(
    "schemathesis", reason="schemathesis is not installed; make test-all installs it"
)

schemathesis.checks.load_all_checks()
CHECKS: Any = schemathesis.checks.CHECKS
REJECTION = "negative_data_rejection"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Seconds that a request may wait for what never comes.
_LONGEST_WAIT = 0.01

MANY = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Scene]:
    """A process with one running channel, of which nothing is shown without the token."""
    scene = Scene(filled_broker(), open_reads=False)
    with running(scene.controller.add()):
        yield scene


def _operations(scene: Scene) -> list[Any]:
    schema = schemathesis.openapi.from_dict(scene.get("/openapi.json").json())
    schema.app = scene.client.app
    schema.config.update(base_url=BASE)
    return [result.ok() for result in schema.get_all_operations()]


def _hurried(case: Any) -> Any:
    """Keep a request from waiting, and point many of them at a channel that exists."""
    name = case.path_parameters.get("name", "") if case.path_parameters else ""
    if isinstance(name, str) and len(name) % 3 == 1:
        case.path_parameters["name"] = "member"
    if case.path.endswith("/tap"):
        wanted = (case.query or {}).get("for_s", 1.0)
        usual = not isinstance(wanted, str) or wanted.replace(".", "").isdecimal()
        case.query = {**(case.query or {}), **({"for_s": 0} if usual else {})}
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), (int, float)):
        case.body["wait_s"] = min(case.body["wait_s"], _LONGEST_WAIT)
    return case


def _run(operation: Any, mode: str, check: Callable[[Any], None]) -> None:
    """Try many requests of an operation; of some there is none that the document forbids."""
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    def once(case: Any) -> None:
        check(case)

    draw: Any = given(strategy)
    many: Any = MANY(draw(once))
    with suppress(Unsatisfiable):
        many()


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_conforms_to_the_document(guarded: Scene, mode: str) -> None:
    """Valid and invalid requests get statuses, headers and bodies as described, and no secret."""
    # what goes with what, a schema cannot say; and what is forbidden may be the header or the wait
    # that is replaced here, or a parameter of the query that nobody asks for
    left_out = [CHECKS.get_one(name) for name in ("positive_data_acceptance", REJECTION)]
    for operation in _operations(guarded):

        def check(case: Any) -> None:
            guarded.process.beat()
            response = _hurried(case).call(headers=guarded.trusted)
            case.validate_response(response, excluded_checks=left_out)
            assert not any(secret in response.text for secret in SECRETS)

        _run(operation, mode, check)


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_nothing_is_told_without_the_token(guarded: Scene, mode: str) -> None:
    """Without it everything but health is refused, and nothing changes."""
    channel = guarded.controller.channels["member"]
    before = channel.pauses, channel.state, tuple(guarded.stops)
    for operation in _operations(guarded):
        is_health = operation.path.startswith("/health")

        def check(case: Any, is_health: bool = is_health) -> None:
            guarded.process.beat()
            response = _hurried(case).call()
            assert is_health or 400 <= response.status_code < 500
            assert not any(secret in response.text for secret in SECRETS)

        _run(operation, mode, check)
    assert (channel.pauses, channel.state, tuple(guarded.stops)) == before

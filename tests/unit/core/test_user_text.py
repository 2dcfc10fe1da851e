"""Users' errors and values are described, whatever their own code does meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from headrace.core.errors import HeadraceError, PoisonRecordError, RetryableError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.user_text import (
    describe_error,
    describe_value,
    kind_of,
    kinds_of,
    message_of,
    plain_error,
    plain_text,
    trace_of,
)
from headrace.extensions.keyed.phases import UNKNOWN, PhaseReader
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Phases
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from headrace.testing.keyed import KeyedTest
from tests.mute_errors import WAYS, Mute, MuteExit
from tests.unit.channel.in_memory import P0, committed, values
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from headrace.core.records import Assignment, Batch


def raised(error: BaseException) -> BaseException:
    """Return an error with a traceback."""

    def fail() -> None:
        raise error

    try:
        fail()
    except BaseException as found:  # noqa: BLE001 - it is what is asked for
        return found
    raise AssertionError("it was raised")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [Mute, MuteExit], ids=["exception", "exit"])
def test_an_error_whose_text_raises_is_described(kind: Any, how: type[BaseException]) -> None:
    """The type's name is found without calling code of its class."""
    error = raised(kind(how))
    name = kind_of(error)
    assert kinds_of(error)[0] == name
    assert not {"object", "Exception", "BaseException"} & set(kinds_of(error)[1:])
    assert name == type.__dict__["__name__"].__get__(kind)
    assert describe_error(error) == f"{name}: (its __str__ raises {how.__name__})"
    assert message_of(error).startswith("(its __str__ raises")
    assert "in fail" in trace_of(error)


@pytest.mark.parametrize("how", WAYS)
def test_a_value_whose_repr_raises_is_described(how: type[BaseException]) -> None:
    """A value inside of a list is described, too."""
    assert describe_value(Mute(how)).startswith("a Mute, whose __repr__ raises")
    assert describe_value([Mute(how)]).startswith("a list, whose __repr__ raises")
    assert describe_value("x" * 1000) == f"'{'x' * 47} … {'x' * 47}'"


def test_a_text_is_bounded_and_can_be_written() -> None:
    """Also where it is of a type of its own."""
    assert plain_text("\ud800é") == "?é"
    assert len(plain_text("x" * 10_000, 100)) <= 100
    assert plain_text("short", 100) == "short"
    assert describe_error(ValueError("\udfff")) == "ValueError: ?"
    assert describe_error(ValueError()) == "ValueError"


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [Mute, MuteExit], ids=["exception", "exit"])
def test_an_error_that_cannot_be_shown_is_stood_in_for(kind: Any, how: type[BaseException]) -> None:
    """With its traceback, and as retryable as it was; the others stay what they are."""
    error = raised(kind(how))
    found = plain_error(error)
    assert isinstance(found, HeadraceError)
    assert str(found) == describe_error(error)
    assert found.__traceback__ is error.__traceback__
    usual = raised(ValueError("as usual"))
    assert plain_error(usual) is usual
    usual.__cause__ = raised(kind(how))
    assert plain_error(usual) is usual
    assert usual.__cause__ is None
    assert isinstance(plain_error(SadError()), RetryableError)


class SadError(RetryableError):
    """A retryable error without a text."""

    def __str__(self) -> str:
        raise ValueError("sad")


# --- where users' code is called ----------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("names", ["headrace", "connect"])
def test_a_reducer_s_error_that_cannot_be_shown_is_poison(
    how: type[BaseException], names: Any
) -> None:
    """With letters of any kind of headers; its neighbours count."""

    def fails(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        if facts[0].value:
            raise Mute(how)
        return (state or 0) + 1, [], {}

    letters = LetterHeaders(names, "group")
    settings = FoldSettings(outputs=("out",), failing="quarantine", letters=letters)
    test = KeyedTest(fails, settings)
    test.send(("a", 0, 1), ("a", 1, 2), ("b", 0, 3))
    (letter,) = test.dead_letters
    assert any(b"its __str__ raises" in (data or b"") for _, data in letter.headers)
    assert (test.state("a"), test.state("b")) == (1, 1)
    with pytest.raises(PoisonRecordError, match="its __str__ raises"):
        KeyedTest(fails).send(("a", 1, 1))


def test_a_reducer_that_exits_is_poison() -> None:
    """A reducer that calls ``sys.exit()`` does not end the process."""

    def leaves(key: str, state: Any, facts: list[Any], now: int) -> Any:
        raise SystemExit(f"{key} {state} {facts[0].value} {now}")

    test = KeyedTest(leaves, FoldSettings(outputs=("out",), failing="dead_letter"))
    test.send(("a", 1, 1))
    said = dict(test.dead_letters[0].headers)["headrace.message"] or b""
    assert said.startswith(b"SystemExit: a None 1")


@pytest.mark.parametrize("how", WAYS)
def test_a_phase_that_fails_so_is_unknown(how: type[BaseException]) -> None:
    """A commit does not fail for what is only counted."""

    def of(state: Any) -> Any:
        raise Mute(how) from ValueError(state)

    found = PhaseReader("group", Phases(of, ("one",)), json.loads)(KeyRow(b"1"))
    assert found is not None
    assert found.name == UNKNOWN


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [Mute, MuteExit], ids=["exception", "exit"])
def test_a_channel_outlives_an_error_that_cannot_be_shown(
    kind: Any, how: type[BaseException]
) -> None:
    """Raised by a batch, or in the callback that is told of it, or once it was processed."""
    broker = InMemoryBroker()
    broker.create_topic(P0.topic, 2)
    broker.produce(P0, *values(5))
    left = [1]

    def answer(batch: Batch) -> BatchResponse:
        del batch
        if left:
            left.pop()
            raise kind(how)
        return BatchResponse.advance()

    def on_error(error: BaseException) -> None:
        assert "its __str__ raises" in str(error)
        raise kind(how)

    recorder = Recorder(answer, on_error=on_error)
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
    assert recorder.delivered(0) == [(0, 5, 1), (0, 5, 2)]


class Asked(Recorder):
    """Fails once in the callback of that name; a batch fails until it is passed over."""

    def __init__(self, error: BaseException, callback: str) -> None:
        super().__init__(self._answer)
        self.stored[0] = 2
        self._error, self._callback = error, callback
        self.left = 1

    def _answer(self, batch: Batch) -> BatchResponse:
        del batch
        if self._callback == "pass_over":
            raise ValueError("not this one")
        return BatchResponse.advance()

    def _fail(self, callback: str) -> None:
        if callback == self._callback and self.left:
            self.left -= 1
            raise self._error

    @override
    def stored_offset(self, assignment: Assignment) -> int | None:
        self._fail("stored_offset")
        return super().stored_offset(assignment)

    @override
    def stored_leader_epoch(self, assignment: Assignment) -> int | None:
        self._fail("stored_leader_epoch")
        return super().stored_leader_epoch(assignment)

    @override
    def pass_over(self, batch: Batch) -> None:
        self._fail("pass_over")
        super().pass_over(batch)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [Mute, MuteExit], ids=["exception", "exit"])
@pytest.mark.parametrize("callback", ["stored_offset", "stored_leader_epoch", "pass_over"])
def test_a_channel_outlives_such_an_error_of_a_sink_s_offsets(
    kind: Any, how: type[BaseException], callback: str
) -> None:
    """Raised where a start asks for them, or a batch is passed over: it is tried again."""
    broker = InMemoryBroker()
    broker.create_topic(P0.topic, 2)
    broker.produce(P0, *values(5))
    recorder = Asked(kind(how), callback)
    chosen: dict[str, Any] = {
        "retry": {"attempts": 1, "backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    with running(in_memory_channel(recorder, broker, **chosen)):
        assert committed(broker, P0, 5)
    assert recorder.left == 0

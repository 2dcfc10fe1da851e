from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Config, diff, load, show
from headrace.config.show import document
from headrace.core.errors import ConfigError
from tests.unit.config.test_any_value import ANYTHING, places
from tests.unit.config.test_secrets import EVERYWHERE, HIDDEN
from tests.unit.config.test_show import FULL
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.errors import Steps

#: What the ring of the unit tests has time for, and what `make test-all` has.
QUICK = settings(settings.get_profile("headrace"), max_examples=6)
FEW = settings(settings.get_profile("headrace"), max_examples=2)
MORE = settings(settings.get_profile("headrace"), max_examples=5_000)

#: A secret that is no name of anything: names of topics and such are shown by design.
PASSWORD = "hunter 2!"

#: What YAML gives a meaning, and what has none that anybody could want.
PIECES = st.sampled_from(
    [
        *("\n", "\n  ", "\n    ", " ", "\t", ": ", "- ", "? ", ", ", "[", "]", "{", "}", "#"),
        *("&a ", "*a", "&b ", "*b", "<<: ", "<<: *a", "<<: [*a, *b]", "=", "~", "---\n", "...\n"),
        *(
            "!!binary ",
            "!!int ",
            "!!float ",
            "!!str ",
            "!!map ",
            "!!set ",
            "!!omap ",
            "!!python/name:os.system ",
            "!x ",
        ),
        *("|\n  ", ">-\n  ", "'", '"', '"\\ud800"', '"\\0"', '"\\x1b[31m"', "%YAML 1.1\n", "\\"),
        *("0x" + "f" * 5_000, "9" * 5_000, "1e999", ".inf", "-.inf", ".nan", "0o17", "1:59:59"),
        *(
            "yes",
            "null",
            "2024-01-01",
            "\uff11\uff12",
            "\xb2",
            "\ufeff",
            "\u2028",
            "\x85",
            "\u202e",
            "é",
        ),
        *("${", "${X}", "${X:-y}", "${file:x}", "${file:/dev/null}", "$${"),
        *("channels", "kafka", "properties", "processor", "type: custom", "options", "sink: noop"),
    ]
)


def attempt(text: str, secret: str = HIDDEN) -> list[str]:
    """Load a file with ``text`` and return its problems as a user sees them.

    A configuration that loads can be shown, as text and as JSON, and does not differ from itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret").write_text(secret, encoding="utf-8")
        path = Path(folder) / "headrace.yaml"
        path.write_bytes(text.encode())
        environ = {"HOME": "/home/me", "PASSWORD": secret}
        try:
            config = load(path, environ)
        except ConfigError as error:
            return _told(error.problems)
        assert diff(config, load(path, environ)) == ()
        _show(config)
    return []


def _told(problems: list[str]) -> list[str]:
    assert problems
    assert all(len(problem.encode().splitlines()) == 1 for problem in problems)
    return problems


def _show(config: Config) -> None:
    assert yaml.safe_load(show(config))
    assert json.dumps(document(config), allow_nan=False).encode()
    assert repr(config)


# --- any text at all --------------------------------------------------------------------------

TEXTS = st.text(CHARACTERS, max_size=60) | st.lists(
    PIECES | st.text(CHARACTERS, max_size=3), max_size=25
).map("".join)


@QUICK
@given(TEXTS)
def test_any_text_loads_or_is_refused(text: str) -> None:
    """A file with any text is a configuration, or gives one-line sentences."""
    attempt(text)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw a valid file of which one to three parts were replaced, repeated or taken away."""
    text = draw(st.sampled_from([FULL, EVERYWHERE]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text) - 1))
        end = min(len(text), start + draw(st.integers(0, 12)))
        put = draw(PIECES | st.just("") | st.just(text[start:end] * 2) | st.text(CHARACTERS))
        text = text[:start] + put + text[end:]
    return text


@QUICK
@given(damaged())
def test_a_damaged_file_loads_or_is_refused(text: str) -> None:
    """A slip of the hand in a valid file gives another configuration or one-line sentences."""
    attempt(text)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", [TEXTS, damaged()], ids=["any text", "damaged files"])
def test_many_more_texts(strategy: st.SearchStrategy[str]) -> None:
    """The slow run draws far more texts than the two tests above."""

    def check(text: str) -> None:
        attempt(text)

    MORE(given(strategy)(check))()


# --- what is too much -------------------------------------------------------------------------


@FEW
@given(
    st.sampled_from([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("!!seq [", "]")]),
    st.integers(1, 800),
    st.sampled_from(["x: ", "kafka: {properties: {a: ", "channels: {c: {processor: {options: "]),
)
def test_any_depth_loads_or_is_refused(brackets: tuple[str, str], depth: int, start: str) -> None:
    """Nesting of any depth ends in a sentence, wherever it begins."""
    end = "}" * start.count("{")
    attempt(f"{start}{brackets[0] * depth}1{brackets[1] * depth}{end}\n")


@FEW
@given(
    st.sampled_from(["[{}]", "{{<<: [{}]}}", "{{k: [{}]}}"]),
    st.integers(2, 9),
    st.integers(2, 40),
)
def test_aliases_cannot_multiply(link: str, width: int, length: int) -> None:
    """A chain of aliases that stands for more than any file has is refused, and soon."""
    lines = ["x0: &x0 {k: 1}"]
    for number in range(1, length):
        aliases = ", ".join([f"*x{number - 1}"] * width)
        lines.append(f"x{number}: &x{number} {link.format(aliases)}")
    assert attempt("\n".join(lines))


@QUICK
@given(
    st.sampled_from(list(places(yaml.safe_load(FULL)))),
    st.sampled_from(["{}", "0x{}", "-{}", "0b{}", "1:{}", "{}e{}", "{}.{}", ".{}", "{}s", "{}MiB"]),
    st.sampled_from([3, 20, 400, 5_000]),
)
def test_any_number_anywhere_loads_or_is_refused(place: Steps, form: str, digits: int) -> None:
    """A number of any length, of each kind that YAML knows, loads or is refused."""
    number = form.replace("{}", "1" * digits)
    attempt(with_value(FULL, place, "number-of-mine").replace("number-of-mine", number))


# --- secrets ----------------------------------------------------------------------------------


def with_value(text: str, place: Steps, value: object) -> str:
    """Return a file with another value in one place."""

    def put(inner: Any, step: str | int) -> None:
        inner[step] = value

    return _changed(text, place, put)


def _changed(text: str, place: Steps, change: Callable[[Any, Any], None]) -> str:
    values: Any = copy.deepcopy(yaml.safe_load(text))
    inner = values
    for step in place[:-1]:
        inner = inner[step]
    change(inner, place[-1])
    return yaml.safe_dump(values)


def _leave_out(inner: Any, step: Any) -> None:
    del inner[step]


def _rename(inner: Any, step: Any) -> None:
    if isinstance(inner, dict):
        inner[f"{step}x"] = inner.pop(step)


def _wrap(inner: Any, step: Any) -> None:
    inner[step] = [inner[step]]


def _nest(inner: Any, step: Any) -> None:
    inner[step] = {"inside": inner[step]}


PLACES = st.sampled_from(list(places(yaml.safe_load(EVERYWHERE))))


@QUICK
@given(PLACES, st.sampled_from([_leave_out, _rename, _wrap, _nest]))
def test_no_mistake_around_a_secret_shows_it(place: Steps, mistake: Any) -> None:
    """Keys left out, misspelt or in a wrong shape: no sentence about them quotes a secret."""
    assert HIDDEN not in "".join(attempt(_changed(EVERYWHERE, place, mistake)))


@QUICK
@given(PLACES, ANYTHING)
def test_no_other_mistake_shows_a_secret(place: Steps, value: object) -> None:
    """No sentence quotes a secret, with any other mistake in the file."""
    assert HIDDEN not in "".join(attempt(with_value(EVERYWHERE, place, value)))


@QUICK
@given(
    st.sampled_from(list(places(yaml.safe_load(FULL)))),
    st.sampled_from(
        ["${PASSWORD}", "x${PASSWORD}", "${file:secret}", "${X:-${PASSWORD}}", "${PASSWORD}s"]
    ),
)
def test_a_misplaced_reference_does_not_show_its_secret(place: Steps, text: str) -> None:
    """A reference to a secret can stand anywhere; no sentence has what it expands to."""
    assert PASSWORD not in "".join(attempt(with_value(FULL, place, text), PASSWORD))

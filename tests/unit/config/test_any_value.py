from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import load, show
from headrace.core.errors import ConfigError
from tests.unit.config.test_show import FULL
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.errors import Steps

VALUES: dict[str, Any] = yaml.safe_load(FULL)


def places(value: Any, at: Steps = ()) -> Iterator[Steps]:
    """Yield the steps to each place below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for step, item in items:
        yield (*at, step)
        if isinstance(item, (dict, list)):
            yield from places(item, (*at, step))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=8)
WORDS = st.sampled_from(["spark", "static", "a:b", "5s", "1MiB", "${X}", "${file:x}", "type"])
ANYTHING = st.recursive(
    LEAVES | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


def _problems(path: Path) -> list[str]:
    try:
        assert yaml.safe_load(show(load(path, {"HOME": "/home/me"})))
    except ConfigError as error:
        return error.problems
    return []


@given(st.sampled_from(list(places(VALUES))), ANYTHING)
def test_any_value_anywhere_loads_or_is_refused(place: Steps, value: object) -> None:
    """A file with any value in one place loads and shows, or gives one-line sentences."""
    values: Any = copy.deepcopy(VALUES)
    inner = values
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headrace.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        problems = _problems(path)
    assert all(len(problem.splitlines()) == 1 for problem in problems)

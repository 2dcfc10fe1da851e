from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from headrace.core.errors import ImportPathError
from headrace.extensions.spark.reducer import load_reducer, send_by_value
from headrace.keyed import count

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODULE = """
THRESHOLD = 3
def reduce(df, batch):
    return df
def reduce_by_key(df):
    return df
class Reduce:
    def __call__(self, df, batch):
        return df
with_state = Reduce()
"""


def _by_value() -> set[str]:
    listed: Callable[[], set[str]] = cloudpickle.list_registry_pickle_by_value
    return set(listed())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package ``made_up`` with the module ``jobs``, on the import path."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "jobs.py").write_text(_MODULE)
    (folder / "broken.py").write_text("1 / 0")
    (folder / "lacking.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_up"


def test_a_reducer_is_found_by_its_path(package: str) -> None:
    """A function or a callable object of two arguments loads."""
    assert load_reducer(f"{package}.jobs:reduce")("frame", "batch") == "frame"  # type: ignore[arg-type,comparison-overlap]
    assert callable(load_reducer(f"{package}.jobs:with_state"))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("jobs.reduce", "is not of the form package.module:"),
        ("nowhere.jobs:reduce", "no module 'nowhere'"),
        ("made_up.nowhere:reduce", "no module 'made_up.nowhere'"),
        ("made_up.lacking:reduce", "imports 'not_there_at_all', which is not installed"),
        ("made_up.broken:reduce", "ZeroDivisionError"),
        ("made_up.jobs:reduc", "did you mean made_up.jobs:reduce"),
        ("made_up.jobs:THRESHOLD", "is a int"),
        ("made_up.jobs:reduce_by_key", r"takes \(df\); it is called with \(df, batch\)"),
    ],
)
@pytest.mark.usefixtures("package")
def test_a_path_that_does_not_lead_to_a_reducer(path: str, says: str) -> None:
    """Each way in which a path can be wrong has a message that says so."""
    with pytest.raises(ImportPathError, match=says):
        load_reducer(path)


def test_the_whole_package_is_sent_by_value(package: str) -> None:
    """Not the module alone but its top-level package is registered, helpers included."""
    reducer = load_reducer(f"{package}.jobs:reduce")

    send_by_value(reducer)

    assert package in _by_value()


def test_a_reducer_of_the_main_program_needs_no_registration() -> None:
    """A function of ``__main__`` is pickled by value anyway."""

    def reduce(df: object, batch: object) -> object:
        return df, batch

    reduce.__module__ = "__main__"
    before = _by_value()

    send_by_value(reduce)

    assert _by_value() == before


def test_a_reducer_of_headrace_goes_by_reference() -> None:
    """The workers have Headrace; by value, each job would carry all of it."""
    send_by_value(count)
    assert "headrace" not in _by_value()

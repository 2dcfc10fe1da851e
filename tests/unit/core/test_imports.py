"""Import paths: found, or a sentence that says what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ImportPathError
from headrace.core.imports import load_callable, load_factory, make

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
NUMBER = 3
def send(record): ...
def no_arguments(): ...
def made(a, *, b=2): return a / b
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put three modules on the import path: a good, a broken and a dependent one."""
    (tmp_path / "good_code.py").write_text(MODULE)
    (tmp_path / "broken_code.py").write_text("1 / 0")
    (tmp_path / "needy_code.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_callable_is_found() -> None:
    """package.module:name gives the object itself."""
    assert load_callable("good_code:send", "record").__name__ == "send"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("good_code", "not of the form package.module:name"),
        (":send", "not of the form package.module:name"),
        ("absent_code:send", "no module 'absent_code' on the import path"),
        ("good_code:sedn", "has no 'sedn'; did you mean good_code:send?"),
        ("god_code:send", "did you mean good_code:send?"),
        ("good_code:NUMBER", "is a int, which cannot be called"),
        ("good_code:no_arguments", r"takes \(\); it is called with \(record\)"),
        ("broken_code:send", "ZeroDivisionError"),
        ("needy_code:send", "imports 'not_installed_here', which is not installed"),
    ],
)
def test_an_unusable_import_path_is_explained(path: str, words: str) -> None:
    """Each mistake names the path and the next step."""
    with pytest.raises(ImportPathError, match=words):
        load_callable(path, "record")


def test_options_are_given_by_name() -> None:
    """The result of the factory is returned."""
    assert make("good_code:made", {"b": 3, "a": 12}) == 4


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        (
            "good_code:made",
            {"a": 1, "c": 2},
            r"takes \(a, \*, b=2\), and the options are a, c: .*'c'",
        ),
        ("good_code:made", {}, "the options are none: missing a required argument: 'a'"),
        ("good_code:maed", {}, "did you mean good_code:made?"),
    ],
)
def test_options_that_are_not_taken_are_named(
    path: str, options: dict[str, int], words: str
) -> None:
    """Before the factory is called: what it takes, what it is given, and what is wrong."""
    with pytest.raises(ImportPathError, match=words):
        load_factory(path, options)


def test_values_of_options_are_not_repeated() -> None:
    """They may be secrets; the names and the factory's own error are enough."""
    with pytest.raises(
        ImportPathError, match=r"with options \['a', 'b'\] failed: ZeroDivisionError"
    ):
        make("good_code:made", {"a": 4711, "b": 0})

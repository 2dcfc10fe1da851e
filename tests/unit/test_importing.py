"""Import paths: found, or a sentence that says what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ImportPathError
from headrace.importing import load_callable

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
NUMBER = 3
def send(record): ...
def no_arguments(): ...
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
        ("good_code:sedn", "has no 'sedn'; did you mean send?"),
        ("good_code:NUMBER", "is a int, which cannot be called"),
        ("good_code:no_arguments", r"takes \(\); it is called with \(record\)"),
        ("broken_code:send", "ZeroDivisionError"),
        ("needy_code:send", "imports 'not_installed_here', which is not installed"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(path: str, words: str) -> None:
    """Each mistake names the path and the next step."""
    with pytest.raises(ImportPathError, match=words):
        load_callable(path, "record")

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ChangeKind, ChannelConfig
from headrace.controller.code import CodeBook, import_paths
from headrace.core.errors import ImportPathError
from headrace.core.imports import load_callable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "code_of_a_test"


class Folder:
    """A package of a module ``jobs``, which calls a helper in another module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PACKAGE
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        self.helper("one")
        self.jobs("from code_of_a_test.helpers import helper\n\ndef work(_):\n    return helper()")

    def jobs(self, text: str) -> None:
        """Write the module that channels name."""
        (self.folder / "jobs.py").write_text(text, encoding="utf-8")

    def helper(self, answer: str) -> None:
        """Write the helper."""
        text = f"def helper():\n    return {answer!r}"
        (self.folder / "helpers.py").write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """The package on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Folder(tmp_path)
    for name in tuple(sys.modules):
        if name.partition(".")[0] == PACKAGE:
            del sys.modules[name]


def channel(*, reload: bool = True, path: str = f"{PACKAGE}.jobs:work") -> ChannelConfig:
    """Return a channel with a function of the package."""
    values: dict[str, Any] = {
        "topics": ["events"],
        "group": "group",
        "processor": {"type": "simple", "reload": reload},
        "sink": path,
    }
    return ChannelConfig.model_validate(values)


def build(book: CodeBook, name: str = "main", **options: Any) -> Any:
    """Import a channel's function, as building its processor does, and return its answer."""
    config = channel(**options)
    (path,) = import_paths(config)
    function = load_callable(path)
    book.note(name, config)
    return function(None)


def test_a_changed_helper_is_imported_afresh(folder: Folder) -> None:
    """Also within a second, with a text of the same length; before that nothing is different."""
    book = CodeBook()
    assert build(book) == "one"
    assert book.change("main") is None
    folder.helper("two")
    change = book.change("main")
    assert change is not None
    assert (change.path, change.kind) == ("channels.main.processor.code", ChangeKind.CODE)
    assert build(book) == "one"
    book.forget("main")
    assert build(book) == "two"
    assert book.change("main") is None


def test_code_that_cannot_be_imported_leaves_the_former_modules(folder: Folder) -> None:
    """They are those that running code knows, and the change stays one until it is mended."""
    book = CodeBook()
    build(book)
    jobs = sys.modules[f"{PACKAGE}.jobs"]
    folder.jobs("raise ValueError('no')")
    former = book.forget("main")
    with pytest.raises(ImportPathError, match="ValueError: no"):
        build(book)
    book.restore(former)
    assert sys.modules[f"{PACKAGE}.jobs"] is jobs
    assert book.change("main") is not None
    folder.jobs("def work(_):\n    return 'mended'")
    book.forget("main")
    assert build(book) == "mended"


def test_two_channels_of_a_package_share_one_import(folder: Folder) -> None:
    """The second one finds what the first one had imported; each has to be built anew."""
    book = CodeBook()
    build(book, "a")
    build(book, "b")
    folder.helper("two")
    book.forget("a")
    assert build(book, "a") == "two"
    helpers = sys.modules[f"{PACKAGE}.helpers"]
    assert book.change("a") is None
    assert book.change("b") is not None
    book.forget("b")
    assert build(book, "b") == "two"
    assert sys.modules[f"{PACKAGE}.helpers"] is helpers
    assert book.change("b") is None


def test_relative_imports_in_a_subpackage_are_followed(folder: Folder) -> None:
    """A module further down is imported afresh with all of its package, also what is above it."""
    deep = folder.folder / "deep" / "deeper"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").touch()
    (deep / "__init__.py").touch()
    text = "from ... import helpers\nfrom .near import near\n\n"
    (deep / "jobs.py").write_text(text + "def work(_):\n    return helpers.helper(), near()")
    (deep / "near.py").write_text("def near():\n    return 'near'")
    book, path = CodeBook(), f"{PACKAGE}.deep.deeper.jobs:work"
    assert build(book, path=path) == ("one", "near")
    folder.helper("two")
    (deep / "near.py").write_text("def near():\n    return 'far!'")
    assert book.change("main") is not None
    book.forget("main")
    assert build(book, path=path) == ("two", "far!")


def test_a_folder_without_init_is_followed_like_a_package(folder: Folder) -> None:
    """A forgotten __init__ is common: neighbouring modules count, by any import."""
    (folder.folder / "__init__.py").unlink()
    folder.jobs("from . import helpers\n\ndef work(_):\n    return helpers.helper()")
    book = CodeBook()
    assert build(book) == "one"
    folder.helper("two")
    assert book.change("main") is not None
    book.forget("main")
    assert build(book) == "two"


def test_modules_of_others_in_a_namespace_stay(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder with the channel's code is imported again."""
    (folder.folder / "__init__.py").unlink()
    folder.jobs("from . import helpers, others\n\ndef work(_):\n    return helpers.helper()")
    elsewhere = tmp_path / "elsewhere" / PACKAGE
    elsewhere.mkdir(parents=True)
    (elsewhere / "others.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    book = CodeBook()
    assert build(book) == "one"
    others, helpers = (sys.modules[f"{PACKAGE}.{name}"] for name in ("others", "helpers"))
    assert {path.parent for path in book.files()} == {folder.folder}
    folder.helper("two")
    former = book.forget("main")
    assert build(book) == "two"
    assert sys.modules[f"{PACKAGE}.others"] is others
    assert sys.modules[PACKAGE].helpers is not helpers
    book.restore(former)
    assert sys.modules[PACKAGE].helpers is sys.modules[f"{PACKAGE}.helpers"] is helpers


def test_a_module_that_is_added_counts(folder: Folder) -> None:
    """A missing module may be written after the one that imports it."""
    book = CodeBook()
    build(book)
    (folder.folder / "more.py").touch()
    assert book.change("main") is not None


def test_code_is_followed_only_where_that_is_wanted(folder: Folder) -> None:
    """Without ``reload`` no file is watched, and of our own package only the module named."""
    book = CodeBook()
    build(book, reload=False)
    folder.helper("two")
    assert book.change("main") is None
    assert book.files() == {}
    book.note("own", channel(path="headrace.core.imports:load_callable"))
    assert {path.name for path in book.files()} == {"imports.py"}


@pytest.mark.usefixtures("folder")
def test_the_sink_s_package_is_followed_as_the_reducer_s(tmp_path: Path) -> None:
    """Each is a change, is imported again by itself, and can be restored."""
    (tmp_path / "sink_of_a_test.py").write_text("def make():\n    return 'one'", encoding="utf-8")
    config = ChannelConfig.model_validate(
        {
            "topics": ["events"],
            "group": "group",
            "processor": {"type": "arrow", "reducer": f"{PACKAGE}.jobs:work", "reload": True},
            "sink": {"type": "custom", "factory": "sink_of_a_test:make"},
        }
    )
    work, make = map(load_callable, import_paths(config))
    book = CodeBook()
    book.note("main", config)
    assert {path.name for path in book.files()} == {
        "__init__.py",
        "jobs.py",
        "helpers.py",
        "sink_of_a_test.py",
    }
    (tmp_path / "sink_of_a_test.py").write_text("def make():\n    return 'two'", encoding="utf-8")
    assert book.change("main") is not None
    former = book.forget("main")
    found = [load_callable(path) for path in import_paths(config)]
    assert (found[0], found[1]()) == (work, "two")
    book.restore(former)
    assert [load_callable(path) for path in import_paths(config)] == [work, make]
    del sys.modules["sink_of_a_test"]


_CUSTOM_SINK = {"type": "custom", "factory": "c:d"}


@pytest.mark.parametrize(
    ("processor", "sink", "paths"),
    [
        ({"type": "spark", "reducer": "a:b"}, "noop", ("a:b",)),
        ({"type": "spark", "sql": "select 1"}, "noop", ()),
        ({"type": "spark", "sql": "select 1", "reload": True}, _CUSTOM_SINK, ("c:d",)),
        ({"type": "spark", "arrow": "a:b", "result": "a INT"}, "noop", ("a:b",)),
        ({"type": "arrow", "reducer": "a:b"}, _CUSTOM_SINK, ("a:b", "c:d")),
        (
            {"type": "arrow", "reducer": "a:b"},
            {"type": "several", "outputs": {"x": _CUSTOM_SINK, "y": "noop"}},
            ("a:b", "c:d"),
        ),
        (
            {"type": "arrow", "reducer": "a:b", "decode": "e:f", "schema": "a INT"},
            _CUSTOM_SINK,
            ("a:b", "e:f", "c:d"),
        ),
        ({"type": "custom", "factory": "a:b"}, None, ("a:b",)),
        ({"type": "simple"}, "a:b", ("a:b",)),
    ],
)
def test_each_channel_says_where_its_code_is(
    processor: dict[str, Any], sink: Any, paths: tuple[str, ...]
) -> None:
    """The paths are those of the reducer, the function, and the factories."""
    values = {"topics": ["t"], "group": "g", "processor": processor, "sink": sink}
    assert import_paths(ChannelConfig.model_validate(values)) == paths

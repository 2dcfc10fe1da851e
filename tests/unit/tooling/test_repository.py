from __future__ import annotations

import ast
import itertools
import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).parents[3]
_LOCKS = sorted((_ROOT / "requirements").glob("*.lock"))
_PEERS = sorted((_ROOT / "benchmarks" / "peers" / "locks").glob("*.lock"))

#: Words that a page has at most.
MOST_WORDS_OF_CHANGES = 600


def _sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((_ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("lock", [*_LOCKS, *_PEERS], ids=lambda path: path.name)
def test_a_lock_file_pins_everything_and_names_no_place(lock: Path) -> None:
    """Every requirement has one version and hashes; no address and no path stands in the file."""
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert str(Path.home()) not in text
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_every_purpose_of_the_set_up_has_its_lock() -> None:
    """There is a lock file for each purpose, and no other."""
    purposes = ["bench", "build", "check", "dist", "docs", "image", "run", "slim"]
    purposes += ["test-all", "test"]
    assert [path.stem for path in _LOCKS] == purposes


def test_no_simple_queue_is_waited_on_with_a_time_out() -> None:
    """The wait may never end after a wake-up without an item at the time-out."""
    waiting = [
        path.name
        for path in _sources("headrace")
        if re.search(r"SimpleQueue[\[(]", text := path.read_text(encoding="utf-8"))
        and re.search(r"\.get\((?:timeout=|True|block=)", text)
    ]
    assert waiting == []


def test_every_test_says_what_it_asserts() -> None:
    """Each test function carries a docstring."""
    silent = [
        f"{path.relative_to(_ROOT)}:{node.lineno}"
        for path in _sources("tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_every_public_method_is_described() -> None:
    """A method says what it does, unless a base class or a protocol of the class says it."""
    known: dict[str, list[ast.ClassDef]] = {}
    for path in _sources("headrace"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                known.setdefault(node.name, []).append(node)
    protocols = [each for same in known.values() for each in same if "Protocol" in _bases(each)]
    silent = [
        f"{name}.{method}"
        for name, same in known.items()
        for each in same
        if not name.startswith("_")
        for method in _methods(each, described=False) - _inherited(each, known, protocols)
        if not method.startswith("_")
    ]
    assert silent == []


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def _methods(node: ast.ClassDef, *, described: bool) -> set[str]:
    """Return the methods that have a docstring, or those that have none."""
    return {
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef)
        and not any(ast.unparse(decorator) == "overload" for decorator in each.decorator_list)
        and (ast.get_docstring(each) is not None) is described
    }


def _inherited(
    node: ast.ClassDef, known: dict[str, list[ast.ClassDef]], protocols: list[ast.ClassDef]
) -> set[str]:
    """Return the methods that bases describe, and protocols of which the class has all methods."""
    bases = [each for name in _bases(node) for each in known.get(name, [])]
    own = _methods(node, described=True) | _methods(node, described=False)
    found = set().union(
        *(_methods(each, described=True) | _inherited(each, known, protocols) for each in bases)
    )
    for each in protocols:
        described = _methods(each, described=True)
        if described <= own | found:
            found |= described
    return found


def test_the_makefile_has_at_most_a_dozen_targets_each_with_help() -> None:
    """The commands fit on a page, and make help describes every one."""
    text = (_ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE)
    assert len(targets) <= 12
    assert re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE) == targets


def test_the_ci_script_can_be_executed() -> None:
    """The script of the continuous integration has its executable bit."""
    assert os.access(_ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("file", sorted((_ROOT / "examples").rglob("headrace.yaml")), ids=str)
def test_an_example_names_its_schema_for_editors(file: Path) -> None:
    """All of them the same one, which its page says how to write."""
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / named).resolve() == _ROOT / "examples" / "headrace.schema.json"


def test_each_dependency_is_bounded_by_the_tested_version() -> None:
    """Each dependency has an upper bound, and the version that the tests have is within bounds."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = map(Requirement, [*project["dependencies"], *itertools.chain(*extras)])
    locked = "".join(lock.read_text(encoding="utf-8") for lock in _LOCKS)
    for each in wanted:
        name = canonicalize_name(each.name)
        if name in {"headrace", "typing-extensions"}:
            continue
        assert any(part.operator in {"<", "=="} for part in each.specifier), name
        versions = set(re.findall(rf"^{name}==([^ ]+)", locked, re.MULTILINE))
        assert versions, name
        assert set(each.specifier.filter(versions)) == versions, name


def test_the_changelog_has_one_page() -> None:
    """Pages of the documentation say what there is; a merge that brings an old list back fails."""
    text = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS_OF_CHANGES

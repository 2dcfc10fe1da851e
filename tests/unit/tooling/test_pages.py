"""The documentation against the code: what needs no server. tests/pages.py says what is what."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml

from headrace.cli import app
from headrace.config import load
from tests.pages import EXECUTED, KINDS, ROOT, Block, blocks, pages
from tests.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCKS = blocks()

#: What the first word of a command may be: no block without a language may hold any of these.
_COMMANDS = re.compile(
    r"(\$ |((headrace|make|python3?|pip|curl|systemctl|docker|kubectl) |kill -))"
)

#: The least that a channel needs, for fragments.
_CHANNEL: dict[str, Any] = {
    "topics": ["flights"],
    "group": "statistics",
    "processor": {"type": "spark", "reducer": "reducers:reduce"},
}

_ENVIRONMENT = {
    "HOME": "/home/me",
    "KAFKA": "localhost:9092",
    "KAFKA_KEY": "key",
    "KAFKA_SECRET": "secret",
    "ZOOKEEPER": "localhost:2181",
}

#: A function, method, class or constant as pages name it: its file, below the repository or below
#: headrace/, and its name in there.
_NAMED = re.compile(r"`([\w/]+\.py)::([\w.]+)`")

#: A file in a folder as pages name it by itself, likewise.
_FILE = re.compile(r"`([\w.-]+/[\w./-]+\.py)`")

#: What tests/README.md names every test of: folders, and what a file says where only some count.
_LISTED = ("tests/chaos", "tests/integration/outages", "tests/web")

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def _of(language: str, *kinds: str) -> list[Block]:
    return [b for b in _BLOCKS if b.language == language and b.kind in kinds]


def test_every_mark_is_known_and_every_exception_has_a_reason() -> None:
    """A comment with a spelling mistake would leave a block out."""
    unknown = [str(block) for block in _BLOCKS if block.kind not in KINDS]
    assert not unknown
    assert not [str(b) for b in _BLOCKS if b.kind in {"not run", "file"} and not b.detail]


def test_few_blocks_are_left_out() -> None:
    """All but a few of the blocks that could be executed are."""
    could = [block for block in _BLOCKS if block.language in EXECUTED]
    left_out = [str(block) for block in could if block.kind == "not run"]
    assert len(left_out) <= len(could) / 3, left_out


def test_blocks_for_people_hold_no_commands() -> None:
    """A command is in a block that is executed, or that says why it is not."""
    silent = [b for b in _BLOCKS if b.language not in EXECUTED and b.page != "docs/commands.md"]
    held = [str(b) for b in silent if any(map(_COMMANDS.match, b.text.splitlines()))]
    assert not held


@pytest.mark.parametrize("block", [b for b in _BLOCKS if b.language == "json"], ids=str)
def test_json_is_json(block: Block) -> None:
    """Each shown block can be parsed."""
    json.loads(block.text)


def _documents(block: Block) -> Iterator[dict[str, Any]]:
    """Yield the configurations that a block stands for."""
    found = yaml.safe_load(block.text)
    if block.kind == "channel":
        sink = {} if "custom" in str(found.get("processor")) else {"sink": "noop"}
        yield {"channels": {"flights": {**_CHANNEL, **sink, **found}}}
    elif block.kind == "sections":
        least = {"channels": {"flights": {**_CHANNEL, "sink": "noop"}}}
        yield {**least, **found}
    else:
        whole = found.keys() & {"channels", "topologies"}
        assert whole, "a part of a configuration: say of which (tests/pages.py)"
        yield found


@pytest.mark.parametrize("block", _of("yaml", "", "file", "channel", "sections"), ids=str)
def test_configurations_can_be_used(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one is loaded as a file is, fragments with the least around them."""
    # code of topologies is imported: that of this page, and of no other
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for each in (b for b in _BLOCKS if b.page == block.page and b.detail.endswith(".py")):
        (tmp_path / each.detail).write_text(each.text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, each.detail.removesuffix(".py"), raising=False)
    for document in _documents(block):
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        assert load(path, _ENVIRONMENT).channels


@pytest.mark.parametrize("block", [b for b in _BLOCKS if b.language == "python"], ids=str)
def test_programs_can_be_compiled(block: Block) -> None:
    """Also those that are not run."""
    compile(block.text, str(block), "exec")


def _command_lines() -> list[tuple[str, str]]:
    shells = [b for b in _BLOCKS if b.language in {"console", "bash"}]
    return [
        (f"{block}", part.strip())
        for block in shells
        for command in block.commands
        for part in re.split(r"\||&&|\$\(|\)", command)
        if part.strip().startswith("headrace ")
    ]


@pytest.mark.parametrize(("where", "line"), _command_lines())
def test_commands_and_options_exist(where: str, line: str) -> None:
    """Each use of headrace in a block, also in those that are not run, names what there is."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{where}: {line} names no command"
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= known, f"{where}: {line}"


def test_every_page_is_in_the_site() -> None:
    """The navigation has each page once, and no other."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = list(_leaves(yaml.safe_load(text)["nav"]))
    assert sorted(listed) == sorted(there)


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _leaves(inner)


def _anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as the site makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in heads}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Pages link to files and headings that exist; the site's pages to none outside of it."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    wrong = []
    for match in _LINK.finditer(text):
        target, anchor = match["target"], match["anchor"]
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        outside = page.is_relative_to(ROOT / "docs") and not there.is_relative_to(ROOT / "docs")
        headless = anchor and there.suffix == ".md" and anchor[1:] not in _anchors(there)
        if outside or not there.exists() or headless:
            wrong.append(match[0])
    assert not wrong


def test_generated_pages_are_up_to_date() -> None:
    """The references of commands, exit codes, fields and metrics are what the code gives."""
    for name, text in script("reference").pages().items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == text, "run: python scripts/reference.py"


def _named_in(page: Path) -> set[tuple[str, str]]:
    return set(_NAMED.findall(page.read_text(encoding="utf-8")))


def _found(file: str) -> list[Path]:
    return [each for each in (ROOT / file, ROOT / "headrace" / file) if each.exists()]


def _source(file: str) -> str:
    found = _found(file)
    return found[0].read_text(encoding="utf-8") if found else ""


def _names_of(body: list[ast.stmt], below: str = "") -> Iterator[str]:
    """Yield the names that a file or a class defines, those in its classes behind a dot."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield f"{below}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _names_of(node.body, f"{node.name}.")
        if isinstance(node, ast.Assign):
            yield from (
                f"{below}{target.id}" for target in node.targets if isinstance(target, ast.Name)
            )


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_pages_name_exists(page: Path) -> None:
    """Each `file.py::name` on a page is a function, a method, a class or a test."""
    missing = []
    for file, name in sorted(_named_in(page)):
        if name not in set(_names_of(ast.parse(_source(file)).body)):
            missing.append(f"{file}::{name}")
    assert not missing, "named on the page, and not in the code: rename it on the page as well"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page: Path) -> None:
    """Also a file that is named without a name in it, as `folder/file.py`."""
    named = _FILE.findall(page.read_text(encoding="utf-8"))
    assert [file for file in named if not _found(file)] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_follows_a_blank_line(page: Path) -> None:
    """Glued to a paragraph it is no table on the site."""
    in_block, before, glued = False, "", []
    for line in map(str.strip, page.read_text(encoding="utf-8").splitlines()):
        in_block ^= line.startswith("```")
        if not in_block and line.startswith("|") and before and not before.startswith("|"):
            glued.append(line)
        before = line
    assert glued == []


def _tests_to_list() -> Iterator[tuple[str, str]]:
    """Yield the tests of faults and properties that the list has to have, as it names them."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                is_property = any("given(" in ast.unparse(each) for each in node.decorator_list)
                if is_property or "killed_at_every" in node.name or file.startswith(_LISTED):
                    yield file, node.name
            elif isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".TestCase"):
                yield file, ast.unparse(node.targets[0])


def test_the_list_of_faults_and_properties_is_complete() -> None:
    """tests/README.md names each test of a fault, of a kill at every line and of a property."""
    listed = _named_in(ROOT / "tests" / "README.md")
    assert sorted(set(_tests_to_list()) - listed) == [], "add a line for each to tests/README.md"

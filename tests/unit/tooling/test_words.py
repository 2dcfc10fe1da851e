"""The words of the package: those of the glossary, and none that it replaced."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.tooling.test_events import described

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[3]

#: No name has one of these words, whichever way it is written.
_NOT_IN_NAMES = {
    "anew",
    "avoiding",
    "barred",
    "behind",
    "blame",
    "chore",
    "chores",
    "divided",
    "forgone",
    "hear",
    "heard",
    "hears",
    "housekeeper",
    "joint",
    "keeper",
    "keepers",
    "keeping",
    "lately",
    "lookout",
    "mend",
    "mends",
    "moments",
    "news",
    "owes",
    "rehearsal",
    "sought",
    "standing",
    "standings",
    "stay",
    "stays",
    "surroundings",
    "suspects",
    "tell",
    "tells",
    "told",
    "trial",
    "trouble",
    "turn",
    "turned",
    "turns",
    "turnstile",
    "upkeep",
    "wishes",
    "within",
}

#: No docstring begins with a line that has one of these. *Behind* is lag, or what is left over.
_NOT_IN_DOCSTRINGS = re.compile(
    r"\b(anew|barred|chores?|forgone|hears?|heard|lately|mend|mends|mended|sought|surroundings"
    r"|upkeep|wishes|stay in (the|a) group|(take|takes|took|taken) (a )?turns?"
    r"|(?<!lag )(?<!lags )(?<!left )(?<!leaves )(?<!nothing )(?<!falls )behind)\b",
    re.IGNORECASE,
)

#: Names that stay: of a word's other, plain meaning.
_PLAIN = {
    "output_behind": "lags, as a consumer does",
    "keeper": "the process that keeps a local stack, as its file says",
    "_start_keeper": "the same",
    "within": "how far apart the times of a pair may be, as in SQL and in Kafka Streams",
}

#: No page has one of these outside of code, which names what was renamed and the tests.
_NOT_IN_PROSE = re.compile(r"\b(anew|mends?|mended|sought|one's own)\b", re.IGNORECASE)

#: Code in a page, in a block or in a line; and the address of a link.
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)

#: What a script of the page declares, or assigns to: ``const found``, ``row.update = ...``.
_OF_SCRIPT = re.compile(
    r"\b(?:const|let|var|function\*?|class)\s+([\w$]+)"
    r"|\b(?:const|let|var)\s+[\[{]([^\]}=]+)[\]}]\s*="
    r"|\.([\w$]+)\s*=(?!=)"
    r"|^  (?:static |async |get |set |\*)*([\w$]+)\(.*\{$"
)

#: No comment and no docstring has one of these, nor a text of an error or of the log.
_NOT_IN_SOURCE = re.compile(
    r"\b(somebody|nobody|whoever|(take|takes|took) note|at hand|as above|what is there|comes? again"
    r"|for ever|made anew)\b",
    re.IGNORECASE,
)

#: Verbs that the docstring of a function may begin with. Add one that the field uses.
_VERBS = """
    Abandon Abort Accept Acknowledge Acquire Act Adapt Add Admit Adopt Advance Allow Answer Append
    Apply Ask Assign Assume Attach Avoid Balance Bind Block Build Cache Call Cancel Change Check
    Choose Claim Clear Close Collect Commit Compare Compute Connect Continue Copy Count Create Cut
    Decide Declare Decode Define Delay Delete Deliver Derive Describe Direct Discard Discount
    Divide Draw Drop Enable Encode End Enter Execute Expand Export Extend Fail Fence Fetch Fill Find
    Finish Fire Fix Flush Fold Follow Force Fork Format Freeze Get Group Halt Handle Hold Ignore
    Import Initialize Insert Interrupt Join Keep Leave Limit Link List Load Lock Log Lose Make
    Map Mark Mask Measure Merge Move Notify Occupy Open Parse Pass Patch Pause Plan Position
    Prepare Print Process Produce Prolong Prove Publish Put Queue Raise Re-key Read Rebuild Record
    Reduce Refuse Register Reject Rejoin Release Reload Remember Remove Replace Report Request
    Reschedule Reserve Reset Restart Restore Resume Retire Retry Return Rewrite Route Run Schedule
    Select Send Separate Serve Set Settle Share Show Shut Skip Sort Split Stage Start Stop Store
    Strip Suspend Switch Tick Translate Trust Try Turn Unblock Unload Unpersist Unregister Use Wait
    Wake Warn Watch Withdraw Write Yield
"""

#: No docstring of a module, a class or a field begins with one of these: it names what that is.
_NOT_FIRST = {
    "Have",
    "How",
    "That",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Why",
}

#: Functions whose docstring is read by users of the command line as the title of the whole.
_TITLES = {("headrace/cli.py", "options")}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(name: str) -> set[str]:
    """Return the words that a name consists of."""
    return {word.lower() for word in _WORD.findall(name.replace("ZooKeeper", "Zookeeper"))}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Import() | ast.ImportFrom():
                yield from ((each.asname, each.lineno) for each in node.names if each.asname)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno


def script_names(text: str) -> Iterator[tuple[str, int]]:
    """Yield each name that a script declares or assigns to, with its line."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in _OF_SCRIPT.finditer(line):
            for name in re.findall(r"[\w$]+", " ".join(filter(None, found.groups()))):
                yield name, number


def first_lines(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the first line of each docstring, with the line of what it belongs to."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text.splitlines()[0], getattr(node, "lineno", 1)


def first_words(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield name, first word and line of each function with a docstring, but for tests.

    A test of a shipped contract states what holds, and begins with its subject.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and not node.name.startswith("test_"):
                yield node.name, text.split()[0].strip(".,:;'`*\""), node.lineno


def first_nouns(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield first word and line of each docstring of a module, a class or a field.

    A field's docstring is the text that follows its assignment in a class or a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            previous: ast.stmt | None = None
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))) if text.strip() and (
                        previous is None or isinstance(previous, (ast.Assign, ast.AnnAssign))
                    ):
                        yield text.split()[0].strip(".,:;'`*\""), statement.lineno
                previous = statement


def prose(text: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of a page without code, with their numbers."""
    plain = _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    yield from ((line, number) for number, line in enumerate(plain.splitlines(), 1))


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the package and their trees."""
    for file in sorted((_ROOT / "headrace").rglob("*.py")):
        yield str(file.relative_to(_ROOT)), ast.parse(file.read_text(encoding="utf-8"))


def test_no_name_has_a_replaced_word() -> None:
    """Classes, functions, attributes, parameters and variables have the glossary's words."""
    found = [
        f"{file}:{line} {name}"
        for file, tree in modules()
        for name, line in names(tree)
        if words(name) & _NOT_IN_NAMES and name not in _PLAIN
    ]
    assert found == []


def test_no_name_of_the_page_has_a_replaced_word() -> None:
    """Functions, constants and properties of the status page have the glossary's words."""
    found = [
        f"{file.name}:{line} {name}"
        for file in sorted((_ROOT / "headrace/ops/admin/page").glob("*.js"))
        for name, line in script_names(file.read_text(encoding="utf-8"))
        if words(name) & _NOT_IN_NAMES
    ]
    assert found == []


def test_no_event_has_a_replaced_word() -> None:
    """Log events have the glossary's words."""
    found = [name for name in described() if words(name) & _NOT_IN_NAMES and name not in _PLAIN]
    assert found == []


def test_no_docstring_begins_with_a_replaced_word() -> None:
    """The first line of a docstring is in words that an engineer of the field would use."""
    found = [
        f"{file}:{line} {text}"
        for file, tree in modules()
        for text, line in first_lines(tree)
        if _NOT_IN_DOCSTRINGS.search(text)
    ]
    assert found == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """A function's docstring says what it does, so its first word is a known verb."""
    found = [
        f"{file}:{line} {name}: {word}"
        for file, tree in modules()
        for name, word, line in first_words(tree)
        if word not in _VERBS.split() and (file, name) not in _TITLES
    ]
    assert found == []


def test_docstrings_of_modules_classes_and_fields_begin_with_a_noun() -> None:
    """A docstring names what the module, class or field is, so no question word is its first."""
    found = [
        f"{file}:{line} {word}"
        for file, tree in modules()
        for word, line in first_nouns(tree)
        if word in _NOT_FIRST
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "words_found"),
    [
        ('"""What a module has."""', {"What"}),
        ('class A:\n    """How it ended."""', {"How"}),
        ('class A:\n    b: int = 1\n    """Whether it is."""', {"Whether"}),
        ('class A:\n    B = "b"\n    """Where: here."""', {"Where"}),
        ('A = 1\n"""Who it is."""', {"Who"}),
        ('class A:\n    """The end."""\n    b = 1\n    """True if it is."""', set()),
        ('def a():\n    """Return what it has."""\n    "What"', set()),
    ],
)
def test_a_question_word_at_the_beginning_is_found(source: str, words_found: set[str]) -> None:
    """Docstrings of modules, classes and fields count, and those of functions do not."""
    assert {word for word, _ in first_nouns(ast.parse(source))} & _NOT_FIRST == words_found


def test_no_line_of_the_package_has_a_phrase_of_the_house() -> None:
    """Comments, docstrings and texts name who acts, and what happens, in the field's words."""
    found = [
        f"{file.relative_to(_ROOT)}:{number} {line.strip()}"
        for file in sorted((_ROOT / "headrace").rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if _NOT_IN_SOURCE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "is_verb"),
    [
        ("Return the topics.", True),
        ("Re-key a record.", True),
        ("Have the topics read.", False),
        ("The topics of a channel.", False),
        ("``host:port`` for clients.", False),
    ],
)
def test_a_first_word_that_is_no_verb_is_found(docstring: str, is_verb: bool) -> None:
    """Signs around the word do not count, and what is no listed verb is found."""
    ((_, word, _),) = first_words(ast.parse(f'def a():\n    """{docstring}"""'))
    assert (word in _VERBS.split()) is is_verb


def test_no_page_has_a_replaced_word() -> None:
    """Pages, and the list of tests, are in words that an engineer of the field would use."""
    found = [
        f"{page.relative_to(_ROOT)}:{number} {line}"
        for page in [*sorted((_ROOT / "docs").glob("*.md")), _ROOT / "tests/README.md"]
        for line, number in prose(page.read_text(encoding="utf-8"))
        if _NOT_IN_PROSE.search(line)
    ]
    assert found == []


def test_code_in_a_page_is_no_prose() -> None:
    """Blocks, code in a line and addresses are left out; the numbers of lines stay."""
    page = "The `test_joins_anew`.\n```\nanew\n```\n[it](mended.md) is anew\n"
    assert [(n, bool(_NOT_IN_PROSE.search(line))) for line, n in prose(page)] == [
        (1, False),
        (2, False),
        (3, False),
        (4, False),
        (5, True),
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class PositionSought: ...", {"PositionSought"}),
        ("def _take_turns(): ...", {"_take_turns"}),
        ("def run(self, wishes): self._told = wishes", {"wishes", "_told"}),
        ("from a import history as lately", {"lately"}),
        ("import a.b as told", {"told"}),
        ("try: ...\nexcept ValueError as blame: ...", {"blame"}),
        (
            "match a:\n case [B(turn), *turns]: ...\n case {**wishes}: ...",
            {"turn", "turns", "wishes"},
        ),
        ("match a:\n case B() as told: ...\n case _: ...", {"told"}),
        ("returned = behaviour = ZooKeeperTls = stayed = 1", set()),
    ],
)
def test_a_replaced_word_is_found_in_a_name(source: str, found: set[str]) -> None:
    """A name is taken apart at underscores and capitals, and whole words count."""
    bound = {name for name, _ in names(ast.parse(source))}
    assert {name for name in bound if words(name) & _NOT_IN_NAMES} == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("function lately(points) {", {"lately"}),
        ("    row.tell = (now) => 1;", {"tell"}),
        ("  const [first, turns] = pairs;", {"turns"}),
        ("  _takeTurn(page) {", {"_takeTurn"}),
        ("const kept = row.tell === null;", set()),
        ('say(row, "two records behind");', set()),
    ],
)
def test_a_replaced_word_is_found_in_a_script(source: str, found: set[str]) -> None:
    """Declared and assigned names count, and not those that are read."""
    bound = {name for name, _ in script_names(source)}
    assert {name for name in bound if words(name) & _NOT_IN_NAMES} == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("The member joins anew.", True),
        ("The offset behind the batch.", True),
        ("How far the view may lag behind the servers'.", False),
        ("What a killed process left behind.", False),
        ("Recommend a size.", False),
    ],
)
def test_a_replaced_word_is_found_in_a_docstring(line: str, found: bool) -> None:
    """*Behind* is allowed as lag and as what is left over."""
    assert (_NOT_IN_DOCSTRINGS.search(line) is not None) is found

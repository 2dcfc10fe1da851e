"""Reading a configuration file: YAML with references, checked, as models."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from headrace.config.errors import Origin, dotted, printable
from headrace.config.expand import HALVES, Expansion
from headrace.config.models.root import Config
from headrace.config.problems import problems
from headrace.core.errors import ConfigError
from headrace.core.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.config.errors import ConfigProblem, Steps


#: Words of the parser, and our sentence where its own would quote the file or say too little.
_SENTENCES = (
    ("undefined alias", "a value that begins with * is an alias; put text in quotes"),
    ("duplicate anchor", "a value that begins with & is an anchor; put text in quotes"),
    ("anchor", "a value that begins with & is an anchor; put text in quotes"),
    ("alias", "a value that begins with * is an alias; put text in quotes"),
    ("tag", "a value that begins with ! is a tag; put text in quotes"),
    ("another document", "there is a second document; keep one, without a second ---"),
    ("'\\t'", "there is a tab; indent with spaces"),
    ("that cannot start any token", "a value begins with a reserved character; put it in quotes"),
    ("mapping values are not allowed", "there is a colon too many, or the indentation is wrong"),
    ("could not find expected ':'", "a key has no colon, or the indentation is wrong"),
    ("expected <block end>", "the indentation is wrong, or something is not closed"),
    ("or ']'", "a list in [] is not closed, or lacks a comma"),
    ("or '}'", "a mapping in {} is not closed, or lacks a comma"),
    ("merging", "<< takes a mapping or a list of mappings"),
)
#: What the parser quotes from the file; its own words for parts of YAML begin with <.
_QUOTED = re.compile(r"'[^<'][^']*'")


def describe(error: yaml.YAMLError, path: Path) -> str:
    """Return one sentence on the first mistake, with its line and column where they are known."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"{path}: has a control character, which YAML does not allow; remove it"
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{path}: is not YAML"
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"{path}{place}: {_sentence(error)}"


def _sentence(error: yaml.MarkedYAMLError) -> str:
    said = f"{error.context or ''} {error.problem or ''}"
    for words, sentence in _SENTENCES:
        if words in said:
            return sentence
    return f"is not YAML: {_QUOTED.sub('...', error.problem or 'no reason given')}"


_CORE = "tag:yaml.org,2002:"
_MERGE = _CORE + "merge"
_TAGS = frozenset(_CORE + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))

#: Far more values than any configuration has, and few enough to stop a chain of aliases early.
MAX_VALUES = 100_000

#: More bytes than any configuration has, and few enough to be read in seconds.
MAX_BYTES = 4 * 1024 * 1024

#: Problems that are told of one file. Who has more has made the same mistake again and again.
MOST_PROBLEMS = 100

#: More characters than any number needs; Python cannot even print what has thousands of digits.
MAX_NUMBER = 100


_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class _Loader(yaml.SafeLoader):
    """The safe loader without dates, which no field takes: 2024-01-01 stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The parsed file: its values, and the lines (from 1) by the steps that lead there."""

    values: Any
    lines: Mapping[Steps, int]

    def report(self, problems: Iterable[ConfigProblem]) -> list[str]:
        """Return the problems as a reader looks for them, from the top of the file to its end.

        ``kafka.tls.ca_file (line 7): ...``: what is not in the file has the line of the nearest
        mapping around it.
        """
        numbered = [(self._line(steps), steps, sentence) for steps, sentence in problems]
        numbered.sort(key=itemgetter(0))
        return [
            f"{dotted(steps)}{f' (line {line})' if line else ''}: {printable(sentence)}"
            for line, steps, sentence in numbered
        ]

    def error(self, problems: Iterable[ConfigProblem], count: int | None = None) -> ConfigError:
        """Return the error for problems, of ``count`` in all, with the first of them told."""
        return _first_of(self.report(problems), count)

    def _line(self, steps: Steps) -> int:
        around = (steps[:n] for n in range(len(steps), 0, -1))
        return next((self.lines[place] for place in around if place in self.lines), 0)


def _first_of(shown: list[str], count: int | None = None) -> ConfigError:
    count = len(shown) if count is None else count
    rest = [f"and {count - MOST_PROBLEMS} more"] if count > MOST_PROBLEMS else []
    return ConfigError([*shown[:MOST_PROBLEMS], *rest], count)


def read(path: Path) -> str:
    """Return the file's text. Raises ConfigError when there is no such text."""
    try:
        content = read_regular(path, MAX_BYTES + 1)
    except IsADirectoryError:
        raise ConfigError([f"{path} is a folder; name the file in it"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
    if len(content) > MAX_BYTES:
        most = f"more than {MAX_BYTES // 1024**2} MiB, which no configuration has"
        raise ConfigError([f"{path} has {most}; is it the right file?"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{path} (line {line}): is not UTF-8 text; save the file as UTF-8"]
        ) from None


def parse(text: str, path: Path) -> YamlDocument:
    """Return the document in ``text``. ``path`` is only named in errors.

    Raises ConfigError with every key that is given twice or is not text, or with the first
    mistake of the YAML itself. Quotes nothing from the file but keys: values may be secrets.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        survey = _Survey()
        if isinstance(root, yaml.MappingNode):
            survey.visit(root, ())
        if survey.problems:
            raise _first_of(survey.problems)
        values = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ConfigError([describe(error, path)]) from None
    except RecursionError:
        raise ConfigError([f"{path} is nested too deeply"]) from None
    except (ValueError, LookupError):
        raise ConfigError([f"{path} has a number or !! tag that YAML cannot read"]) from None
    if not isinstance(values, dict):
        raise ConfigError([f"{path} {_not_a_mapping(values)}; begin with 'channels:'"])
    return YamlDocument(values, survey.lines)


def _not_a_mapping(values: object) -> str:
    if values is None:
        return "is empty"
    return f"holds {'a list' if isinstance(values, list) else 'one value'} instead of a mapping"


@dataclass(slots=True)
class _Survey:
    """One walk over the YAML nodes: it notes lines, and what the constructor would hide."""

    lines: dict[Steps, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _visited: int = 0
    _open: set[int] = field(default_factory=set)

    def visit(self, node: yaml.Node, at: Steps) -> None:
        self._visited += 1
        if self._visited > MAX_VALUES:
            raise ConfigError([f"the file has more than {MAX_VALUES} values"])
        if id(node) in self._open:
            raise ConfigError([f"{_place_of(at, node)}: an alias stands for what it is part of"])
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, at)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                steps = (*at, index)
                self.lines[steps] = _line(item)
                self.visit(item, steps)
        elif isinstance(node, yaml.ScalarNode) and node.tag in _TAGS:
            problem = _unusable(node)
            self.problems += [] if problem is None else [f"{_place_of(at, node)}: {problem}"]
        if node.tag not in _TAGS:
            self.problems.append(f"{_place_of(at, node)}: has a YAML tag (!); put text in quotes")
        self._open.remove(id(node))

    def _visit_mapping(self, node: yaml.MappingNode, at: Steps) -> None:
        merges = [value for key, value in node.value if key.tag == _MERGE]
        for merged in merges:
            parts = merged.value if isinstance(merged, yaml.SequenceNode) else [merged]
            for part in reversed(parts):
                self.visit(part, at)
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            fault = _key_fault(key)
            if fault is not None:
                self.problems.append(f"{_place_of(at, key)}: {fault}")
                continue
            steps = (*at, key.value)
            if key.value in seen:
                first = seen[key.value]
                self.problems.append(
                    f"{_place_of(steps, key)}: is given twice, first on line {first}; keep one"
                )
            seen.setdefault(key.value, _line(key))
            self.lines[steps] = _line(key)
            self.visit(value, steps)


def _unusable(node: yaml.ScalarNode) -> str | None:
    """Return why nothing can be made of a text or a number, None where something can."""
    text = node.value
    if node.tag == _CORE + "int" and _OCTAL.fullmatch(text):
        return (
            f"is {text}, which YAML takes for a number of base 8; leave the 0 at its beginning "
            "out, or put text in quotes"
        )
    if node.tag == _CORE + "str":
        return "has half of a character (\\ud...)" if HALVES.search(text) else None
    if len(text) > MAX_NUMBER:
        return f"is a number of more than {MAX_NUMBER} characters; put text in quotes"
    if node.tag == _CORE + "float" and not _is_finite(text):
        return "is not a finite number; put text in quotes"
    return None


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace("_", "")))
    except ValueError:
        return ":" in text  # of base 60; what else has no digits is infinite or no number


def _key_fault(key: yaml.Node) -> str | None:
    if not isinstance(key, yaml.ScalarNode):
        return "a key is not text"
    if key.tag != _CORE + "str":
        return f"the key {key.value} is not text; put it in quotes"
    return "a key has half of a character (\\ud...)" if HALVES.search(key.value) else None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _place_of(at: Steps, node: yaml.Node) -> str:
    return f"{dotted(at)} (line {_line(node)})".lstrip()


#: Mistakes that are put into words, of which the first are told: each takes a moment.
_MOST_FORMULATED = 1000


def load(
    path: Path | str,
    environ: Mapping[str, str] | None = None,
    *,
    reads: Callable[[Path], None] = lambda _: None,
    also: Callable[[Config], Iterable[ConfigProblem]] = lambda _: (),
) -> Config:
    """Return the configuration in ``path``, checked as a whole and with all defaults filled in.

    ``environ`` takes the place of the process's environment; ``reads`` is told the path of each
    file before it is read; ``also`` may find more that is wrong with what was read. Blocks while it
    reads the file and those that it refers to. Raises ConfigError with every mistake that could be
    found; nothing outside the files is touched, and no import path is imported.
    """
    origin = Origin.of(Path(path), environ)
    reads(origin.file)
    document = parse(read(origin.file), origin.file)
    expansion = Expansion(origin.environ, origin.folder, reads)
    values = expansion.expand(document.values)
    try:
        config = Config.model_validate(values, context=origin)
    except ValidationError as error:
        found = _without_consequences(
            expansion.failures, islice(problems(error, Config), _MOST_FORMULATED)
        )
        count = max(len(found), error.error_count()) if len(found) >= _MOST_FORMULATED else None
        raise document.error(found, count) from None
    found = expansion.failures or list(also(config))
    if found:
        raise document.error(found)
    return config


def _without_consequences(
    failures: list[ConfigProblem], others: Iterable[ConfigProblem]
) -> list[ConfigProblem]:
    """Leave out what else is wrong with a value that could not be expanded."""
    failed = tuple(steps for steps, _ in failures)
    return failures + [
        problem for problem in others if not any(problem[0][: len(f)] == f for f in failed)
    ]

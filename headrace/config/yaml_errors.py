"""What is wrong with a file that is not YAML, said without quoting it: it may hold secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from pathlib import Path

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

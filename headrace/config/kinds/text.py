"""Text, free or of a given form: names of topics, groups and channels, import paths."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from keyword import kwlist
from typing import Annotated, Any

from pydantic import AfterValidator

from headrace.config.kinds.base import Kind, refuse


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text that matches ``pattern`` as a whole. ``accepted`` says in words what that is."""

    wording: str = "text"
    pattern: str = r"(?s:.*\S.*)"

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return self.wording

    def read(self, value: Any) -> str:
        """Return the text."""
        if isinstance(value, (bool, int, float)):
            raise refuse("is not text; put it in quotes")
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise self.not_accepted()
        return str(value)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "string"}


def _distinct(items: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted(item for item, count in Counter(items).items() if count > 1)
    if twice:
        raise refuse(f"names {', '.join(twice)} twice; name each once")
    return items


Distinct = AfterValidator(_distinct)
"""Behind the annotation of a tuple of texts: none of them may stand there twice."""

_NAME = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
#: Signs that nobody sees, some of which have a terminal show what follows in another order.
_UNSEEN = r"\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"

_IDENTIFIER = rf"(?!(?:{'|'.join(kwlist)})\b)[^\W\d]\w*"
_DOTTED = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*"

FreeText = Annotated[str, Text()]
Name = Annotated[str, Text("a name of letters, digits, '.', '_' and '-', 249 at most", _NAME)]
TOPIC_NAME = Text("a topic name (letters, digits, '.', '_' and '-', 249 at most)", _NAME)
Topic = Annotated[str, TOPIC_NAME]
Group = Annotated[
    str,
    Text(
        "a group name (printable text without '/' and without spaces at its ends)",
        # The name becomes one level of a ZooKeeper path.
        rf"(?!\.{{1,2}}$)(?![\s])[^/\x00-\x1f\x7f-\x9f{_UNSEEN}\ud800-\uf8ff\ufff0-\uffff]{{1,249}}"
        r"(?<!\s)",
    ),
]
SqlTable = Annotated[str, Text("a table name, or schema.table", r"[^\s.]+(?:\.[^\s.]+)?")]
ImportPath = Annotated[
    str, Text("an import path such as package.module:name", rf"{_DOTTED}:{_DOTTED}")
]

"""The types of single values: numbers, truth values, text and paths.

A type stands in a field's annotation (``Annotated[int, WholeNumber(1)]``) and reads the value all
by itself, so that nothing is converted silently: the text "1" is not a whole number, unless it
came out of a reference (see :mod:`headrace.config.expand`).
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from keyword import kwlist
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema

from headrace.config.errors import origin_of
from headrace.config.expand import Expanded
from headrace.core.plugins import PluginKind, installed_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue


#: What every field of the file also takes, as far as its form goes.
REFERENCE_SCHEMA: dict[str, Any] = {"type": "string", "pattern": r"\$\{"}


class FieldType(ABC):
    """One kind of value. Reading never puts the value into an error: it may be a secret."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Return what is accepted, to follow "is not": ``a whole number from 1 to 16``."""

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return what the model holds. Raises through :func:`refuse` or :func:`not_accepted`."""

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of what may be written in the file, references left aside."""
        return {"type": "string"}

    def write(self, value: Any) -> Any:
        """Return what to write in a file so that ``read`` gives ``value``."""
        return value

    def not_accepted(self) -> PydanticCustomError:
        """Return the error for a value that is not what is accepted."""
        return PydanticCustomError(
            "not_accepted", "{sentence}", {"sentence": f"is not {self.description}"}
        )

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read,
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        own = self.json_schema()
        takes_references = own.get("type") == "object" or own == {"type": "string"}
        return own if takes_references else {"anyOf": [own, REFERENCE_SCHEMA]}


def refuse(predicate: str) -> PydanticCustomError:
    """Return the error whose sentence is the value followed by ``predicate``."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": predicate})


def bounds(minimum: str | None, maximum: str | None, sign: str = "") -> str:
    """Return `` from 1 to 16``, `` of at least 1`` or nothing, to follow a noun and a sign."""
    if minimum is not None and maximum is not None:
        return f"{sign} from {minimum} to {maximum}"
    if minimum is not None:
        return f"{sign} of at least {minimum}"
    return "" if maximum is None else f"{sign} of at most {maximum}"


#: The words that YAML reads as true and false; a reference may bring any of them.
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class WholeNumber(FieldType):
    """A whole number within bounds, both included."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def description(self) -> str:
        low, high = (None if n is None else str(n) for n in (self.minimum, self.maximum))
        return "a whole number" + bounds(low, high)

    def read(self, value: Any) -> int:
        if isinstance(value, Expanded) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        low, high = self.minimum, self.maximum
        if (
            type(value) is not int
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            raise self.not_accepted()
        return value

    def json_schema(self) -> dict[str, Any]:
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer"} | {k: v for k, v in limits.items() if v is not None}


@dataclass(frozen=True, slots=True)
class PositiveNumber(FieldType):
    """A finite number greater than 0, with or without a fraction."""

    description = "a number greater than 0"

    def read(self, value: Any) -> float:
        if type(value) in (int, float) or isinstance(value, Expanded):
            with suppress(ValueError, OverflowError):
                number = float(value)
                if math.isfinite(number) and number > 0:
                    return number
        raise self.not_accepted()

    def json_schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0}


@dataclass(frozen=True, slots=True)
class TrueOrFalse(FieldType):
    """A truth value."""

    description = "true or false"

    def read(self, value: Any) -> bool:
        if isinstance(value, Expanded):
            value = _WORDS.get(value.strip().lower())
        if not isinstance(value, bool):
            raise self.not_accepted()
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


Count = Annotated[int, WholeNumber(1, 1_000_000_000)]
Flag = Annotated[bool, TrueOrFalse()]
Port = Annotated[int, WholeNumber(0, 65535)]


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """Text that matches ``pattern`` as a whole. ``description`` says in words what that is."""

    description: str = "text"
    pattern: str = r"(?s:.*\S.*)"

    def read(self, value: Any) -> str:
        if isinstance(value, (bool, int, float)):
            raise refuse("is not text; put it in quotes")
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise self.not_accepted()
        return str(value)


def _distinct(items: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted(item for item, count in Counter(items).items() if count > 1)
    if twice:
        raise refuse(f"names {', '.join(twice)} twice; name each once")
    return items


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMore = BeforeValidator(_listed, str | tuple[str, ...])
"""After the annotation of a tuple of texts: one text alone stands for the list of it."""

Distinct = AfterValidator(_distinct)
"""After the annotation of a tuple of texts: none of them may stand there twice."""

_NAME = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
#: Invisible characters, some of which have a terminal show what follows in another order.
_UNSEEN = r"\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"

_IDENTIFIER = rf"(?!(?:{'|'.join(kwlist)})\b)[^\W\d]\w*"
_DOTTED = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*"

FreeText = Annotated[str, Text()]
Name = Annotated[str, Text("a name of letters, digits, '.', '_' and '-', 249 at most", _NAME)]
TOPIC_NAME = Text("a topic name (letters, digits, '.', '_' and '-', 249 at most)", _NAME)
TopicName = Annotated[str, TOPIC_NAME]
GroupName = Annotated[
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


def _factory_of(kind: PluginKind, *own: str) -> Callable[[str], str]:
    def resolve(text: str) -> str:
        """Return the import path of a plug-in that is meant by its name; ours have no other."""
        if ":" in text or text in own:
            return text
        plugins = installed_plugins(kind)
        found = {plugin.factory for plugin in plugins if plugin.name == text}
        if len(found) == 1:
            return found.pop()
        if found:
            raise refuse(f"is offered by several packages; give one of {', '.join(sorted(found))}")
        names = ", ".join(plugin.name for plugin in plugins) or "none"
        ours = f"{', '.join(own)}, or " if own else ""
        raise refuse(
            f"is no plug-in of {kind.value}; installed are {names}; install its package, or give "
            f"{ours}an import path such as package.module:name"
        )

    return resolve


OverflowPolicy = Annotated[
    str,
    Text(
        "newest, oldest, sample, or an import path such as package.module:name",
        rf"newest|oldest|sample|{_DOTTED}:{_DOTTED}",
    ),
]
_FACTORY_TEXT = "an import path such as package.module:name, or the name of a plug-in"
_FACTORY_PATTERN = rf"{_DOTTED}:{_DOTTED}|[\w-]+"
_FACTORY = Text(_FACTORY_TEXT, _FACTORY_PATTERN)
SinkFactory = Annotated[str, _FACTORY, AfterValidator(_factory_of(PluginKind.SINK))]
ProcessorFactory = Annotated[str, _FACTORY, AfterValidator(_factory_of(PluginKind.PROCESSOR))]
ColumnDecoder = Annotated[
    str,
    Text(f"none, json, json_schema, avro, protobuf, {_FACTORY_TEXT}", _FACTORY_PATTERN),
    AfterValidator(
        _factory_of(PluginKind.DECODER, "none", "json", "json_schema", "avro", "protobuf")
    ),
]
ValueDecoder = Annotated[
    str,
    Text(f"json, string, bytes, json_schema, avro, protobuf, {_FACTORY_TEXT}", _FACTORY_PATTERN),
    AfterValidator(
        _factory_of(
            PluginKind.DECODER, "json", "string", "bytes", "json_schema", "avro", "protobuf"
        )
    ),
]

#: Where a key is found in a record: its own, a field of its value, a header, or what code says.
_KEY_SOURCES = rf"key|value(?:\.[^\s.:]+)+|headers\.[^\s:]+|{_DOTTED}:{_DOTTED}"
_KEY_SOURCES_TEXT = (
    "key, value.<field>, headers.<name>, or an import path such as package.module:function"
)
FactTime = Annotated[
    str,
    Text(
        "record, value.<field>, or an import path such as package.module:function",
        rf"record|value(?:\.[^\s.:]+)+|{_DOTTED}:{_DOTTED}",
    ),
]
KeySource = Annotated[str, Text(_KEY_SOURCES_TEXT, _KEY_SOURCES)]
FactKey = Annotated[
    str,
    Text(
        f"record, partition, constant, {_KEY_SOURCES_TEXT}",
        rf"record|partition|constant|{_KEY_SOURCES}",
    ),
]


def _resolve(text: str, info: ValidationInfo) -> Path:
    return Path(absolute(text, info))


def _resolve_folder(text: str, info: ValidationInfo) -> str:
    if _URL.match(text):
        raise refuse("is a URL; give a folder, of this host or one that all executors see")
    return absolute(text, info)


def absolute(text: str, info: ValidationInfo) -> str:
    """Return the path that ``text`` means in the file."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise refuse("begins with ~, but that user has no home folder here") from None
    return os.path.normpath(origin_of(info).folder / path)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = r"(?s:[^\0]*[^\0\s][^\0]*)"

LocalPath = Annotated[Path, Text("a path", _PATH), AfterValidator(_resolve)]
TableFolder = Annotated[str, Text("a path", _PATH), AfterValidator(_resolve_folder)]

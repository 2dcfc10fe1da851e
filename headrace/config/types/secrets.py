"""The types of secrets and of properties that may hold one.

Secrets are held as SecretStr, and nothing that prints a configuration shows them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeGuard

from pydantic import Secret, SecretStr

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.expand import Expanded
from headrace.config.types.scalars import FieldType, refuse

_SECRET_KEY = re.compile(
    r"""pass(word|wd|phrase) | secret | token | credential | jaas
      | private[._-]?key | (api|access|account)[._-]?key | key[._-]pem
      | oauthbearer[._]config | user[._]info""",
    re.IGNORECASE | re.VERBOSE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class SecretText(FieldType):
    """Text that is not empty, held so that it does not print."""

    description: str = "text"

    def read(self, value: Any) -> SecretStr:
        if isinstance(value, SecretStr):
            return value
        if not isinstance(value, str):
            raise refuse("is not text; put it in quotes")
        if not value:
            raise refuse("is empty")
        if (fault := invisible_fault(value)) is not None:
            raise refuse(fault)
        return SecretStr(str(value))

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "writeOnly": True}


#: What files bring that were written by editors of Windows, and what of keys in PEM is right.
_MARK, _PEM = "\ufeff", "-----BEGIN "


def invisible_fault(text: str) -> str | None:
    """Return what is wrong with a secret that its file does not show, None where nothing is.

    The sentence goes on from the place's name, and has nothing of the secret in it.
    """
    if text.startswith(_MARK):
        return "begins with a byte order mark, which is no part of it; save its file without one"
    if _PEM in text:
        return None
    if "\r" in text or "\n" in text:
        return (
            "has a line break in it or more than one at its end, which is no part of it; save its "
            "file as one line"
        )
    if "\0" in text:
        return "has a zero byte in it; save its file as UTF-8"
    return None


SecretValue = Annotated[SecretStr, SecretText()]


def looks_secret(key: str) -> bool:
    """Return whether the name of a free property tells that its value is a secret."""
    return _SECRET_KEY.search(key) is not None


def has_password(text: str) -> bool:
    """Return whether a URL with a password is in the text."""
    return _URL_WITH_PASSWORD.search(text) is not None


def is_secret(value: Any) -> TypeGuard[SecretStr | Secret[Any]]:
    """Return whether the value is wrapped as a secret."""
    return isinstance(value, (SecretStr, Secret))


def conceal(value: Any, key: str = "") -> Any:
    """Return a free value with each secret in it wrapped, and nothing that can be changed.

    A secret is text whose key looks like one, text with a password in a URL, and all text that a
    ``${file:...}`` brought in.
    """
    if isinstance(value, dict):
        return {name: conceal(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(conceal(item, key) for item in value)
    from_file = isinstance(value, Expanded) and value.from_file
    hidden = from_file or looks_secret(key)
    if isinstance(value, str):
        hidden = hidden or has_password(value)
        return SecretStr(str(value)) if hidden else str(value)
    if hidden and isinstance(value, (int, float)) and not isinstance(value, bool):
        return Secret(value)
    return value


def reveal(value: Any) -> Any:
    """Return the value with the secrets in plain text, as new mappings and lists."""
    if is_secret(value):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: reveal(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [reveal(item) for item in value]
    return value


def reveal_all(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return free properties with the secrets in plain text, for the one call that needs them."""
    return {name: reveal(value) for name, value in values.items()}


PropertyValue = str | int | float | bool | SecretStr | Secret[Any]
"""A value of one property, wrapped when it is a secret; ``reveal_all`` unwraps."""

Refusal = Callable[[str], "str | None"]
"""Says why a property may not be set here, None where it may."""


#: How names end whose values are one line.
_OF_ONE_LINE = ("password", "secret", "token")


def _fault(name: str, value: Any) -> str | None:
    """Return what is wrong with a value whose name says that it is a secret."""
    if not isinstance(value, str) or not looks_secret(name):
        return None
    # other secrets, as of JAAS, may have several lines
    of_one_line = name.lower().endswith(_OF_ONE_LINE)
    return invisible_fault(value if of_one_line else value.replace("\n", ""))


class FreeMapping(FieldType):
    """A mapping of names that no model knows, whose values may be secrets."""

    __slots__ = ()

    def read(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.not_accepted()
        found = [
            FieldConflict((name,), sentence)
            for name, item in value.items()
            if (sentence := self._refused(name, item) or _fault(name, item)) is not None
        ]
        if found:
            raise conflict_in(found)
        return {name: conceal(item, name) for name, item in value.items()}

    @abstractmethod
    def _refused(self, name: str, value: Any) -> str | None:
        """Return why an entry cannot be taken, None where it can."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Properties(FreeMapping):
    """A mapping of property names to single values. ``refusal`` guards the names."""

    refusal: Refusal

    description = "a mapping of property names to text, numbers, true or false"

    def _refused(self, name: str, value: Any) -> str | None:
        if not is_secret(value) and not isinstance(value, (str, int, float, bool)):
            return "is not text, a number, true or false"
        return self.refusal(name)

    def json_schema(self) -> dict[str, Any]:
        single = {"type": ["string", "number", "boolean"]}
        return {"type": "object", "additionalProperties": single}


@dataclass(frozen=True, slots=True)
class Options(FreeMapping):
    """A mapping of argument names to any values, handed to the user's own code."""

    description = "a mapping of argument names to values"

    def _refused(self, name: str, value: Any) -> str | None:
        del value
        return None if name.isidentifier() else "is not the name of an argument in Python"

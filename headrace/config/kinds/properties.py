"""Free properties: whatever librdkafka, Spark or a user's own factory takes, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Secret, SecretStr

from headrace.config.contradiction import Contradiction, contradicted
from headrace.config.kinds.base import Kind
from headrace.config.kinds.secrets import conceal, is_secret

PropertyValue = str | int | float | bool | SecretStr | Secret[Any]
"""A value of one property, wrapped when it is a secret; ``reveal_all`` unwraps."""

Refusal = Callable[[str], "str | None"]
"""Says why a property may not be set here, None where it may."""


@dataclass(frozen=True, slots=True)
class Properties(Kind):
    """A mapping of property names to single values. ``refusal`` guards the names."""

    refusal: Refusal

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return "a mapping of property names to text, numbers, true or false"

    def read(self, value: Any) -> Mapping[str, PropertyValue]:
        """Return the properties with their secrets wrapped."""
        if not isinstance(value, dict):
            raise self.not_accepted()
        found = [
            Contradiction((name,), sentence)
            for name, item in value.items()
            if (sentence := self._refused(name, item)) is not None
        ]
        if found:
            raise contradicted(found)
        return {name: conceal(item, name) for name, item in value.items()}

    def _refused(self, name: str, value: Any) -> str | None:
        if not is_secret(value) and not isinstance(value, (str, int, float, bool)):
            return "is not text, a number, true or false"
        return self.refusal(name)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        single = {"type": ["string", "number", "boolean"]}
        return {"type": "object", "additionalProperties": single}


@dataclass(frozen=True, slots=True)
class Options(Kind):
    """A mapping of argument names to any values, handed to the user's own code."""

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return "a mapping of argument names to values"

    def read(self, value: Any) -> Mapping[str, Any]:
        """Return the options with their secrets wrapped."""
        if not isinstance(value, dict):
            raise self.not_accepted()
        found = [
            Contradiction((name,), "is not the name of an argument in Python")
            for name in value
            if not name.isidentifier()
        ]
        if found:
            raise contradicted(found)
        return {name: conceal(item, name) for name, item in value.items()}

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "object"}

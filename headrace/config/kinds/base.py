"""What all kinds have in common.

A kind stands in a field's annotation (``Annotated[int, WholeNumber(1)]``) and reads the value all
by itself, so that nothing is converted silently: the text "1" is not a whole number, unless it
came out of a reference (see :mod:`headrace.config.expand`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

#: What every field of the file also takes, as far as its form goes.
REFERENCE_SCHEMA: dict[str, Any] = {"type": "string", "pattern": r"\$\{"}


class Kind(ABC):
    """One kind of value. Reading never puts the value into an error: it may be a secret."""

    @property
    @abstractmethod
    def accepted(self) -> str:
        """What is accepted, to follow "is not": ``a whole number from 1 to 16``."""

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return what the model holds. Raises through :func:`refuse` or :func:`not_accepted`."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of what may be written in the file, references left aside."""

    def write(self, value: Any) -> Any:
        """Return what to write in a file so that ``read`` gives ``value``."""
        return value

    def not_accepted(self) -> PydanticCustomError:
        """Return the error for a value that is not what is accepted."""
        return PydanticCustomError(
            "not_accepted", "{sentence}", {"sentence": f"is not {self.accepted}"}
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


def bounds(minimum: str | None, maximum: str | None) -> str:
    """Return `` from 1 to 16``, `` of at least 1`` or nothing, to follow a noun."""
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"

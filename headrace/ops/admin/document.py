"""The base class, types and functions that all documents of the API share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

#: The last second that a ``datetime`` can say. Records may have any number for a time, and a
#: processor may wait for one.
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def moment(seconds: float) -> datetime:
    """Return a time in UTC, to the millisecond; ``seconds`` are since the epoch.

    What lies beyond the year 9999 is its end.
    """
    return datetime.fromtimestamp(min(round(seconds, 3), _LAST), UTC)


# said in the schema and not checked: what is measured is shown, whatever it is
Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
Offset = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Number = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]


def sendable(text: str) -> str:
    """Return text as UTF-8 has it: what a record or JSON brings may have halves of characters."""
    return text.encode("utf-8", "replace").decode()


def restoring(percent: float | None, left: float | None) -> str:
    """Return in words how far a partition is whose state is not there yet; ``left`` in seconds."""
    if percent is None:
        return "restoring"
    return f"restoring {percent:.0f} %" + ("" if left is None else f", {left:.0f} s left")


# what others wrote: processors, people, libraries
SendableText = Annotated[str, AfterValidator(sendable)]


class Described(BaseModel):
    """A model whose schema says of each field what the source says below it.

    ``use_attribute_docstrings`` would read the source at every start of a process.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema with its fields' meanings."""
        from headrace.config.reference import meanings  # noqa: PLC0415 - for schemas only

        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, meaning in meanings(cls).items():
            properties[name]["description"] = meaning
        return schema


class Document(Described):
    """An answer, or a part of one."""

    model_config = ConfigDict(frozen=True)

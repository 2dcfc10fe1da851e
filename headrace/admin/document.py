"""What all documents of the API have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

# said in the schema and not checked: what is measured is shown, whatever it is
Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
Offset = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Number = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]


def sendable(text: str) -> str:
    """Return text as UTF-8 has it: what a record or JSON brings may have halves of characters."""
    return text.encode("utf-8", "replace").decode()


# what others wrote: processors, people, libraries
Text = Annotated[str, AfterValidator(sendable)]


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

"""What all documents of the API have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, WithJsonSchema

# said in the schema and not checked: what is measured is shown, whatever it is
Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
Offset = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Number = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

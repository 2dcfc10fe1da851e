"""What all documents of the API have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Offset = Annotated[int, Field(ge=0)]
Number = Annotated[int, Field(ge=0)]


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

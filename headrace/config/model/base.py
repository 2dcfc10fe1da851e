"""What every section of the configuration has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from headrace.config.contradiction import Contradiction, contradicted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

T = TypeVar("T")

Hot = Annotated[T, Field(json_schema_extra={"hot": True})]
"""A field whose new value is applied in place: nothing is drained, released or reconnected."""

Cold = Annotated[T, Field(json_schema_extra={"hot": False})]
"""A field whose new value needs what it belongs to drained, rebuilt or reconnected."""


def unset() -> Any:
    """Be the default of a field that ``derived`` fills in; it needs ``validate_default=True``."""
    return None


def derived(default: Callable[[ValidationInfo], Any], accepts: Any) -> BeforeValidator:
    """Return what fills in ``default(info)`` where the file has nothing or null.

    ``accepts`` is the type that the JSON schema shows.
    """

    def fill_in(value: Any, info: ValidationInfo) -> Any:
        return default(info) if value is None else value

    return BeforeValidator(fill_in, json_schema_input_type=accepts)


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys, silent about its values in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what does not fit together, looking at this section and those in it."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = list(self.contradictions())
        if found:
            raise contradicted(found)
        return self

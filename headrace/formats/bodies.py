"""Values with a registry's frame taken apart: the id of the schema, and the body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.errors import UnknownSchemaError, UnknownYetError
from headrace.formats.framing import FRAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.formats.registry import RegisteredSchema, SchemaRegistry

T = TypeVar("T")

#: The reason of a value that does not begin with a frame.
NOT_FRAMED = "it has no frame: a zero byte, and the id of its schema in four"

#: More bytes than a value has.
_END = (1 << 31) - 1


class Framed:
    """Values of a batch by the ids in their frames.

    ``ids`` has the id of each, null for tombstones and values without a frame; ``bad`` has the
    places of the latter.
    """

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        is_framed = pc.and_(
            pc.equal(pc.binary_slice(values, 0, 1), pa.scalar(b"\0", values.type)),
            pc.greater_equal(pc.binary_length(values), FRAME),
        )
        self.bad = pc.indices_nonzero(pc.invert(is_framed)).to_pylist()
        found = pc.binary_slice(values, 1, FRAME).dictionary_encode()
        numbers = [int.from_bytes(each, "big") for each in found.dictionary.to_pylist()]
        places = pc.if_else(is_framed, found.indices, pa.scalar(None, found.indices.type))
        self.ids = pa.array(numbers, pa.int64()).take(places)
        self.known = sorted(each for each in self.ids.unique().to_pylist() if each is not None)

    def bodies(self, numbers: list[int]) -> pa.Array:
        """Return what is after the frames of values with these ids, null for others."""
        if not self.bad and numbers == self.known:
            return without(self.values, FRAME)
        wanted = pc.is_in(self.ids, value_set=pa.array(numbers, pa.int64()))
        return without(only(wanted, self.values), FRAME)

    def places(self, number: int) -> list[int]:
        """Return the places of values with this id."""
        return pc.indices_nonzero(pc.equal(self.ids, number)).to_pylist()  # type: ignore[no-any-return]


def only(wanted: pa.Array, values: pa.Array) -> pa.Array:
    """Return values where they are wanted, and null elsewhere."""
    return pc.if_else(wanted, values, pa.scalar(None, values.type))


def without(values: pa.Array, size: int) -> pa.Array:
    """Return values without so many bytes at their beginning."""
    return pc.binary_slice(values, size, _END)


def looked_up(registry: SchemaRegistry, numbers: list[int]) -> dict[int, RegisteredSchema | str]:
    """Return the schemas of ids, or why there is none. Blocks while the registry is asked.

    All that the registry does not know are asked for before one is waited for: their half minutes
    are the same.

    Raises:
        RegistryError: the registry does not say now what one is.
    """

    def ask(number: int) -> RegisteredSchema | str:
        try:
            return registry.schema(number)
        except UnknownSchemaError as error:
            return str(error)

    return asked_together(numbers, ask)


def asked_together(numbers: Iterable[int], ask: Callable[[int], T]) -> dict[int, T]:
    """Return what is said of each id, where none of them has to be waited for.

    Raises:
        UnknownYetError: one is not known yet; all others have been asked for as well.
    """
    found: dict[int, T] = {}
    waits: UnknownYetError | None = None
    for number in numbers:
        try:
            found[number] = ask(number)
        except UnknownYetError as error:
            waits = waits or error
    if waits is not None:
        raise waits
    return found


class Reasons(Mapping[int, str]):
    """The reasons of bad values by their places, each made when it is asked for.

    ``why`` returns the reason of a place.
    """

    def __init__(self, places: list[int], why: Callable[[int], str]) -> None:
        self._places = dict.fromkeys(sorted(places))
        self._why = why

    def __getitem__(self, place: int) -> str:
        if place not in self._places:
            raise KeyError(place)
        return self._why(place)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

"""Values of a column as numbers that sort as the values do, and back."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.streams.kernels.records import Array

_TOP = np.int64(2**63 - 1)

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def order_floats(values: Array) -> Array:
    """Return floats as whole numbers of the same order; NaN is the highest, and -0.0 is 0.0."""
    plain = np.where(np.isnan(values), np.nan, values + 0.0)
    bits = plain.view(np.int64)
    return bits ^ ((bits >> 63) & _TOP)


def restore_floats(numbers: Array) -> Array:
    """Return the floats that :func:`order_floats` made numbers of."""
    return np.asarray((numbers ^ ((numbers >> 63) & _TOP)).view(np.float64))


class Codec:
    """Values of an Arrow type in a stored row: numbers that sort alike, or Python's objects."""

    def __init__(self, kind: pa.DataType) -> None:
        """Check that values of a type can be stored.

        Raises:
            TypeError: they cannot; the text names the type.
        """
        self.type = kind
        types = pa.types
        self.floating: bool = types.is_floating(kind)
        self.whole: bool = types.is_integer(kind) and kind != pa.uint64()
        self.decimal: bool = types.is_decimal(kind)
        self.numeric: bool = (
            self.floating or self.whole or types.is_boolean(kind) or types.is_temporal(kind)
        )
        texts = types.is_string(kind) or types.is_large_string(kind)
        self.bytes: bool = types.is_binary(kind) or types.is_large_binary(kind)
        self.sorts: bool = self.numeric or texts or self.bytes or self.decimal
        is_nested = types.is_list(kind) or types.is_struct(kind)
        if not self.sorts and not (is_nested or types.is_null(kind)):
            raise TypeError(f"no aggregate can keep values of type {kind}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the numpy arrays that have the values."""
        return np.dtype(np.int64 if self.numeric else object)

    def numbers(self, array: pa.Array) -> Array:
        """Return numeric values as whole numbers; null is 0."""
        filled = array.fill_null(False if pa.types.is_boolean(self.type) else 0)
        if self.floating:
            return order_floats(filled.cast(pa.float64()).to_numpy(zero_copy_only=False))
        if pa.types.is_temporal(self.type):
            width = pa.int32() if self.type.bit_width == 32 else pa.int64()  # noqa: PLR2004
            filled = array.view(width).fill_null(0)
        return np.asarray(filled.cast(pa.int64()).to_numpy(zero_copy_only=False))

    def array(self, data: Array, valid: Array) -> pa.Array:
        """Return kept values as an Arrow array; what is not valid is null."""
        mask = ~valid
        if not self.numeric:
            return pa.array(data, self.type, mask=mask)
        if self.floating:
            return pa.array(restore_floats(data), pa.float64(), mask=mask).cast(self.type)
        whole = pa.array(data, pa.int64(), mask=mask)
        if pa.types.is_temporal(self.type):
            narrow = self.type.bit_width == 32  # noqa: PLR2004
            return (whole.cast(pa.int32()) if narrow else whole).view(self.type)
        return whole.cast(self.type)

    def objects(self, data: list[Any]) -> list[Any]:
        """Return kept values as Python's objects."""
        if not self.numeric or not data:
            return data
        numbers = np.array(data, np.int64)
        objects: list[Any] = self.array(numbers, np.ones(len(data), np.bool_)).to_pylist()
        return objects

    @property
    def to_json(self) -> Callable[[Any], Any]:
        """Return the function that makes JSON of a kept value."""
        if self.floating:
            return lambda value: float_to_json(float(restore_floats(np.array([value]))[0]))
        return int if self.numeric else make_json(self.type)

    @property
    def from_json(self) -> Callable[[Any], Any]:
        """Return the function that makes a kept value of its JSON."""
        if self.floating:
            return lambda value: int(order_floats(np.array([float(value)]))[0])
        return _keep if self.numeric else read_json(self.type)


def _keep(value: Any) -> Any:
    return value


def _of_parts(
    kind: pa.DataType, of: Callable[[pa.DataType], Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    """Return the function that applies those of its parts to a value of a nested type."""
    if pa.types.is_list(kind):
        item = of(kind.value_type)
        return _keep if item is _keep else lambda value: [item(each) for each in value]
    parts = {each.name: of(each.type) for each in kind}
    if all(part is _keep for part in parts.values()):
        return _keep
    return lambda value: {
        name: None if value[name] is None else part(value[name]) for name, part in parts.items()
    }


def make_json(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes JSON of a value, as Arrow's ``to_pylist`` has it."""
    types = pa.types
    if types.is_nested(kind):
        return _of_parts(kind, make_json)
    if types.is_floating(kind):
        return float_to_json
    if types.is_timestamp(kind):
        return lambda value: (value - _EPOCH) // _MICROSECOND
    if types.is_decimal(kind):
        return str
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    return _keep


def read_json(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes a value of the JSON of :func:`make_json`."""
    types = pa.types
    if types.is_nested(kind):
        return _of_parts(kind, read_json)
    if types.is_floating(kind):
        return float
    if types.is_timestamp(kind):
        return lambda value: _EPOCH + value * _MICROSECOND
    if types.is_decimal(kind):
        return Decimal
    if types.is_binary(kind) or types.is_large_binary(kind):
        return base64.b64decode
    return _keep


def float_to_json(value: float) -> float | str:
    """Return a float as JSON has it, and as text where JSON has none."""
    return value if math.isfinite(value) else str(value)


class Values:
    """A column of a micro-batch, by row."""

    def __init__(self, array: pa.Array, codec: Codec) -> None:
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        self._array, self._codec = array, codec

    @cached_property
    def valid(self) -> Array:
        """Return which rows are not null."""
        return np.asarray(self._array.is_valid().to_numpy(zero_copy_only=False), np.bool_)

    @property
    def complete(self) -> bool:
        """Return whether no row is null."""
        return bool(self._array.null_count == 0)

    @cached_property
    def keys(self) -> Array:
        """Return a number for each row that sorts as the values do; null has any."""
        if self._codec.numeric:
            return self._codec.numbers(self._array)
        ranks = pc.rank(self._array, sort_keys="ascending", tiebreaker="dense")
        return np.asarray(ranks.to_numpy(zero_copy_only=False), np.int64)

    @cached_property
    def floats(self) -> Array:
        """Return the values as floats, the nearest to each; null is 0."""
        filled = self._array.cast(pa.float64(), safe=False).fill_null(0.0)
        return np.asarray(filled.to_numpy(zero_copy_only=False))

    def unscaled(self) -> Array:
        """Return decimals as whole numbers of their last digit, as objects; null is 0."""
        digits = self._codec.type.scale
        whole = [
            0 if value is None else int(value.scaleb(digits)) for value in self._array.to_pylist()
        ]
        return make_objects(whole)

    def take(self, rows: Array) -> Array:
        """Return the values of rows as they are kept."""
        if self._codec.numeric:
            return self.keys[rows]
        return make_objects(self._array.take(pa.array(rows)).to_pylist())


def make_objects(values: list[Any]) -> Array:
    """Return an array of objects, also where they are sequences."""
    array = np.empty(len(values), object)
    array[:] = values
    return array

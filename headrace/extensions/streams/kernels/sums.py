"""Exact sums: of whole numbers beyond 64 bits, and of floats whatever their order.

A sum of floats is kept as a whole number of 2**-1074, the lowest float above 0, and is rounded once
when it is read. So it is the same for each order and each cut into panes, sessions or workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.groups import Groups
    from headrace.extensions.streams.kernels.records import Array

#: The exponent of the lowest float above 0.
_LOWEST = 1074
_LIMB, _MASK = 32, 0xFFFF_FFFF
#: Rows whose limbs add up exactly as floats: 2**53 by the 2**33 that a limb is below.
_ROWS = 2**20
_WORD = 2.0**64


def add_whole(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the sums of two numbers, each its lower 64 bits, signed, and how often 2**64."""
    low = first[0] + second[0]
    over = ((first[0] ^ low) & (second[0] ^ low)) < 0
    carry = first[1] + second[1]
    if over.any():
        carry = carry + np.where(over, np.where(first[0] < 0, -1, 1), 0)
    return low, carry


def sum_whole(values: Array, groups: Groups) -> tuple[Array, Array]:
    """Return the sum of each group as :func:`add_whole` has it."""
    low = np.zeros(len(groups), np.int64)
    np.add.at(low, groups.ids, values)
    return low, _carry(low, np.bincount(groups.ids, values, len(groups)))


def scan_whole(values: Array, groups: Groups) -> tuple[Array, Array]:
    """Return the sum up to each row within its group, in the order of ``groups.order``."""
    ordered = values[groups.order]
    low, approximate = np.cumsum(ordered), np.cumsum(ordered.astype(np.float64))
    before = groups.starts[groups.ordered_ids] - 1
    first = before < 0
    low = low - np.where(first, 0, low[before])
    approximate = approximate - np.where(first, 0.0, approximate[before])
    return low, _carry(low, approximate)


def _carry(low: Array, approximate: Array) -> Array:
    """Return how often 2**64 is missing in ``low``: a float tells that long before it is exact."""
    return np.rint((approximate - low) / _WORD).astype(np.int64)


def whole_objects(low: Array, carry: Array) -> Array:
    """Return sums as Python's numbers."""
    objects = low.astype(object)
    return objects + carry.astype(object) * 2**64 if carry.any() else objects


def scale_float(value: float) -> int:
    """Return a finite float as a whole number of 2**-1074."""
    over, under = value.as_integer_ratio()
    return over * ((1 << _LOWEST) // under)


def round_scaled(number: int, divisor: int = 1) -> float:
    """Return the float nearest to a whole number of 2**-1074 by ``divisor``."""
    try:
        return number / (divisor << _LOWEST)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def sum_floats(values: Array, groups: Groups) -> Array:
    """Return the exact sum of each group, as a whole number of 2**-1074; all values are finite."""
    total = np.zeros(len(groups), object)
    for start in range(0, len(values), _ROWS):
        part = slice(start, start + _ROWS)
        total = total + _sum_limbs(values[part], groups.ids[part], len(groups))
    return total


def _sum_limbs(values: Array, ids: Array, groups: int) -> Array:
    mantissas, exponents = np.frexp(values)
    whole = np.abs((mantissas * 2.0**53).astype(np.int64))
    shift = exponents.astype(np.int64) - 53 + _LOWEST
    whole >>= np.maximum(-shift, 0)  # of a subnormal, whose last bits are 0
    shift = np.maximum(shift, 0)
    some = whole != 0
    shift = np.where(some, shift, shift[some].min() if some.any() else 0)
    limb, bits = shift // _LIMB, shift % _LIMB
    lower, upper = (whole & _MASK) << bits, (whole >> _LIMB) << bits
    parts = (lower & _MASK, (lower >> _LIMB) + (upper & _MASK), upper >> _LIMB)
    base = int(limb.min())
    width = int(limb.max()) - base + len(parts)
    cells = ids * width + (limb - base)
    sums = np.zeros(groups * width)
    for offset, part in enumerate(parts):
        signed = np.where(values < 0, -part, part)
        sums += np.bincount(cells + offset, signed, groups * width)
    limbs = sums.astype(np.int64).reshape(groups, width)
    total = limbs[:, width - 1].astype(object)
    for column in range(width - 2, -1, -1):
        total = total * 2**_LIMB + limbs[:, column].astype(object)
    return np.asarray(total * (1 << _LIMB * base))

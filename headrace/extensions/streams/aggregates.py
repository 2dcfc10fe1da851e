"""Aggregates of grouped rows, as a program declares them: ``count()``, ``total(Order.amount)``.

A declaration says what is computed from which expressions and computes nothing. Nulls are left out
by all of them, as SQL does; ``count()`` counts rows. An aggregate without a value is null, and a
list without one is empty. Each has a merge, so that a window's value can be made of its panes' and
two sessions can become one. Nothing depends on the order of rows but ``fold``, and among rows of
the same time ``first``, ``last``, ``top`` and ``collect``, which take them as they arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.extensions.streams.expressions import Expr

T = TypeVar("T")
R = TypeVar("R")
#: Types that can be added up.
N = TypeVar("N", int, float, Decimal, int | None, float | None, Decimal | None)

#: The version of sketches in a store's rows: a store with another one does not go on with them.
SKETCH_VERSION = 1
#: Registers of a sketch of different values, as a power of two: a standard error of 1.6 %, and rows
#: of 5.5 KB in JSON at most.
DISTINCT_LOG2_REGISTERS = 12
#: How far a quantile may be from the value that it stands for, as a part of that.
QUANTILE_ERROR = 0.01
#: Buckets of a histogram at most: a row stays below the limit of rows, and what is not the lowest
#: value is within the error as long as the highest one is no more than 10**35 times it.
QUANTILE_BUCKETS = 4096

#: Values that one list of an aggregate may have: it is a row, which is written whole.
MAX_LIMIT = 10_000


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class Agg(Generic[T]):
    """An aggregate of type ``T``, made by one of the functions below."""

    #: Whether a value can be taken away again, so that rows of a table may change.
    subtracts: ClassVar[bool] = False

    @property
    def arguments(self) -> tuple[Expr[Any], ...]:
        """Return the expressions whose columns it takes, in their order."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Return what a stored value depends on beside the expressions, for a plan in JSON."""
        return {"kind": type(self).__name__.lower()}


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class _OfOne(Agg[T]):
    """An aggregate of one expression."""

    of: Expr[Any]

    @property
    def arguments(self) -> tuple[Expr[Any], ...]:
        return (self.of,)


class Count(Agg[int]):
    """The number of rows."""

    __slots__ = ()
    subtracts = True


class Total(_OfOne[T]):
    """The sum. A sum of int that leaves 64 bits is poison; one of float is exact, then rounded."""

    __slots__ = ()
    subtracts = True


class Least(_OfOne[T]):
    """The lowest value; NaN is above all others."""

    __slots__ = ()


class Most(_OfOne[T]):
    """The highest value; NaN is above all others."""

    __slots__ = ()


class Mean(_OfOne[float]):
    """The sum by the number of values."""

    __slots__ = ()
    subtracts = True


class First(_OfOne[T]):
    """The value with the lowest time; of equal times the one that arrived first."""

    __slots__ = ()


class Last(_OfOne[T]):
    """The value with the highest time; of equal times the one that arrived last."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class _Limited(_OfOne[T]):
    """An aggregate that is a list of at most ``limit`` values."""

    limit: int

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__.lower(), "limit": self.limit}


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class Top(_Limited[T]):
    """Values of ``of`` in the rows with the highest ``by``, the highest first."""

    by: Expr[Any]

    @property
    def arguments(self) -> tuple[Expr[Any], ...]:
        return (self.of, self.by)


class Collect(_Limited[T]):
    """The first values by time; of equal times as they arrived."""

    __slots__ = ()


class Distinct(_Limited[T]):
    """The lowest of the different values, in ascending order."""

    __slots__ = ()


class ApproxDistinct(_OfOne[int]):
    """The approximate number of different values."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "approx_distinct",
            "registers": 2**DISTINCT_LOG2_REGISTERS,
            "version": SKETCH_VERSION,
        }


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class _Quantiles(_OfOne[T]):
    """Approximate quantiles; which ones, no stored value depends on."""

    at: tuple[float, ...]

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "approx_quantiles",
            "error": QUANTILE_ERROR,
            "buckets": QUANTILE_BUCKETS,
            "version": SKETCH_VERSION,
        }


class ApproxQuantile(_Quantiles[float]):
    """An approximate quantile."""

    __slots__ = ()


class ApproxQuantiles(_Quantiles[list[float]]):
    """A list of approximate quantiles."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)  # expressions have another ==
class Fold(Agg[T]):
    """A Python function applied to each row, in the order in which rows arrive."""

    start: Any
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    rows: type[Any]

    def describe(self) -> dict[str, Any]:
        return {"kind": "fold", "rows": self.rows.__name__, "merges": self.merge is not None}


def count() -> Agg[int]:
    """Return the number of rows."""
    return Count()


def total(of: Expr[N]) -> Agg[N]:
    """Return the sum of a number. One of int that leaves 64 bits is poison."""
    return Total(of)


def least(of: Expr[T]) -> Agg[T]:
    """Return the lowest value."""
    return Least(of)


def most(of: Expr[T]) -> Agg[T]:
    """Return the highest value."""
    return Most(of)


def mean(of: Expr[Any]) -> Agg[float]:
    """Return the mean of a number."""
    return Mean(of)


def first(of: Expr[T]) -> Agg[T]:
    """Return the value with the lowest time; of equal times the one that arrived first."""
    return First(of)


def last(of: Expr[T]) -> Agg[T]:
    """Return the value with the highest time; of equal times the one that arrived last."""
    return Last(of)


def top(limit: int, *, by: Expr[Any], of: Expr[T]) -> Agg[list[T]]:
    """Return ``of`` in the ``limit`` rows with the highest ``by``, the highest first.

    Of rows with the same ``by`` those with the lowest time come first, then those that arrived
    first. A row whose ``by`` or ``of`` is null is left out.

    Raises:
        TypeError, ValueError: the limit cannot be used.
    """
    return Top(of, _checked(limit, "top"), by)


def collect(of: Expr[T], *, limit: int) -> Agg[list[T]]:
    """Return the first ``limit`` values by time.

    Raises:
        TypeError, ValueError: the limit cannot be used.
    """
    return Collect(of, _checked(limit, "collect"))


def distinct(of: Expr[T], *, limit: int) -> Agg[list[T]]:
    """Return the different values in ascending order, the lowest ``limit`` of them.

    Raises:
        TypeError, ValueError: the limit cannot be used.
    """
    return Distinct(of, _checked(limit, "distinct"))


def approx_distinct(of: Expr[Any]) -> Agg[int]:
    """Return the approximate number of different values: 1.6 % is the standard error.

    Takes the extra ``sketches``.
    """
    return ApproxDistinct(of)


def approx_quantile(of: Expr[Any], at: float) -> Agg[float]:
    """Return the value of a number that a part ``at`` of the values is not above, within 1 %.

    ``at`` is from 0 to 1: 0.5 is the median. Takes the extra ``sketches``.

    Raises:
        TypeError, ValueError: ``at`` is no such number.
    """
    return ApproxQuantile(of, (_checked_part(at),))


def approx_quantiles(of: Expr[Any], at: Iterable[float]) -> Agg[list[float]]:
    """Return several of these, in the order of ``at``; an empty list without a value.

    Raises:
        TypeError, ValueError: ``at`` are no numbers from 0 to 1.
    """
    found = tuple(_checked_part(each) for each in at)
    if not found:
        raise ValueError("approx_quantiles takes one part of the values at least, as in [0.5]")
    return ApproxQuantiles(of, found)


def _checked_part(at: float) -> float:
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        raise TypeError(f"a quantile takes a part of the values, as in 0.99, and got {at!r}")
    if not 0 <= at <= 1:
        raise ValueError(f"a quantile has the part {at}: it has to be from 0 to 1")
    return float(at)


def fold(
    start: T,
    add: Callable[[T, R], T],
    merge: Callable[[T, T], T] | None = None,
    *,
    rows: type[R],
) -> Agg[T]:
    """Return what ``add`` makes of ``start`` and each row, one after the other.

    ``merge`` makes one value of two of which the first has the earlier rows. Hopping, sliding and
    session windows take it: ``merge(fold(a), fold(b))`` has to be ``fold(a + b)``. ``start`` and
    each value have the type of the field; a record with which another one is made is poison.

    Raises:
        TypeError: ``add`` or ``merge`` is no function.
    """
    for name, function in (("add", add), ("merge", merge)):
        if not (callable(function) or (name == "merge" and function is None)):
            raise TypeError(f"fold takes a function as {name}, and got {function!r}")
    return Fold(start, add, merge, rows)


def _checked(limit: int, name: str) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"{name} takes a number of values as limit, and got {limit!r}")
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"{name} has the limit {limit}: it has to be from 1 to {MAX_LIMIT:,}")
    return limit

"""Decoders of users' own: what makes a value of a record's bytes, named in the configuration."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.core.columns import HEADERS
from headrace.core.errors import ImportPathError, RetryableError
from headrace.core.imports import load_factory
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Decoders that this process has made, by the token of the :class:`CustomDecoder`. A channel has
#: one for as long as it runs; older ones are of channels that started again.
_MADE: OrderedDict[str, Callable[[bytes], Any]] = OrderedDict()
_MOST_MADE = 64

#: Rows that are objects at once, where a reducer takes them one by one.
_AT_A_TIME = 1024
_GUARD = threading.Lock()


@runtime_checkable
class ColumnDecoder(Protocol):
    """A decoder that makes columns of many values at once: what a factory makes may be one.

    One with an attribute ``kind``, a type of structs in Arrow, says by it which columns it makes.
    One whose attribute ``reads_headers`` is true is given the records' headers too: a list for each
    value, of structs of ``key`` and ``value``.
    """

    def columns(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, and by their places why others have none. Any thread.

        ``values`` are binary or large_binary. A null is a tombstone, and like a value that is bad
        it is a row of null. Fields are found by their names.

        Raises:
            RetryableError: it cannot work now: the batch is delivered again.
        """


@runtime_checkable
class ObjectDecoder(Protocol):
    """A decoder of ours that makes an object of each of many values, which fit no columns."""

    def objects(self, values: pa.Array) -> tuple[Sequence[Any], Mapping[int, str]]:
        """Return what each value is, and by their places why others are nothing. Any thread.

        A tombstone, and a value that is bad, is None.

        Raises:
            RetryableError: it cannot work now: the batch is delivered again.
        """


class CustomDecoder:
    """A decoder that a factory makes, once in each process that it comes to. Any thread.

    ``path`` is the factory's import path, ``options`` are its keyword arguments. Spark's workers
    get the factory and its options, and make a decoder of their own: one may have what cannot be
    sent, such as a connection.
    """

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._options = dict(options or {})
        self._token = uuid.uuid4().hex
        self._factory: Callable[..., Any] | None = None

    def with_options(self, **more: Any) -> CustomDecoder:
        """Return a decoder of the same factory with more options, not loaded yet."""
        return CustomDecoder(self.path, {**self._options, **more})

    @property
    def kind(self) -> pa.StructType | None:
        """Return the type of the rows that it makes, where it says so; after :meth:`load`."""
        return getattr(self._decoder(), "kind", None)

    @property
    def factory(self) -> Callable[..., Any]:
        """Return the factory, after :meth:`load`."""
        assert self._factory is not None, "load comes first"
        return self._factory

    def load(self) -> None:
        """Import the factory and make the decoder of this process. Blocks for as long as that does.

        Raises:
            ImportPathError: it cannot be imported, does not take the options, fails, or returns
                what neither can be called nor makes columns.
        """
        if self._factory is None:
            self._factory = load_factory(self.path, self._options)
        self._decoder()

    def __call__(self, value: bytes, headers: Sequence[Mapping[str, Any]] | None = None) -> Any:
        """Return what the decoder makes of a value; ``headers`` are those of its record.

        Raises:
            RetryableError: it said so, or cannot be made in this process: no record is to blame.
            ValueError: it raised something else.
        """
        decoder = self._made()
        if isinstance(decoder, ColumnDecoder | ObjectDecoder):
            ((found, reason),) = self.objects(
                pa.array([value], pa.binary()), pa.array([headers], HEADERS)
            )
            if reason is not None:
                raise ValueError(reason)
            return found
        try:
            return decoder(value)
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:
            raise ValueError(f"{self.path} raised {describe_error(error)}") from error

    @property
    def makes_columns(self) -> bool:
        """Return whether it has :meth:`columns`."""
        return isinstance(self._made(), ColumnDecoder)

    def columns(
        self, values: pa.Array, headers: pa.Array | None = None
    ) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return what :meth:`ColumnDecoder.columns` does, for a decoder that has it.

        Raises:
            RetryableError: it said so, failed, or cannot be made in this process.
        """
        decoder = self._made()
        given = [values]
        if headers is not None and getattr(decoder, "reads_headers", False):
            given.append(headers)
        try:
            return decoder.columns(*given)  # type: ignore[no-any-return]
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:
            raise RetryableError(f"{self.path} raised {describe_error(error)}") from error

    def objects(self, values: pa.Array, headers: pa.Array) -> Iterator[tuple[Any, str | None]]:
        """Yield what each value is read as, None for a tombstone, and why it is not.

        That is for a decoder that takes many values at once. Maps are dictionaries, and rows are
        objects a few at a time.

        Raises:
            RetryableError: as :meth:`columns`, before the first.
        """
        decoder = self._made()
        if isinstance(decoder, ObjectDecoder):
            found, why = decoder.objects(values)
            yield from ((each, why.get(place)) for place, each in enumerate(found))
            return
        rows, bad = self.columns(values, headers)
        reasons = dict(bad)
        for start in range(0, len(rows), _AT_A_TIME):
            part = rows.slice(start, _AT_A_TIME).to_pylist(maps_as_pydicts="lossy")
            for place, row in enumerate(part, start):
                yield row, reasons.get(place)

    def _made(self) -> Any:
        found = _MADE.get(self._token)
        if found is not None:
            return found
        try:
            return self._decoder()
        except ImportPathError as error:
            raise RetryableError(f"no decoder can be made here: {error}") from error

    def _decoder(self) -> Any:
        with _GUARD:
            found = _MADE.get(self._token)
            if found is None:
                found = _MADE[self._token] = self._make_function()
                while len(_MADE) > _MOST_MADE:
                    _MADE.popitem(last=False)
        return found

    def _make_function(self) -> Any:
        try:
            made = self.factory(**self._options)
        except (Exception, SystemExit) as error:
            raise ImportPathError(
                f"{self.path!r} with options {sorted(self._options)} failed: "
                f"{describe_error(error)}"
            ) from error
        if not callable(made) and not isinstance(made, ColumnDecoder | ObjectDecoder):
            raise ImportPathError(
                f"{self.path!r} returned a {type(made).__name__}; it must return a function of "
                "a record's bytes"
            )
        return made


def decoded_rows(
    decoder: CustomDecoder | Callable[[bytes], Any],
    values: pa.Array,
    kind: pa.StructType,
    headers: pa.Array | None = None,
) -> tuple[pa.StructArray, Mapping[int, str]]:
    """Return values as rows of ``kind``, and why those are none that are none, by position.

    These are rows of nulls, as tombstones are. Fields that ``kind`` does not have are left out.

    Raises:
        RetryableError: the decoder did, or its columns are not one row for each value.
    """
    if isinstance(decoder, CustomDecoder) and decoder.makes_columns:
        return _fitting(*decoder.columns(values, headers), len(values), kind)
    rows: list[dict[str, Any] | None] = []
    bad: dict[int, str] = {}
    for position, value in enumerate(values.to_pylist()):
        row = None
        if value is not None:
            try:
                row = _mapping(decoder(value))
            except ValueError as error:
                bad[position] = str(error)
        rows.append(row)
    try:
        return _array(rows, kind), bad
    except _MISFITS:
        for position, row in enumerate(rows):
            try:
                _array([row], kind)
            except _MISFITS as error:
                bad[position] = f"what it was decoded to does not fit the schema: {error}"
                rows[position] = None
        return _array(rows, kind), bad


def _fitting(
    rows: pa.StructArray, bad: Mapping[int, str], count: int, kind: pa.StructType
) -> tuple[pa.StructArray, Mapping[int, str]]:
    """Return rows of a decoder's own type as rows of ``kind``, and which are bad."""
    if len(rows) != count:
        raise RetryableError(f"the decoder made {len(rows)} rows of {count} values")
    if rows.type == kind:
        return rows, bad
    try:
        return _cast(rows, kind), bad
    except pa.ArrowException:
        reasons = dict(bad)
        parts = []
        for position in range(count):
            try:
                parts.append(_cast(rows.slice(position, 1), kind))
            except pa.ArrowException as error:
                reasons[position] = f"what it was decoded to does not fit the schema: {error}"
                parts.append(pa.nulls(1, kind))
        return pa.concat_arrays(parts), reasons


def _cast(rows: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return rows with the fields of ``kind``, null where they have none of that name.

    Raises:
        pa.ArrowException: a value does not fit.
    """
    fields = [
        rows.field(each.name).cast(each.type)
        if rows.type.get_field_index(each.name) >= 0
        else pa.nulls(len(rows), each.type)
        for each in kind
    ]
    made = pa.StructArray.from_arrays(fields, fields=list(kind), mask=rows.is_null())
    made.validate(full=True)
    return made


#: What Arrow raises where a value does not fit a type.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _mapping(found: Any) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return dict(found)
    raise ValueError(f"the decoder returned a {type(found).__name__}; it must return a mapping")


def _array(rows: list[dict[str, Any] | None], kind: pa.StructType) -> pa.StructArray:
    made = pa.array(rows, kind)
    made.validate(full=True)  # bytes pass that are no text, and long decimals
    return made

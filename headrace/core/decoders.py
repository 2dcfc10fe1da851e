"""Decoders of users' own: what makes a value of a record's bytes, named in the configuration."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.errors import ImportPathError, RetryableError
from headrace.core.imports import load_factory
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

#: Decoders that this process has made, by the token of the :class:`CustomDecoder`. A channel has
#: one for as long as it runs; older ones are of channels that started again.
_MADE: OrderedDict[str, Callable[[bytes], Any]] = OrderedDict()
_MOST_MADE = 64
_GUARD = threading.Lock()


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

    @property
    def factory(self) -> Callable[..., Any]:
        """Return the factory, after :meth:`load`."""
        assert self._factory is not None, "load comes first"
        return self._factory

    def load(self) -> None:
        """Import the factory and make the decoder of this process. Blocks for as long as that does.

        Raises:
            ImportPathError: it cannot be imported, does not take the options, fails, or returns
                what cannot be called.
        """
        if self._factory is None:
            self._factory = load_factory(self.path, self._options)
        self._decoder()

    def __call__(self, value: bytes) -> Any:
        """Return what the decoder makes of a value.

        Raises:
            RetryableError: it said so, or cannot be made in this process: no record is to blame.
            ValueError: it raised something else.
        """
        decoder = _MADE.get(self._token)
        if decoder is None:
            try:
                decoder = self._decoder()
            except ImportPathError as error:
                raise RetryableError(f"no decoder can be made here: {error}") from error
        try:
            return decoder(value)
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:
            raise ValueError(f"{self.path} raised {describe_error(error)}") from error

    def _decoder(self) -> Callable[[bytes], Any]:
        with _GUARD:
            found = _MADE.get(self._token)
            if found is None:
                found = _MADE[self._token] = self._make_function()
                while len(_MADE) > _MOST_MADE:
                    _MADE.popitem(last=False)
        return found

    def _make_function(self) -> Callable[[bytes], Any]:
        try:
            made = self.factory(**self._options)
        except (Exception, SystemExit) as error:
            raise ImportPathError(
                f"{self.path!r} with options {sorted(self._options)} failed: "
                f"{describe_error(error)}"
            ) from error
        if not callable(made):
            raise ImportPathError(
                f"{self.path!r} returned a {type(made).__name__}; it must return a function of "
                "a record's bytes"
            )
        return made  # type: ignore[no-any-return]


def decoded_rows(
    decoder: Callable[[bytes], Any], values: pa.Array, kind: pa.StructType
) -> tuple[pa.StructArray, dict[int, str]]:
    """Return values as rows of ``kind``, and why those are none that are none, by position.

    These are rows of nulls, as tombstones are. Fields that ``kind`` does not have are left out.

    Raises:
        RetryableError: the decoder did.
    """
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

"""A reducer as a fold calls it: what it is given is read, and what it returns is checked.

Whichever way a key takes through a fold, it is by this that its reducer is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.user_text import kind_of
from headrace.extensions.keyed.api import Output, is_batched
from headrace.extensions.keyed.codecs import DECODERS, ENCODERS, key_bytes, output_bytes
from headrace.extensions.keyed.exact import exact_text
from headrace.extensions.keyed.timers import require_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.keyed.api import KeyedReducer, Timer
    from headrace.extensions.keyed.settings import FoldSettings
    from headrace.extensions.keyed.tables import Fact, OutputRow

#: Bytes of a header beside its name and its value, at most.
_HEADER_FRAME = 10

#: Parts of what a reducer returns: state, outputs and timers.
_PARTS = 3


class Reduction:
    """A reducer with the settings that it is called by. Sent to Spark's workers whole.

    A reducer that has a method ``with_limits`` is asked by it for one that keeps them, and by
    ``with_outputs`` for one that knows the names of the channel's outputs.
    """

    def __init__(self, reducer: KeyedReducer[Any, Any, Any], settings: FoldSettings) -> None:
        bounded = getattr(reducer, "with_limits", None)
        if bounded is not None:
            reducer = bounded(max_row=settings.max_row, max_output=settings.max_output)
        knowing = getattr(reducer, "with_outputs", None)
        if knowing is not None:
            reducer = knowing(settings.outputs)
        self.reducer = reducer
        self.settings = settings
        self.is_batched = is_batched(reducer)
        self.read_value = settings.framed or settings.decoder or DECODERS[settings.value]
        self.read_state = DECODERS[settings.state]
        self.write_state = ENCODERS[settings.state]
        self._has_text_keys = settings.keys == "string"
        names = settings.outputs
        self._only_output = names[0] if len(names) == 1 else None

    def read(self, fact: Fact) -> Any:
        """Return the value of a fact, which has one, as the reducer is to see it.

        Raises:
            RetryableError: it cannot be read now.
            TypeError, ValueError, RecursionError: it cannot be read.
        """
        assert fact.value is not None, "a tombstone is not read"
        framed = self.settings.framed
        if framed is not None:
            return framed(fact.value, fact.headers)
        return self.read_value(fact.value)

    def read_key(self, key: bytes) -> Any:
        """Return a key as the reducer is to see it."""
        return key.decode() if self._has_text_keys else key

    def call(  # noqa: PLR0917 - a call for each fact: names would take as long as a small reducer
        self, key: bytes, name: Any, state: Any, facts: Sequence[Any], now: int, ts: int
    ) -> tuple[Any, list[OutputRow], Mapping[str, Timer]]:
        """Call the reducer; return state, outputs and timers. The latter are not checked yet.

        ``name`` is the key as :meth:`read_key` returns it, ``ts`` the time of the last fact.

        Raises:
            TypeError, ValueError: what it returned cannot be used; and whatever it raised.
        """
        returned = self.reducer(name, state, facts, now)  # type: ignore[arg-type]
        if type(returned) is not tuple or len(returned) != _PARTS:
            returned = _parts(returned)
        state, made, timers = returned
        return state, [self._output(key, each, ts) for each in made], timers

    def require_row(self, key: bytes, state: bytes | None, extra: bytes | None) -> None:
        """Raise a ValueError if a key's row is too large: key, state and timers."""
        state, extra = state or b"", extra or b""
        size, most = len(key) + len(state) + len(extra), self.settings.max_row
        if size <= most:
            return
        if len(state) > most:
            raise ValueError(f"the state has {len(state)} bytes, and max_row is {most}")
        raise ValueError(
            f"the row has {size} bytes, {len(key)} of them the key, {len(state)} the state and "
            f"{len(extra)} its timers with their names, and max_row is {most}; have fewer or "
            "shorter ones, or raise state.max_row"
        )

    def _output(self, own_key: bytes, output: Output, ts: int) -> OutputRow:
        """Return what an output of a key at a time is, as in :data:`OUTPUT`.

        Raises:
            TypeError, ValueError: it cannot be produced.
        """
        if not isinstance(output, Output):
            raise TypeError(f"an output is a {type(output).__name__}; it has to be an Output")
        content, to, key, at, named = output
        own = own_key if key is ... else None if key is None else key_bytes(key)
        value = output_bytes(content)
        if to is not None or self._only_output is None:
            to = self._output_name(to)
        else:
            to = self._only_output
        size = len(own or b"") + len(value or b"")
        headers = [_header(*each) for each in named] if named else None
        if headers:
            size += sum(map(_header_size, headers))
        if size > self.settings.max_output:
            raise ValueError(
                f"an output to {to} has {size} bytes, and {self.settings.max_output} are allowed"
            )
        if at is not None and require_time(at, "an output") < 0:
            raise ValueError(f"an output is at {at}; its time has to be in 1970 or later")
        return to, own, value, max(ts, 0) if at is None else at, headers or None

    def _output_name(self, to: str | None) -> str:
        names = self.settings.outputs
        if to in names:
            return to
        there = f"the outputs are {', '.join(names)}" if names else "the channel has no sink"
        if to is not None:
            raise ValueError(f"there is no output {to!r}; {there}")
        raise ValueError(f"an output does not say where it goes with to=, and {there}")


def _header(name: Any, data: Any) -> dict[str, Any]:
    """Return an output's header as it is in :data:`OUTPUT`."""
    if not isinstance(name, str) or not (data is None or isinstance(data, bytes)):
        raise TypeError(f"header {name!r} is {data!r}; a header is a text and bytes, or None")
    exact_text(str.__str__(name), "a header's name")
    return {"key": name, "value": data}


def _header_size(header: Mapping[str, Any]) -> int:
    return len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_FRAME


def _parts(returned: Any) -> tuple[Any, Any, Any]:
    """Return state, outputs and timers of what is no tuple of three.

    Raises:
        TypeError: it has not these parts; texts and dicts of three are no list of them either.
    """
    if isinstance(returned, list | tuple) and len(returned) == _PARTS:
        state, outputs, timers = returned
        return state, outputs, timers
    found = f"a {kind_of(returned)}"
    if isinstance(returned, list | tuple):
        found += f" of {len(returned)}"
    raise TypeError(
        f"the reducer returned {found}, and state, outputs and timers are expected: "
        "return state, [], {}"
    )

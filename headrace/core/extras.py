"""The extras of the package: what of Headrace takes a library that the base install lacks."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from headrace.core.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Extra(Enum):
    """An extra by its name in ``pip install 'headrace[NAME]'``; a user of it imports its module."""

    SPARK = ("spark", "pyspark", "pyspark")
    """Processors of type spark, the engine spark of keyed processors, and Java servers of
    ``headrace local``, which run on pyspark's jars."""

    DELTA = ("delta", "deltalake", "deltalake")
    """Sinks of type delta."""

    SQL = ("sql", "SQLAlchemy", "sqlalchemy")
    """Sinks of type sql."""

    KEYED = ("keyed", "rocksdict", "rocksdict")
    """Processors of type keyed."""

    OTEL = ("otel", "OpenTelemetry", "opentelemetry.sdk")
    """Traces of batches, and metrics and logs for a collector; also by the name ``tracing``."""

    DEMO = ("demo", "pandas", "pandas")
    """``headrace demo``."""

    def __init__(self, extra: str, library: str, module: str) -> None:
        self.extra = extra
        self.library = library
        self.module = module

    @property
    def installed(self) -> bool:
        """Whether its library is there; it is looked for, not imported."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package that a module is in
            return False

    @property
    def advice(self) -> str:
        """How a sentence ends that says who needs the library: what it is, and what installs it."""
        return f"takes {self.library}, which is not installed; pip install 'headrace[{self.extra}]'"


@contextmanager
def required(extra: Extra, user: str) -> Iterator[None]:
    """Import in the block what takes the extra's library; ``user`` is what needs it.

    Raises:
        StartError: something cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise StartError(f"{user} {extra.advice} ({error})") from error

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
    """An extra by its name in ``pip install 'headrace[NAME]'``, and what it brings: each library by
    the module that a user of it imports.
    """

    SPARK = ("spark", {"pyspark": "pyspark", "pandas": "pandas"})
    """Processors of type spark, the engine spark of keyed and rekey processors, and Java servers of
    ``headrace local``, which run on pyspark's jars."""

    DELTA = ("delta", {"deltalake": "deltalake"})
    """Sinks of type delta."""

    DUCKDB = ("duckdb", {"duckdb": "duckdb"})
    """Sinks of type duckdb."""

    SQL = ("sql", {"sqlalchemy": "SQLAlchemy"})
    """Sinks of type sql."""

    POSTGRESQL = ("sql", {"psycopg": "psycopg", "numpy": "numpy"})
    """Those whose URL takes this driver, to which rows are copied in columns."""

    MYSQL = ("mysql", {"pymysql": "PyMySQL", "numpy": "numpy"})
    """Those whose URL takes this driver of MariaDB and MySQL, to which rows go as text in bulk."""

    KEYED = ("keyed", {"rocksdict": "rocksdict", "numpy": "numpy"})
    """Processors of type keyed."""

    PROTOBUF = ("protobuf", {"google.protobuf": "protobuf"})
    """Values in Protobuf."""

    DISTINCT = ("sketches", {"datasketches": "datasketches"})
    """Approximate numbers of different values in topologies. It has no wheels for Python 3.14."""

    QUANTILES = ("sketches", {"ddsketch": "ddsketch"})
    """Approximate quantiles in topologies."""

    OTEL = (
        "otel",
        {
            "opentelemetry.sdk": "opentelemetry-sdk",
            "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
        },
    )
    """Traces of batches, and metrics and logs for a collector; also by the name ``tracing``."""

    TOKENS = ("local", {"joserfc": "joserfc", "cryptography": "cryptography"})
    """The issuer of tokens and the certificates of ``headrace local up --secured``."""

    def __init__(self, extra: str, libraries: dict[str, str]) -> None:
        self.extra = extra
        self.libraries = libraries

    @property
    def missing(self) -> list[str]:
        """Return the libraries that are not there; they are looked for, not imported."""
        return [library for module, library in self.libraries.items() if not _is_there(module)]

    @property
    def installed(self) -> bool:
        """Return whether nothing is missing."""
        return not self.missing

    @property
    def advice(self) -> str:
        """Return how a sentence ends that says who needs the extra: what is missing, what installs
        it.
        """
        named = self.missing or list(self.libraries.values())
        are = "is" if len(named) == 1 else "are"
        return (
            f"takes {' and '.join(named)}, which {are} not installed; "
            f"pip install 'headrace[{self.extra}]'"
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that a module is in
        return False


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

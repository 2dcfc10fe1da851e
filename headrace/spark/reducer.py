"""The user's function: found by its import path, and sent to Python workers by value."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.importing import load_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch


class Reducer(Protocol):
    """What users write: plain PySpark on the records of one micro-batch.

    Runs on a lane's thread. It may run any Spark action of its own, and may be run again on the
    same records after a failure, so what it does beside its result should bear repetition. The
    result goes to the sink; None stores the offsets only.
    """

    def __call__(
        self, df: DataFrame, batch: MicroBatch, /
    ) -> DataFrame | Mapping[str, DataFrame | None] | None:
        """Return what the sink is to store, or what each of its outputs is to, by their names."""
        ...


class OwnReducer(ABC):
    """A reducer that is made of the configuration, and is looked at before the first record."""

    @abstractmethod
    def __call__(self, df: DataFrame, batch: MicroBatch, /) -> DataFrame:
        """Return what the sink is to store."""

    @abstractmethod
    def check(self, frame: DataFrame) -> None:
        """Plan on a frame with the columns of every micro-batch.

        Raises:
            StartError: it cannot be used.
        """


def load_reducer(path: str) -> Reducer:
    """Import ``package.module:function``.

    Raises:
        ImportPathError: the path names nothing that can be called with (df, batch).
    """
    return cast("Reducer", load_callable(path, "df", "batch"))


def checked(result: object) -> DataFrame | None:
    """Return what a reducer returned.

    Raises:
        TypeError: it is neither a DataFrame nor None.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 - checking a reducer's path needs no pyspark

    if result is None or isinstance(result, DataFrame):
        return result
    raise TypeError(
        f"the reducer returned a {type(result).__name__}; it must return a DataFrame, or None to "
        "store the offsets only"
    )


def send_by_value(function: Any) -> None:
    """Have the function's whole package pickled by value into Spark's Python workers.

    By reference, a worker imports the package itself: it may not find it, and a reused worker
    goes on with the code it imported first after the package was changed and loaded again.
    pyspark pickles with its own copy of cloudpickle, so that one has to know.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - checking a reducer's path needs no pyspark

    module = inspect.getmodule(function) or inspect.getmodule(type(function))
    if module is None or module.__name__ == "__main__":
        return  # pickled by value anyway
    package = module.__name__.partition(".")[0]
    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    register(sys.modules.get(package, module))

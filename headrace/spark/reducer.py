"""The user's function: found by its import path, checked, and sent to Python workers by value."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.errors import ImportPathError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch


class Reducer(Protocol):
    """What users write: plain PySpark on the records of one micro-batch.

    Runs on a lane's thread. It may run any Spark action of its own, and may be run again on the
    same records after a failure, so what it does beside its result should bear repetition. The
    result goes to the sink; None stores the offsets only.
    """

    def __call__(self, df: DataFrame, batch: MicroBatch, /) -> DataFrame | None:
        """Return what the sink is to store."""
        ...


def load_reducer(path: str) -> Reducer:
    """Import ``package.module:function``.

    Raises:
        ImportPathError: the path has another form, or names nothing that can be imported, called
            with (df, batch), and found again under that name.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise ImportPathError(f"reducer {path!r} is not of the form package.module:function")
    function = _attribute(path, _module(path, module_name), name)
    if not callable(function):
        raise ImportPathError(
            f"reducer {path!r} is a {type(function).__name__}, not a function (df, batch)"
        )
    _check_signature(path, function)
    return cast("Reducer", function)


def _module(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ImportPathError(
                f"reducer {path!r}: no module {error.name!r} on the import path; install its "
                "package, or put its folder into PYTHONPATH"
            ) from error
        raise ImportPathError(
            f"reducer {path!r}: module {name!r} imports {error.name!r}, which is not installed"
        ) from error
    except Exception as error:
        raise ImportPathError(
            f"reducer {path!r}: importing {name!r} failed: {type(error).__name__}: {error}"
        ) from error


def _attribute(path: str, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = [other for other in vars(module) if callable(getattr(module, other))]
        near = difflib.get_close_matches(name, own, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ImportPathError(
            f"reducer {path!r}: module {module.__name__!r} has no {name!r}{hint}"
        ) from None


def _check_signature(path: str, function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a callable without a readable signature shows at its first call
    try:
        signature.bind(None, None)
    except TypeError:
        raise ImportPathError(
            f"reducer {path!r} takes {signature}; it is called with (df, batch)"
        ) from None


def send_by_value(function: Any) -> None:
    """Have the function's whole package pickled by value into Spark's Python workers.

    By reference, a worker imports the package itself: it may not find it, and a reused worker
    goes on with the code it imported first after the package was changed and loaded again.
    pyspark pickles with its own copy of cloudpickle, so that one has to know.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 -- checking a reducer's path needs no pyspark

    module = inspect.getmodule(function) or sys.modules.get(getattr(function, "__module__", ""))
    if module is None or module.__name__ == "__main__":
        return  # pickled by value anyway
    package = module.__name__.partition(".")[0]
    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    register(sys.modules.get(package, module))

"""Users' code, found by an import path as it stands in the configuration."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ImportPathError
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


def load_own(path: str) -> Any:
    """Import what ``package.module:name`` names, an extension of ours by its place in a table.

    Raises:
        ImportError: a library that it needs is not installed.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def load_object(path: str) -> Any:
    """Import what ``package.module:name`` names.

    Raises:
        ImportPathError: the path has another form, or names nothing that can be imported.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise ImportPathError(f"{path!r} is not of the form package.module:name")
    return _attribute(path, _module(path, module_name), name)


def load_callable(path: str, *arguments: str) -> Callable[..., Any]:
    """Import the callable that ``package.module:name`` names.

    ``arguments`` name what it will be called with, if that is known.

    Raises:
        ImportPathError: the path has another form, names nothing that can be imported or called,
            or the callable does not take these arguments.
    """
    function: Callable[..., Any] = load_object(path)
    if not callable(function):
        raise ImportPathError(f"{path!r} is a {type(function).__name__}, which cannot be called")
    misfit = _misfit(function, *arguments) if arguments else None
    if misfit is not None:
        raise ImportPathError(
            f"{path!r} takes {misfit[0]}; it is called with ({', '.join(arguments)})"
        )
    return function


def load_factory(path: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Import the callable that makes something of options, given by name.

    Raises:
        ImportPathError: as :func:`load_callable` does, or it does not take these options.
    """
    factory = load_callable(path)
    misfit = _misfit(factory, **options)
    if misfit is not None:
        signature, error = misfit
        raise ImportPathError(
            f"{path!r} takes {signature}, and the options are {', '.join(options) or 'none'}: "
            f"{error}; correct them, or the factory"
        )
    return factory


def make(path: str, options: Mapping[str, Any]) -> Any:
    """Return what a factory makes of its options. Blocks for as long as it does.

    Raises:
        ImportPathError: as :func:`load_factory` does, or the factory failed.
    """
    factory = load_factory(path, options)
    try:
        return factory(**options)
    except (Exception, SystemExit) as error:
        raise ImportPathError(
            f"{path!r} with options {sorted(options)} failed: {describe_error(error)}"
        ) from error


def _module(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ImportPathError(
                f"{path!r}: no module {missing!r} on the import path{_suggest(path, missing)}; "
                "install its package, or name its folder in python_path"
            ) from error
        raise ImportPathError(
            f"{path!r}: module {name!r} imports {missing!r}, which is not installed"
        ) from error
    except (Exception, SystemExit) as error:
        raise ImportPathError(
            f"{path!r}: importing {name!r} failed: {describe_error(error)}"
        ) from error


#: How much alike names of modules have to be: there are many.
_ALIKE = 0.75


def _suggest(path: str, missing: str) -> str:
    """Return which module may have been meant: one that lies beside the one that is missing."""
    package, _, name = missing.rpartition(".")
    folders = list(sys.modules[package].__path__) if package in sys.modules else None
    there = [each.name for each in pkgutil.iter_modules(folders)]
    near = difflib.get_close_matches(name, there, n=1, cutoff=_ALIKE)
    if not near:
        return ""
    meant = f"{package}.{near[0]}" if package else near[0]
    return f"; did you mean {path.replace(missing, meant, 1)}?"


def _attribute(path: str, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = [other for other in vars(module) if callable(getattr(module, other))]
        near = difflib.get_close_matches(name, own, n=3)
        paths = ", ".join(f"{module.__name__}:{each}" for each in near)
        hint = f"; did you mean {paths}?" if near else ""
        raise ImportPathError(
            f"{path!r}: module {module.__name__!r} has no {name!r}{hint}"
        ) from None


def _misfit(
    function: Callable[..., Any], *arguments: str, **options: Any
) -> tuple[inspect.Signature, TypeError] | None:
    """Return what a callable takes and why not these; without a signature its first call shows."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        return signature, error
    return None

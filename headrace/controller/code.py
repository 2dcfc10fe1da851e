"""Users' code as it was imported, and importing it afresh."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import ChangeKind, ConfigChange, ReloadEffect, single_sinks
from headrace.core.files import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from headrace.config import ChannelConfig

#: Our own package holds the process together, so a processor in it is never imported afresh.
_OWN = "headrace"


@dataclass(frozen=True, slots=True)
class _Package:
    """A package, whose modules are imported afresh together.

    ``portion`` is the folder that counts of a namespace package with several: what others have in
    theirs may be anything, and need not bear to be imported twice.
    """

    name: str
    portion: Path | None

    def modules(self) -> dict[str, ModuleType]:
        """Return what is imported of it."""
        below = f"{self.name}."
        return {
            name: module
            for name, module in tuple(sys.modules.items())
            if name == self.name or (name.startswith(below) and not self.name.startswith(_OWN))
            if self.portion is None or _is_in(module, self.portion)
        }

    def files(self, modules: Mapping[str, ModuleType]) -> set[Path]:
        """Return its sources: of what was imported, and of what could be."""
        origins = (getattr(module, "__file__", None) for module in modules.values())
        found = {Path(origin) for origin in origins if origin is not None}
        folders = (
            [self.portion] if self.portion else getattr(modules.get(self.name), "__path__", ())
        )
        for folder in folders:
            found |= set(Path(folder).rglob("*.py"))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The modules of one package, and the digests of its files when they were imported."""

    package: _Package
    modules: Mapping[str, ModuleType]
    files: Mapping[Path, str]

    @property
    def is_stale(self) -> bool:
        """Return whether a file is not what was imported. Blocks for as long as reading takes."""
        files = self.package.files(self.modules)
        return self.files != {path: digest(path) for path in files}


@dataclass(frozen=True, slots=True)
class Former:
    """The code that a channel ran, and what of it was imported and has been forgotten."""

    name: str
    of_channel: tuple[Code, ...]
    imported: tuple[Code, ...]


def import_paths(channel: ChannelConfig) -> tuple[str, ...]:
    """Return where a channel's code is: the processor's, then the decoder's and the sinks'."""
    named = channel.processor.decoder
    decoder = None if named is None else named.factory
    sinks = (sink.code for sink in single_sinks(channel.sink).values())
    paths = (*channel.processor.code_paths, decoder, *sinks)
    return tuple(path for path in paths if path is not None)


class CodeBook:
    """The code that each channel runs, of those that want theirs followed. For one thread."""

    def __init__(self) -> None:
        self._imported: dict[_Package, Code] = {}
        self._of_channels: dict[str, tuple[Code, ...]] = {}

    def note(self, name: str, channel: ChannelConfig) -> None:
        """Record the modules that processor and sink were built from."""
        paths = import_paths(channel) if channel.processor.reload else ()
        # one package counts once
        codes = {code.package: code for code in map(self._code, paths)}
        self._of_channels[name] = tuple(codes.values())

    def _code(self, path: str) -> Code:
        package = _package(path)
        known, modules = self._imported.get(package), package.modules()
        if known is None or known.modules != modules:
            files = {file: digest(file) for file in package.files(modules)}
            known = self._imported[package] = Code(package, modules, files)
        return known

    def files(self) -> dict[Path, str]:
        """Return the files to watch, with the digests of what the channels run. Any thread."""
        found: dict[Path, str] = {}
        for codes in tuple(self._of_channels.values()):
            for code in codes:
                found |= code.files
        return found

    def change(self, name: str) -> ConfigChange | None:
        """Return that a channel's files are not what it runs, None while they are."""
        if not any(code.is_stale for code in self._of_channels.get(name, ())):
            return None
        steps = ("channels", name, "processor", "code")
        return ConfigChange(steps, ChangeKind.CODE, None, None, ReloadEffect.CHANNEL)

    def forget(self, name: str) -> Former:
        """Unload a channel's packages whose files have changed; the next use imports them again.

        Returns:
            what to give to ``restore`` to have things as they were.
        """
        codes = self._of_channels.get(name, ())
        present = (self._imported.get(code.package) for code in codes)
        stale = tuple(code for code in present if code is not None and code.is_stale)
        for code in stale:
            self._unload_code(code)
        importlib.invalidate_caches()
        return Former(name, codes, stale)

    def _unload_code(self, code: Code) -> None:
        _unload_package(code.package)
        for file in code.files:
            # a source that was changed within a second, and is as long, looks like the compiled one
            with suppress(OSError, NotImplementedError, ValueError):
                Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        del self._imported[code.package]

    def restore(self, former: Former) -> None:
        """Restore the modules from before ``forget``."""
        self._of_channels[former.name] = former.of_channel
        for code in former.imported:
            self._restore(code)

    def _restore(self, code: Code) -> None:
        _unload_package(code.package)
        sys.modules.update(code.modules)
        for name, module in code.modules.items():
            parent, _, own = name.rpartition(".")
            if parent in sys.modules and parent not in code.modules:
                setattr(sys.modules[parent], own, module)
        self._imported[code.package] = code


def _package(path: str) -> _Package:
    """Return what a channel's import path belongs to, which is imported."""
    module = path.partition(":")[0]
    first = module.partition(".")[0]
    if first == _OWN:
        return _Package(module, None)
    top, found = sys.modules.get(first), sys.modules.get(module)
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    if found is None or len(folders) < 2 or getattr(top, "__file__", None) is not None:  # noqa: PLR2004 - several
        return _Package(first, None)
    return _Package(first, next((folder for folder in folders if _is_in(found, folder)), None))


def _is_in(module: ModuleType, folder: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).is_relative_to(folder)


def _unload_package(package: _Package) -> None:
    """Unload the package, to be imported again; code that has its modules keeps them."""
    modules = package.modules()
    for name in modules:
        del sys.modules[name]
    for name in modules:
        # a namespace that stays would give a module away as its own, and it would not be imported
        parent, _, own = name.rpartition(".")
        if parent in sys.modules and hasattr(sys.modules[parent], own):
            delattr(sys.modules[parent], own)

"""Sections that are chosen by their ``type``: kinds that come with Headrace, and those of plug-ins.

A kind is a class of sections. Its module is imported when a configuration first names the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property, reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import PydanticUserError
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from headrace.config.errors import FieldConflict, conflict_in, either, subject
from headrace.config.expand import Expanded
from headrace.config.models.base import ReloadEffect, Section
from headrace.core.imports import load_own
from headrace.core.plugins import PluginKind, installed_plugins
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
    from pydantic.json_schema import JsonSchemaValue

    from headrace.core.plugins import Plugin

S = TypeVar("S", bound=Section)


class KindTable(Generic[S]):
    """The kinds of one place in the file. As an annotation of a field it reads the section there.

    Each kind derives from ``base``. ``built_in`` has the import path of each kind that comes with
    Headrace, by its type. Packages offer others as entry points in the group of ``plugins``, whose
    names are the types. ``of_text`` returns the mapping that bare text stands for; without it a
    section is a mapping only. Any thread may read the table.
    """

    def __init__(
        self,
        base: type[S],
        plugins: PluginKind,
        built_in: Mapping[str, str],
        of_text: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        self._base = base
        self._plugins = plugins
        self._built_in = dict(built_in)
        self._of_text = of_text
        self._loaded: dict[str, type[S]] = {}
        self._plugin_kinds: dict[Plugin, type[S]] = {}
        self._validators: dict[type[S], SchemaValidator] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types of the kinds that come with Headrace."""
        return tuple(self._built_in)

    def without(self, *types: str) -> KindTable[S]:
        """Return the table of a place where some built-in kinds cannot stand."""
        rest = {name: path for name, path in self._built_in.items() if name not in types}
        return KindTable(self._base, self._plugins, rest, self._of_text)

    def __getitem__(self, name: str) -> type[S]:
        """Import and return a kind that comes with Headrace.

        Raises:
            KeyError: Headrace has no such kind.
        """
        if name not in self._loaded:
            self._loaded[name] = load_own(self._built_in[name])
        return self._loaded[name]

    def known(self) -> tuple[type[S], ...]:
        """Import and return the built-in kinds, and those of plug-ins that were named before."""
        built_in = tuple(self[name] for name in self._built_in)
        offered = self._offered() if self._plugin_kinds else ()
        found = (self._plugin_kinds.get(plugin) for plugin in offered)
        return built_in + tuple(kind for kind in found if kind is not None)

    def installed(self) -> tuple[type[S], ...]:
        """Import and return the built-in kinds and those of all installed packages.

        Plug-ins that cannot be used, and those that are factories, are left out.
        """
        for plugin in self._offered():
            with suppress(PydanticCustomError):
                self._of_plugin(plugin)
        return self.known()

    def _offered(self) -> list[Plugin]:
        offered = installed_plugins(self._plugins)
        return [plugin for plugin in offered if plugin.name not in self._built_in]

    def _find(self, name: Any) -> type[S]:
        """Return the kind of a type as it stands in the file.

        Raises:
            PydanticCustomError: no kind has this type, or its plug-in cannot be used.
        """
        if isinstance(name, str) and name in self._built_in:
            return self[name]
        offered = self._offered()
        named = [plugin for plugin in offered if plugin.name == name]
        if not named:
            raise _refuse(_unknown(name, (*self._built_in, *(each.name for each in offered))))
        if len(named) > 1:
            packages = " and ".join(plugin.package for plugin in named)
            raise _refuse(f"{subject(name)} is offered by {packages}; uninstall one of them")
        return self._of_plugin(named[0])

    def _of_plugin(self, plugin: Plugin) -> type[S]:
        if plugin not in self._plugin_kinds:
            self._plugin_kinds[plugin] = self._import(plugin)
        return self._plugin_kinds[plugin]

    def _import(self, plugin: Plugin) -> type[S]:
        base, where = self._base, f"'{plugin.name}' of package {plugin.package}"
        try:
            found = _load(plugin.factory)
        except (Exception, SystemExit) as error:
            raise _refuse(
                f"{where} cannot be used: importing {plugin.factory} failed: "
                f"{describe_error(error)}"
            ) from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise _refuse(
                f"{where} is no {base.__name__}, but a factory; write type: custom and factory: "
                f"{plugin.name}"
            )
        try:
            found.model_rebuild()
        except (NameError, PydanticUserError) as error:
            raise _refuse(
                f"{where} cannot be used: a field of {plugin.factory} has a type that is not "
                f"known there: {describe_error(error)}"
            ) from error
        undeclared = [
            field.alias or name
            for name, field in found.model_fields.items()
            if not any(isinstance(each, ReloadEffect) for each in field.metadata)
        ]
        if undeclared:
            raise _refuse(
                f"{where} cannot be used: {plugin.factory} does not say what a reload does with a "
                f"new value of {', '.join(undeclared)}; annotate the field with Restarts[...] or "
                "Hot[...]"
            )
        if found.tag() != plugin.name:
            raise _refuse(
                f"{where} is the section {plugin.factory}, whose type is {subject(found.tag())}; "
                "the entry point and the default of its field type have to be the same"
            )
        return found

    def _read(self, value: Any, info: ValidationInfo) -> S:
        if isinstance(value, self._base):
            return value
        if isinstance(value, str) and self._of_text is not None:
            value = self._of_text(value)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("no_section", "is not a mapping with a type")
        if "type" not in value:
            raise _refuse(f"is missing; give {either(self._built_in)}")
        kind = self._find(value["type"])
        if kind not in self._validators:
            # a union of one, for the type to be part of where an error is
            union = core_schema.tagged_union_schema(
                {kind.tag(): kind.__pydantic_core_schema__}, discriminator="type"
            )
            self._validators[kind] = SchemaValidator(union)
        read: S = self._validators[kind].validate_python(value, context=info.context)
        return read

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        choices = {kind.tag(): kind.__pydantic_core_schema__ for kind in self.installed()}
        union = handler(core_schema.tagged_union_schema(dict(choices), discriminator="type"))
        return union if self._of_text is None else {"anyOf": [{"type": "string"}, union]}


class OneKind(Generic[S]):
    """The one kind of a place in the file. As an annotation of a field it reads the section there.

    Its class derives from ``base``, and is imported from ``path`` when a file first has such a
    section. Any thread.
    """

    def __init__(self, base: type[S], path: str) -> None:
        self._base = base
        self._path = path

    def known(self) -> tuple[type[S], ...]:
        """Import and return the kind."""
        return (self._kind,)

    @cached_property
    def _kind(self) -> type[S]:
        found: type[S] = load_own(self._path)
        return found

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._kind.__pydantic_core_schema__)

    def _read(self, value: Any, info: ValidationInfo) -> S:
        if isinstance(value, self._base):
            return value
        read: S = self._validator.validate_python(value, context=info.context)
        return read

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # as a choice of one it becomes a definition of its own
        return handler(core_schema.union_schema([self._kind.__pydantic_core_schema__]))


def _load(path: str) -> Any:
    """Return what the path of an entry point names, which may lie within a class."""
    module, _, attribute = path.partition(":")
    return reduce(getattr, filter(None, attribute.split(".")), import_module(module))


def _refuse(sentence: str) -> PydanticCustomError:
    return conflict_in([FieldConflict(("type",), sentence)])


def _unknown(name: Any, types: tuple[str, ...]) -> str:
    near = []
    if isinstance(name, str) and not isinstance(name, Expanded):
        near = get_close_matches(name, types, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{subject(name)} is not {either(types)}{meant}"

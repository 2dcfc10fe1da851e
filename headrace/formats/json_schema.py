"""Values in JSON with the frame of a schema registry into columns of the reducer's schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.decoders import CustomDecoder
from headrace.core.errors import ConfigError
from headrace.core.misfits import explained
from headrace.formats.bodies import NOT_FRAMED, Framed, Reasons, looked_up
from headrace.formats.json_values import JsonDecoder
from headrace.formats.registry import SchemaRegistry, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config.models.registry import RegistryConfig
    from headrace.core.tables import Timestamps
    from headrace.formats.registry import RegistrySettings

_FACTORY = "headrace.formats.json_schema:json_schema_decoder"
_VALUES_FACTORY = "headrace.formats.json_schema:json_values_decoder"

_SIMPLE = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
}


def json_schema_decoder(
    kind: pa.StructType, timestamps: Timestamps, registry: RegistrySettings
) -> JsonSchemaDecoder:
    """Return the decoder of one process. Nothing is asked of the registry yet."""
    return JsonSchemaDecoder(JsonDecoder(kind, timestamps), SchemaRegistry(registry))


def decoder_of(registry: RegistryConfig) -> CustomDecoder:
    """Return the decoder of a channel, to which :func:`with_columns` gives its columns."""
    return CustomDecoder(_FACTORY, {"registry": settings_of(registry)})


def with_columns(
    decoder: CustomDecoder, kind: pa.StructType, timestamps: Timestamps
) -> CustomDecoder:
    """Return a decoder that makes these columns.

    Raises:
        ConfigError: ``kind`` has a type to which JSON is not decoded.
    """
    for name, found in _others(kind, ""):
        raise ConfigError(
            [f"column {name} is {found}, to which json_schema decodes no JSON; leave it out"]
        )
    return decoder.with_options(kind=kind, timestamps=timestamps)


def _others(kind: pa.DataType, place: str) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns of types to which JSON is not decoded."""
    if pa.types.is_struct(kind):
        for each in kind:
            yield from _others(each.type, f"{place}.{each.name}".lstrip("."))
    elif pa.types.is_list(kind):
        yield from _others(kind.value_type, place)
    elif kind not in _SIMPLE and not pa.types.is_decimal128(kind):
        yield place, kind


def json_values_decoder(registry: RegistrySettings) -> JsonValuesDecoder:
    """Return the decoder of one process. Nothing is asked of the registry yet."""
    return JsonValuesDecoder(SchemaRegistry(registry))


def values_decoder_of(registry: RegistryConfig) -> CustomDecoder:
    """Return the decoder of a channel that takes values as they are, without columns."""
    return CustomDecoder(_VALUES_FACTORY, {"registry": settings_of(registry)})


class JsonValuesDecoder:
    """Reads documents in JSON that have a frame: an ObjectDecoder. Any thread.

    It blocks where an id is new.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def objects(self, values: pa.Array) -> tuple[list[Any], Mapping[int, str]]:
        """Return what each value says, and by their places why others say nothing.

        Raises:
            RetryableError: the registry does not say now what a schema is.
        """
        framed = Framed(values)
        reasons, read = _unread(framed, self._registry)
        found: list[Any] = []
        for place, body in enumerate(framed.bodies(read).to_pylist()):
            document = None
            if body is not None:
                try:
                    document = json.loads(body)
                except (ValueError, RecursionError) as error:
                    reason = explained(error, body)
                    reasons[place] = f"schema id {framed.ids[place].as_py()}: {reason}"
            found.append(document)
        return found, reasons


def _unread(framed: Framed, registry: SchemaRegistry) -> tuple[dict[int, str], list[int]]:
    """Return why values are not in JSON, by their places, and the ids of those that are.

    Raises:
        RetryableError: the registry does not say now what a schema is.
    """
    reasons = dict.fromkeys(framed.bad, NOT_FRAMED)
    read = []
    for number, found in looked_up(registry, framed.known).items():
        wrong = found if isinstance(found, str) else None
        if not isinstance(found, str) and found.kind != "JSON":
            wrong = f"it is of type {found.kind}, not JSON"
        if wrong is None:
            read.append(number)
        else:
            reason = f"schema id {number}: {wrong}"
            reasons.update(dict.fromkeys(framed.places(number), reason))
    return reasons, read


class JsonSchemaDecoder:
    """Makes rows of objects in JSON that have a frame. Any thread; blocks where an id is new.

    A value's schema is looked up, so that an id that is none is found; the value is not checked
    against it, only against the columns.
    """

    def __init__(self, values: JsonDecoder, registry: SchemaRegistry) -> None:
        self.kind: pa.StructType = values.kind
        self._values = values
        self._registry = registry

    def columns(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, and by their places why others have none.

        Raises:
            RetryableError: the registry does not say now what a schema is.
        """
        framed = Framed(values)
        reasons, read = _unread(framed, self._registry)
        bodies = framed.bodies(read)
        rows, bad = self._values.read(bodies)

        def why(place: int) -> str:
            if place in reasons:
                return reasons[place]
            said = self._values.why_bad(bodies[place].as_py(), bad[place])
            return f"schema id {framed.ids[place].as_py()}: {said}"

        return rows, Reasons([*reasons, *bad], why)

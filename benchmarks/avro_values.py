"""Values in Avro for the benchmark ``decode``, and the sides that make columns of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyruhvro

from benchmarks.orders import more_fields, order
from headrace.formats.avro.decoder import AvroDecoder
from headrace.formats.avro.schema import parse_schema
from headrace.formats.registry import RegisteredSchema

if TYPE_CHECKING:
    from collections.abc import Callable

#: How fast Avro has to be, in records of a second of a core and beside pyruhvro, and what a tenth
#: of bad values may cost.
TARGETS = {
    "avro_records_per_cpu_s": 4_000_000,
    "avro_730b_records_per_cpu_s": 1_000_000,
    "avro_ratio_to_pyruhvro": 1.5,
    "avro_cost_of_bad": 1.2,
}

_ID, _BAD, _FRAME = 7, 10, 5
_TEXTS = _NUMBERS = 12

_SMALL = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "product", "type": "string"},
    {"name": "quantity", "type": "int"},
    {"name": "price", "type": "double"},
    {"name": "paid", "type": "boolean"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
_LARGE = [
    *_SMALL,
    *({"name": f"s{at}", "type": "string"} for at in range(_TEXTS)),
    *({"name": f"n{at}", "type": "long"} for at in range(_NUMBERS)),
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]


def small(number: int) -> dict[str, Any]:
    """Return an order, of about 110 bytes in Avro."""
    return order(number, "leave it at the door, and ring twice; thanks")


def large(number: int) -> dict[str, Any]:
    """Return one with 33 fields and a list, of about 730 bytes."""
    more = more_fields(number, _TEXTS, _NUMBERS)
    return small(number) | more | {"tags": ["a", "bb", f"t{number % 100}"]}


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Framed values of one schema, and what decodes them."""

    schema: str
    values: pa.Array

    @classmethod
    def of(cls, size: str, count: int) -> AvroValues:
        """Return so many values of about this size: 110b or 730b."""
        fields, document = (_SMALL, small) if size == "110b" else (_LARGE, large)
        schema = {"type": "record", "name": "Order", "fields": fields}
        text = json.dumps(schema)
        parsed, framed = fastavro.parse_schema(schema), []
        for number in range(count):
            out = io.BytesIO()
            out.write(b"\0" + _ID.to_bytes(4, "big"))
            fastavro.schemaless_writer(out, parsed, document(number))
            framed.append(out.getvalue())
        return cls(text, pa.array(framed, pa.binary()))

    @property
    def mean_size(self) -> int:
        """Return the bytes of a value, with its frame."""
        return round(sum(map(len, self.values.to_pylist())) / len(self.values))

    def with_bad(self) -> AvroValues:
        """Return the same where each tenth value is cut short."""
        cut = [v[:-3] if at % _BAD == 0 else v for at, v in enumerate(self.values.to_pylist())]
        return AvroValues(self.schema, pa.array(cut, pa.binary()))

    def schema_of(self, number: int) -> RegisteredSchema:
        """Return the writer's schema, which is the reader's as well."""
        return RegisteredSchema(number, "AVRO", self.schema)

    def ours(self) -> Callable[[], object]:
        """Return what decodes a batch by the decoder of channels."""
        decoder = AvroDecoder(parse_schema(self.schema), _Schemas(self))
        return lambda: decoder.columns(self.values)

    def pyruhvro(self) -> Callable[[], object]:
        """Return what decodes it by pyruhvro, which takes a list of values without frames.

        The list is made before, though a channel's values do not come as one.
        """
        bodies = [value[_FRAME:] for value in self.values.to_pylist()]
        return lambda: pyruhvro.deserialize_array(bodies, self.schema)


@dataclass(frozen=True, slots=True)
class _Schemas:
    values: AvroValues

    def schema(self, number: int | str) -> RegisteredSchema:
        """Return the one that there is."""
        return self.values.schema_of(int(number))

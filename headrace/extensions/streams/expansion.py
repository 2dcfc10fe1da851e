"""From the section of a topology to those of the channels that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.models.channel import ChannelConfig
from headrace.config.models.sink import single_sinks
from headrace.config.problems import problems
from headrace.config.types.secrets import reveal_all
from headrace.core.errors import ConfigError
from headrace.extensions.streams.decode import has_bytes
from headrace.extensions.streams.names import table_channel, table_topic
from headrace.extensions.streams.operators import (
    StreamJoin,
    TableSource,
)
from headrace.extensions.streams.tables import find_aggregate, table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationInfo

    from headrace.config.errors import Steps
    from headrace.extensions.streams.operators import Operator, Output
    from headrace.extensions.streams.plan import Channel
    from headrace.extensions.streams.section import TopologyConfig

#: Seconds between two deletions of what is processed of a by-key topic, as Kafka Streams has it.
PURGE_INTERVAL = 30.0

#: Keys of a processor that the topology decides, and of that of a table's channel.
_OF_PROCESSOR = ("code", "options", "topology", "topology_group", "part", "tables", "stores")
_OF_TABLE = ("reducer", "decode", "schema")

#: Keys of the channel of a table, which reads a topic that is made for it.
_READS_ALL = {"initial_offset": "earliest", "offset_out_of_range": "stop"}


class Expansion:
    """Makes the channels of a topology of a name."""

    def __init__(self, section: TopologyConfig, name: str, info: ValidationInfo) -> None:
        """Plan the topology. Imports its code.

        Raises:
            PydanticCustomError: it cannot be planned.
        """
        self._section, self._name, self._info = section, name, info
        try:
            self._plan = section.plan(name, info.data.get("python_path") or ())
        except ConfigError as error:
            code = section.code
            found = [FieldConflict(("code",), f"is {code}, which {e}") for e in error.problems]
            raise conflict_in(found) from error

    def channels(self) -> Mapping[str, ChannelConfig]:
        """Return the channels by their names, in the order of their start.

        Raises:
            PydanticCustomError: they cannot be made; its places begin in the section.
        """
        conflicts = list(self._conflicts())
        unusable = list(self._conflicts_of_processors())
        if unusable:
            raise conflict_in([*unusable, *conflicts])
        documents: dict[str, dict[str, Any]] = {}
        parts = {}
        for each in self._plan.channels_in_order:
            part = each.name.removeprefix(f"{self._name}.")
            parts[part], documents[part] = each, self._document(each, part)
        for table in self._section.tables:
            documents[table_channel(table)] = self._table_document(table)
        made: dict[str, ChannelConfig] = {}
        for part, document in documents.items():
            try:
                channel = ChannelConfig.model_validate(document, context=self._info.context)
                made[f"{self._name}.{part}"] = channel
                if part in parts:
                    # beside the fields: the code need not be called again
                    channel.processor.__dict__["planned"] = (self._plan, parts[part])
            except ValidationError as error:
                conflicts += [
                    FieldConflict(self._origin(part, steps), sentence)
                    for steps, sentence in problems(error, ChannelConfig)
                ]
        if conflicts:
            raise conflict_in(list(dict.fromkeys(conflicts)))
        return made

    def _conflicts(self) -> Iterator[FieldConflict]:
        parts = [each.name.removeprefix(f"{self._plan.name}.") for each in self._plan.channels]
        parts += map(table_channel, self._section.tables)
        for part in self._section.channels:
            if part not in parts:
                yield FieldConflict(
                    ("channels", part),
                    f"is no channel of the topology, which becomes {', '.join(parts)}",
                )
        for name, sink in self._section.tables.items():
            if any(each.writes_records for each in single_sinks(sink).values()):
                yield FieldConflict(
                    ("tables", name, "type"),
                    f"is {sink.type}, which writes records and no table; write rows with "
                    f".to(topic) in {self._section.code}",
                )
                continue
            found, key = find_aggregate(self._plan.operators, name), set(getattr(sink, "key", ()))
            assert found is not None, "the plan has it"
            if self._section.table_rows[name] == "updates" and key != (
                own := set(table_rows(found[1]).key)
            ):
                yield FieldConflict(
                    ("tables", name, "key"),
                    f"is {', '.join(sorted(key))}, and a row of {name} is told from others by "
                    f"{', '.join(sorted(own))}; write that",
                )
        for place, operator in enumerate(self._plan.operators):
            if isinstance(operator, StreamJoin):
                yield from self._conflicts_of_join(operator)
            is_table = isinstance(operator, TableSource) and not operator.shared
            if is_table or place in self._plan.answers:
                yield from self._conflicts_of_rows(operator, operator.output, None)

    def _conflicts_of_processors(self) -> Iterator[FieldConflict]:
        """Yield which keys of processors are not for the section to say."""
        tables = set(map(table_channel, self._section.tables))
        sections: dict[Steps, Mapping[str, Any]] = {("channel",): self._section.channel}
        sections |= {("channels", part): own for part, own in self._section.channels.items()}
        for steps, section in sections.items():
            given = section.get("processor")
            if given is None:
                continue
            if not isinstance(given, Mapping):
                kind = type(given).__name__
                yield FieldConflict(
                    (*steps, "processor"), f"is a {kind}, and a mapping of its keys is expected"
                )
                continue
            is_table = steps[-1] in tables
            own_type = "arrow" if is_table else "streams"
            for name in _OF_TABLE if is_table else _OF_PROCESSOR:
                if name in given:
                    yield FieldConflict(
                        (*steps, "processor", name),
                        "is what the topology decides; leave it out",
                    )
            if given.get("type", own_type) != own_type:
                yield FieldConflict(
                    (*steps, "processor", "type"),
                    f"is {given['type']}, and the channel's is {own_type}; leave it out",
                )

    def _conflicts_of_join(self, operator: StreamJoin) -> Iterator[FieldConflict]:
        for place in operator.inputs:
            output = self._plan.operators[place].output
            yield from self._conflicts_of_rows(operator, output, self._plan.fields[place])

    def _conflicts_of_rows(
        self, operator: Operator, output: Output | None, names: Sequence[str] | None
    ) -> Iterator[FieldConflict]:
        """Yield which fields of rows cannot be kept in a state."""
        assert output is not None, "there are rows"
        fields = output.row.__fields__
        for name in fields if names is None else names:
            if has_bytes(fields[name].type):
                yield FieldConflict(
                    ("code",),
                    f"is {self._section.code}, and {operator.label} would keep "
                    f"{output.row.__name__}.{name}, which has bytes; leave the field out, or "
                    "have text in its place",
                )

    def _origin(self, part: str, steps: Steps) -> Steps:
        """Return where in this section a key of a channel stands."""
        tables = {table_channel(name): name for name in self._section.tables}
        if part in tables and steps and steps[0] == "sink":
            return ("tables", tables[part], *steps[1:])
        own = self._section.channels.get(part, {})
        return ("channels", part, *steps) if steps and steps[0] in own else ("channel", *steps)

    def _table_document(self, name: str) -> dict[str, Any]:
        """Return the section of the channel that writes the table of an aggregate."""
        found = find_aggregate(self._plan.operators, name)
        assert found is not None, "the plan has it"
        rows, sink = table_rows(found[1]), self._section.tables[name]
        if "repeated" in type(sink).model_fields and self._section.table_rows[name] == "updates":
            # of several updates of a row in one micro-batch the last one counts
            sink = sink.model_copy(update={"repeated": "last"})
        every = reveal_all(self._section.channel)
        own = reveal_all(self._section.channels.get(table_channel(name), {}))
        processor = {
            **(own.get("processor") or {}),
            "type": "arrow",
            "reducer": "headrace.extensions.streams.tables:rows_of",
            "decode": "json",
            "schema": rows.ddl,
        }
        return {
            **{key: value for key, value in every.items() if key not in {"rejects", "processor"}},
            **own,
            **_READS_ALL,
            "topics": [table_topic(self._section.group, name)],
            "group": f"{self._section.group}.{table_channel(name)}",
            "processor": processor,
            "sink": sink,
        }

    def _document(self, part: Channel, name: str) -> dict[str, Any]:
        """Return the section of a channel."""
        every, own = (
            reveal_all(self._section.channel),
            reveal_all(self._section.channels.get(name, {})),
        )
        given = {**every, **own}
        stores = {each.name: f"{each.rows}:{each.fingerprint}" for each in self._plan.stores}
        by_key = {*self._plan.by_key.values(), *self._plan.answer_topics}
        processor = {
            "engine": self._section.engine,
            **(every.get("processor") or {}),
            **(own.get("processor") or {}),
            "type": "streams",
            "code": self._section.code,
            "options": reveal_all(self._section.options),
            "topology": self._plan.name,
            "topology_group": self._plan.group,
            "part": name,
            "tables": self._section.table_rows,
            "stores": " ".join(stores[each] for each in part.stores) or None,
        }
        internal = processor.get("internal") or {}
        if isinstance(internal, Mapping) and by_key.intersection(part.topics):
            internal = {"purge_input": f"{PURGE_INTERVAL:g}s", **internal}
        return {
            **given,
            "topics": list(part.topics),
            "group": part.group,
            "processor": {**processor, "internal": internal},
        }

"""The ``sink`` of a channel: where results go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Restarts, Section
from headrace.config.types.addresses import DatabaseUrl, has_own_password, scheme_of
from headrace.config.types.scalars import (
    Count,
    Distinct,
    Flag,
    FreeText,
    ImportPath,
    LocalPath,
    Name,
    OneOrMore,
    SinkFactory,
    SqlTable,
    TableFolder,
    TopicName,
    WholeNumber,
)
from headrace.config.types.secrets import Options, SecretValue, reveal_all
from headrace.config.types.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.errors import Steps

#: The databases whose rows can be replaced by key.
_UPSERTING = ("postgresql", "sqlite")


class DeltaSinkConfig(Section):
    """A Delta table: rows and offsets are committed together, so each record counts once."""

    type: Restarts[Literal["delta"]] = "delta"
    """This sink."""

    path: Restarts[TableFolder]
    """The table's folder, made with the first rows where it is missing."""

    partition_by: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns that a new table is partitioned by."""

    schema_changes: Restarts[Literal["refuse", "add_columns"]] = "refuse"
    """What to do with a result whose columns are not the table's: fail, or add them."""

    origin: Restarts[Flag] = False
    """Whether each row says in a column which records it is of, for replays that replace."""

    compact_every: Restarts[Annotated[int, WholeNumber(0, 1_000_000)]] = 500
    """Commits after which small files are made into larger ones; 0 leaves that to others."""

    log_retention: Restarts[Annotated[float, Duration(minimum=10)] | None] = None
    """How long entries of the table's log are kept after a checkpoint; a new table gets 1h."""

    file_retention: Restarts[Annotated[float, Duration(minimum=60)] | None] = None
    """How long files are kept that compaction replaced; a new table gets 1d."""


class SqlSinkConfig(Section):
    """A table of a database, which takes rows and offsets in one transaction: headrace[sql]."""

    only: ClassVar = {
        "key": (OnlyWith.one_of("mode", "upsert"),),
        "origins_table": (OnlyWith.one_of("origin", True),),
    }

    type: Restarts[Literal["sql"]] = "sql"
    """This sink."""

    url: Restarts[DatabaseUrl]
    """The database, as SQLAlchemy has it; shown masked, because it may hold a password."""

    password: Restarts[SecretValue | None] = None
    """The password, in place of one in the url, where it would have to be percent-encoded."""

    table: Restarts[SqlTable]
    """The table that rows go to, which is there already."""

    mode: Restarts[Literal["append", "upsert"]] = "append"
    """Whether rows are added, or take the place of those with the same key."""

    key: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns of a primary key or unique constraint."""

    offsets_table: Restarts[SqlTable] = "headrace_offsets"
    """The table that offsets go to, made where it is missing."""

    origin: Restarts[Flag] = False
    """Whether each row says in a column which micro-batch it is of, for replays that replace."""

    origins_table: Restarts[SqlTable] = "headrace_origins"
    """The table that says what each micro-batch was made of, made where it is missing."""

    def conflicts(self) -> Iterator[FieldConflict]:
        scheme = scheme_of(self.url)
        if self.password is not None and has_own_password(self.url):
            yield FieldConflict(
                ("password",), "is given beside the one in the url; leave one of them out"
            )
        if self.mode == "upsert" and not self.key:
            yield FieldConflict(
                ("key",), "is missing; mode: upsert takes the columns that make a row unique"
            )
        if self.mode == "upsert" and scheme not in _UPSERTING:
            yield FieldConflict(
                ("mode",),
                f"is upsert, which takes {' or '.join(_UPSERTING)}, and the url begins with "
                f"{scheme}; use mode: append",
            )
        if self.mode == "upsert" and self.origin:
            yield FieldConflict(
                ("origin",),
                "does not go with mode: upsert, where what a row was before is not kept; leave it "
                "out",
            )
        others = {"offsets_table": self.offsets_table, "origins_table": self.origins_table}
        for name, other in others.items():
            if other == self.table:
                yield FieldConflict((name,), "is the table that rows go to; name another one")
        if self.offsets_table == self.origins_table:
            yield FieldConflict(("origins_table",), "is the table of the offsets; name another one")


class KafkaSinkConfig(Section):
    """Records in the cluster that is read, in one transaction with the offsets they are of."""

    type: Restarts[Literal["kafka"]] = "kafka"
    """This sink."""

    topic: Restarts[TopicName | None] = None
    """The topic that rows go to, which is there already; null: the column ``topic`` says it."""

    loop: Restarts[Flag] = False
    """Whether the channel may read that topic itself: each result comes back as a record, which the
    reducer has to know and pass over, or it goes round forever."""


class JsonLinesSinkConfig(Section):
    """JSON lines in a file."""

    type: Restarts[Literal["jsonl"]] = "jsonl"
    """This sink."""

    path: Restarts[LocalPath]
    """The file that rows are appended to; several processes may share it."""


class ConsoleSinkConfig(Section):
    """A few rows of each micro-batch on standard output, for a look."""

    type: Restarts[Literal["console"]] = "console"
    """This sink."""

    rows: Restarts[Count] = 20
    """How many rows to print of each micro-batch."""


class NoopSinkConfig(Section):
    """Results are computed and dropped, for measurements."""

    type: Restarts[Literal["noop"]] = "noop"
    """This sink."""


class CustomSinkConfig(Section):
    """A custom sink."""

    type: Restarts[Literal["custom"]] = "custom"
    """This sink."""

    factory: Restarts[SinkFactory]
    """The class or function that returns a sink, or the name of a plug-in."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the factory is called with, as keyword arguments."""

    guarantee: Restarts[Literal["at_least_once", "exactly_once"]] = "at_least_once"
    """What the sink has to promise at the least; it is asked at the start."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)


class FunctionSinkConfig(Section):
    """A custom function, for the simple processor."""

    type: Restarts[Literal["function"]] = "function"
    """This sink."""

    function: Restarts[ImportPath]
    """The function that gets each batch or record."""


_OfResults: TypeAlias = (
    DeltaSinkConfig
    | SqlSinkConfig
    | KafkaSinkConfig
    | JsonLinesSinkConfig
    | ConsoleSinkConfig
    | NoopSinkConfig
    | CustomSinkConfig
)
OutputConfig = Annotated[_OfResults, Field(discriminator="type")]


def sink_form(value: Any) -> Any:
    """Let bare text name a function, or the type of a sink."""
    if not isinstance(value, str):
        return value
    return {"type": "function", "function": value} if ":" in value else {"type": value}


class SeveralSinkConfig(Section):
    """A sink for each of the results that a reducer returns, by their names."""

    type: Restarts[Literal["several"]] = "several"
    """This sink."""

    outputs: Restarts[
        Annotated[
            Mapping[Name, Annotated[OutputConfig, BeforeValidator(sink_form, str | OutputConfig)]],
            Field(min_length=1),
        ]
    ]
    """The sinks by the names of the results. Those that keep no offsets are written first, the
    others in the order of the file; tables of one database and topics together."""

    def conflicts(self) -> Iterator[FieldConflict]:
        for (first, one), (second, other) in combinations(self.outputs.items(), 2):
            if _place(one) is not None and _place(one) == _place(other):
                yield FieldConflict(
                    ("outputs", second),
                    f"goes where {first} goes; give it a table of its own, or have the reducer "
                    "return both as one result",
                )


def _place(output: OutputConfig) -> object:
    """Return where an output keeps its offsets, None where it keeps none of its own."""
    match output:
        case DeltaSinkConfig(path=path):
            return path
        case SqlSinkConfig(url=url, table=table, offsets_table=offsets):
            return url, table, offsets
        case CustomSinkConfig(factory=factory, options=options):
            return factory, options
        case _:
            return None


SinkConfig = Annotated[
    _OfResults | SeveralSinkConfig | FunctionSinkConfig, Field(discriminator="type")
]

#: What stands for itself: every sink but one of several outputs.
SingleSinkConfig: TypeAlias = OutputConfig | FunctionSinkConfig

#: The types of sinks that fit each type of processor; a custom processor has its own.
_RESULTS = ("delta", "sql", "kafka", "jsonl", "console", "noop", "custom", "several")
FITTING: dict[str, tuple[str, ...]] = {
    "spark": _RESULTS,
    "arrow": _RESULTS,
    "keyed": ("kafka", "several"),
    "rekey": ("kafka",),
    "simple": ("function",),
    "custom": (),
}


def single_sinks(sink: SinkConfig | None) -> Mapping[Steps, SingleSinkConfig]:
    """Return the sinks that results go to, by their places in the channel."""
    if sink is None:
        return {}
    if isinstance(sink, SeveralSinkConfig):
        return {("sink", "outputs", name): output for name, output in sink.outputs.items()}
    return {("sink",): sink}


def keeps_offsets(sink: SinkConfig | None) -> bool:
    """Whether the sink keeps offsets, by which a start goes."""
    return any(map(_keeps, single_sinks(sink).values()))


def refuses_late(sink: SinkConfig | None) -> bool:
    """Whether the sink stores nothing for a former owner: all that it writes to keeps offsets.

    Of several outputs those that keep none are written before the others could refuse.
    """
    singles = single_sinks(sink).values()
    return bool(singles) and all(map(_keeps, singles))


def _keeps(sink: SingleSinkConfig) -> bool:
    if isinstance(sink, CustomSinkConfig):
        return sink.guarantee == "exactly_once"
    return isinstance(sink, DeltaSinkConfig | SqlSinkConfig | KafkaSinkConfig)

"""The command ``headrace reduce``, from the command line to an exit code."""

from __future__ import annotations

import json
import re
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pydantic import ValidationError
from rich.console import Console

from headrace import config
from headrace.config.cli import EXIT_CONFIG, report
from headrace.core.clock import Deadline
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    ImportPathError,
    ReducerError,
    ResultMisfitError,
    StartError,
    UsageError,
)
from headrace.core.extras import Extra, required
from headrace.core.records import Batch, Record, TopicPartition, offset_of
from headrace.core.tables import SCHEMA, table_of
from headrace.extensions.arrow.reducer import dry_run, load_arrow_reducer
from headrace.extensions.arrow.section import ArrowProcessorConfig
from headrace.extensions.spark.section import SparkProcessorConfig
from headrace.extensions.spark.settings import spark_settings
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog
from headrace.kafka.catalog import meant
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaUnavailableError
from headrace.ops.offsets.commands import EXIT_FAILED, channel_name
from headrace.processors.micro_batch_processor import decode
from headrace.sinks.console import ConsoleSink
from headrace.sinks.jsonl import json_lines
from headrace.sinks.micro_batch import DryRunBatch, dry_run_batch
from headrace.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias


#: How every file of Parquet begins.
_PARQUET = b"PAR1"


def read_file(path: Path) -> pa.Table:
    """Return a file's records, with the columns of every micro-batch. Blocks.

    Lines of JSON are values. So are rows of Parquet, as JSON, unless the file has a column
    ``value``: then its columns are those of the records. What a file does not say is: the topic,
    named like the file; partition 0; offsets from 0 on; null for the rest.

    Raises:
        UsageError: the file cannot be read, or a column is of a wrong type.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
        if not is_parquet:
            return _of_values(_lines(path), path.stem)
        found = pq.read_table(path)
        if "value" in found.column_names:
            return _of_records(found, path.stem)
        return _of_values([line.encode() for line in json_lines(found)], path.stem)
    except (OSError, pa.ArrowException, ResultMisfitError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if line.strip()]


def _of_values(values: Sequence[bytes], topic: str) -> pa.Table:
    return _of_records(pa.table({"value": pa.array(values, pa.binary())}), topic)


def _of_records(given: pa.Table, topic: str) -> pa.Table:
    count = given.num_rows
    defaults = {
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
    }
    columns = []
    for field in SCHEMA:
        if field.name in given.column_names:
            columns.append(_cast(given.column(field.name), field))
        else:
            columns.append(defaults.get(field.name, pa.nulls(count, field.type)))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(
            f"its column {field.name!r} is of type {column.type} and should be {field.type}"
        ) from error


if TYPE_CHECKING:
    ReducerConfig: TypeAlias = SparkProcessorConfig | ArrowProcessorConfig


def processor_of(wanted: DryrunOptions, settings: config.Config | None) -> ReducerConfig:
    """Return the processor that is wanted: the channel's, unless the type is given.

    Raises:
        UsageError: the command line does not say enough, or too much, or the channel has no
            reducer.
    """
    if settings is None or wanted.kind is not None:
        return _built(wanted, {})
    name = channel_name(settings, wanted.channel)
    found = settings.channels[name].processor
    if not isinstance(found, SparkProcessorConfig | ArrowProcessorConfig):
        raise UsageError(
            f"channel {name} is of type {found.type}, which has no reducer; choose another one"
        )
    # what the file says, but for ``reload``: nothing is followed here
    given = found.model_dump(by_alias=True, exclude_unset=True, exclude={"reload"})
    return _built(wanted, given | {"type": found.type})


def _built(wanted: DryrunOptions, given: dict[str, Any]) -> ReducerConfig:
    """Return the processor with what the command line says in place of what is given."""
    kind = wanted.kind or given.get("type", "spark")
    if kind not in {"spark", "arrow"}:
        raise UsageError(f"--type {kind} is not spark or arrow")
    place = "arrow" if given.get("arrow") and not wanted.sql else "reducer"
    code = {place: wanted.reducer, "sql": wanted.sql}
    if wanted.reducer or wanted.sql:
        gone = {"reducer", "sql", "arrow"} | ({"result"} if wanted.sql else set())
        given = {key: value for key, value in given.items() if key not in gone}
    values = {**given, **{key: value for key, value in code.items() if value}, "type": kind}
    if wanted.schema is not None:
        values |= {"decode": "json", "schema": wanted.schema}
    return _validated(kind, values)


def _validated(kind: str, values: dict[str, Any]) -> ReducerConfig:
    model = SparkProcessorConfig if kind == "spark" else ArrowProcessorConfig
    if "sql" in values and kind == "arrow":
        raise UsageError("--sql goes with --type spark")
    if not any(values.get(name) for name in ("reducer", "sql", "arrow")):
        raise UsageError("there is nothing to try; give --reducer, --sql or --config")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(*[each["msg"] for each in error.errors()]) from error


#: The name that the client goes by: it is assigned its partition, and neither joins nor commits.
_GROUP = "headrace-reduce"

#: Seconds that the brokers have to answer, and again for each lot of records.
_PATIENCE = 30.0
_POLL_INTERVAL = 0.5

#: Bytes that the client may fetch ahead.
_PREFETCH = 32 << 20

_FORM = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d{1,9}):(?P<start>\d{1,18})-(?P<end>\d{1,18})")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, ``end`` not included."""

    partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition} {self.start}-{self.end}"


def parse_range(text: str) -> Range | None:
    """Return the range that a text names, None where it is none.

    Raises:
        UsageError: it ends before it begins.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    partition = TopicPartition(match["topic"], int(match["partition"]))
    found = Range(partition, int(match["start"]), int(match["end"]))
    if found.end <= found.start:
        raise UsageError(
            f"{text}: {found.end} is not past {found.start}; give FROM-TO, TO not included"
        )
    return found


@dataclass(frozen=True, slots=True)
class _NoAssignment:
    """Stands for an assignment that only the dry run knows of."""

    partition: TopicPartition
    position: int
    identity: str = ""
    epoch: int = 0
    committed: int | None = None
    high_watermark: int | None = None
    delivery_end: int | None = None
    transactional_id: str | None = None
    leader_epoch: int | None = None

    def is_current(self) -> bool:
        """Return True."""
        return True


def read_range(wanted: Range, properties: Mapping[str, Any]) -> pa.Table:
    """Return the records of a range. Blocks.

    They may be fewer than offsets: compaction and transactions leave gaps.

    Raises:
        UsageError: the broker does not have all of the range, or no record is in it.
        KafkaUnavailableError: no broker answered in time.
    """
    _require(wanted, properties)
    source = KafkaRecordSource(properties, _GROUP, _PREFETCH)
    try:
        source.assign({wanted.partition: wanted.start})
        records = _records_of(source, wanted)
    finally:
        source.close()
    if not records:
        raise UsageError(f"{wanted}: there is no record; compaction or retention took them")
    size = sum(map(len, records))
    held = _NoAssignment(wanted.partition, wanted.end)
    return table_of(Batch(held, wanted.start, records, wanted.end, size))


def _require(wanted: Range, properties: Mapping[str, Any]) -> None:
    topic, number = wanted.partition
    catalog, deadline = KafkaTopicCatalog(properties, _GROUP), Deadline.after(_PATIENCE)
    known = catalog.describe([topic], deadline).get(topic)
    if known is None:
        near = meant(catalog, [topic], deadline)
        raise UsageError(f"topic {topic} does not exist on the brokers{near}")
    if number >= known.partitions:
        raise UsageError(
            f"topic {topic} has no partition {number}; it has {known.partitions}, from 0 on"
        )
    low, high = catalog.watermarks(wanted.partition, deadline)
    if wanted.start < low or wanted.end > high:
        text = f"{wanted.partition} has the offsets {low}-{high}, the end not included"
        raise UsageError(f"{text}; choose within them")


def _records_of(source: KafkaRecordSource, wanted: Range) -> list[Record]:
    """Fetch until the end is reached; time-out starts afresh with each lot of records."""
    found: list[Record] = []
    deadline = Deadline.after(_PATIENCE)
    while not deadline.expired:
        fetched = source.fetch(_POLL_INTERVAL)
        for _, records in fetched.chunks:
            found += [record for record in records if offset_of(record) < wanted.end]
            if offset_of(records[-1]) >= wanted.end - 1:
                return found
            deadline = Deadline.after(_PATIENCE)
        if any(offset >= wanted.end for _, offset in fetched.ends):
            return found
    raise KafkaUnavailableError(
        f"{wanted}: no more records came for {_PATIENCE:.0f} s after {len(found)} of them; look "
        "whether the partition's leader is up"
    )


T = TypeVar("T")

#: Seconds for the end of Spark.
_STOP = 20.0

#: Frames of these are of no interest to who wrote the reducer.
_OURS = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class DryrunOptions:
    """The options that say which reducer to try, and where to look for the rest."""

    reducer: str | None = None
    sql: str | None = None
    kind: str | None = None
    schema: str | None = None
    config: Path | None = None
    channel: str | None = None
    servers: str | None = None


def reduce(wanted: DryrunOptions, source: str, *, rows: int, as_json: bool) -> int:
    """Try the reducer, print the rows, and return the exit code."""
    settings = None
    if wanted.config is not None:
        try:
            settings = config.load(wanted.config)
        except ConfigError as error:
            report(wanted.config, error)
            return EXIT_CONFIG
    try:
        table, found = _reduced(wanted, settings, source)
        _print(table, found, rows=rows, as_json=as_json)
    except (ConfigError, UsageError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return EXIT_CONFIG
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return EXIT_FAILED
    return 0


def _reduced(
    wanted: DryrunOptions, settings: config.Config | None, source: str
) -> tuple[pa.Table, DryRunBatch]:
    logging = config.LoggingConfig() if settings is None else settings.logging
    configure_logging(logging.model_copy(update={"level": "warning"}))
    folders = [] if settings is None else list(settings.python_path)
    sys.path[:0] = [f for f in map(str, [*folders, Path.cwd()]) if f not in sys.path]
    processor = processor_of(wanted, settings)
    run = _runner(processor, _rejects_of(wanted, settings), settings)
    table = _records(source, settings, wanted.servers)
    return table, run(table)


def _records(source: str, settings: config.Config | None, servers: str | None) -> pa.Table:
    wanted = None if Path(source).exists() else parse_range(source)
    if wanted is None:
        return read_file(Path(source))
    if servers is not None:
        kafka = _kafka(servers)
    elif settings is not None:
        kafka = settings.kafka
    else:
        raise UsageError(
            f"{source} is a range of a topic; say where, with --config or --bootstrap-servers"
        )
    return read_range(wanted, client_properties(kafka))


def _kafka(servers: str) -> config.KafkaConfig:
    try:
        return config.KafkaConfig.model_validate({"bootstrap_servers": servers})
    except ValidationError as error:
        raise UsageError(f"--bootstrap-servers {servers}: it is not HOST:PORT") from error


def _rejects_of(
    wanted: DryrunOptions, settings: config.Config | None
) -> config.RejectsConfig | None:
    """Return the rejects of the channel whose processor is run, None where that is built."""
    if settings is None or wanted.kind is not None:
        return None
    return settings.channels[channel_name(settings, wanted.channel)].rejects


def _runner(
    processor: ReducerConfig,
    rejects: config.RejectsConfig | None,
    settings: config.Config | None,
) -> Callable[[pa.Table], DryRunBatch]:
    """Import the reducer, and return what runs it on records."""
    registry = None if settings is None else settings.registry
    if isinstance(processor, ArrowProcessorConfig):
        function, how = load_arrow_reducer(processor.reducer), decode(processor, rejects, registry)
        return lambda table: _run_guarded(lambda: dry_run(function, table, how))
    with required(Extra.SPARK, "a reducer of type spark"):
        from headrace.extensions.spark import dryrun  # noqa: PLC0415 - an extra
        from headrace.extensions.spark.runtime import SparkRuntime  # noqa: PLC0415 - an extra

    section = config.SparkConfig() if settings is None else settings.spark
    from headrace.extensions.spark.build import reducer_of  # noqa: PLC0415 - an extra

    reducer, how = reducer_of(processor), decode(processor, rejects, registry)

    def run(table: pa.Table) -> DryRunBatch:
        runtime = SparkRuntime(replace(spark_settings(section), warm_up=0))
        try:
            runtime.start()
            return _run_guarded(lambda: dryrun.dry_run(runtime.session, reducer, table, how))
        finally:
            runtime.stop(Deadline.after(_STOP))

    return run


def _run_guarded(run: Callable[[], T]) -> T:
    """Run the reducer.

    Raises:
        ReducerError: it failed; the message has the reducer's own frames, or Spark's text.
    """
    try:
        return run()
    except (StartError, ConfigError):
        raise
    except Exception as error:
        raise ReducerError(_describe(error)) from error


def _describe(error: Exception) -> str:
    """Return what an exception says: with the reducer's own frames, where Spark said nothing."""
    if isinstance(error, HeadraceError):
        title = "the reducer's job failed: " if isinstance(error, ReducerError) else ""
        return f"{title}{error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(_OURS)
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "the reducer failed:\n" + "".join(lines).rstrip()


def _print(table: pa.Table, found: DryRunBatch, *, rows: int, as_json: bool) -> None:
    if found.outputs is None:
        _print_result(table, found.rows, rows=rows, as_json=as_json)
    for name, result in (found.outputs or {}).items():
        if as_json:
            for line in () if result is None else json_lines(result):
                typer.echo(f'{{"output":{json.dumps(name)},"row":{line}}}')
        else:
            typer.echo(f"output {name}:")
            _print_result(table, result, rows=rows, as_json=False)
    for partition, offsets in found.skipped.items():
        typer.echo(f"{partition}: undecodable, left out: {', '.join(map(str, offsets))}", err=True)


def _print_result(table: pa.Table, result: pa.Table | None, *, rows: int, as_json: bool) -> None:
    if result is None:
        typer.echo(f"{table.num_rows} records; the reducer returned None", err=True)
    elif as_json:
        for line in json_lines(result):
            typer.echo(line)
    else:
        sink = ConsoleSink(rows=rows, console=Console())
        sink.commit(sink.stage(dry_run_batch(table), result), [])

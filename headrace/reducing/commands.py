"""What ``headrace reduce`` does, from the command line to an exit code."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console

from headrace import config
from headrace.clock import Deadline
from headrace.config.cli import EXIT_CONFIG, report
from headrace.errors import ConfigError, HeadraceError, ImportPathError, StartError
from headrace.inline.reducer import load_arrow_reducer
from headrace.inline.rehearsal import rehearse
from headrace.kafka.clients import client_properties
from headrace.logs import configure_logging
from headrace.offsets.commands import EXIT_FAILED
from headrace.offsets.errors import RequestError
from headrace.processors.factory import reducer_of
from headrace.processors.spark import decode
from headrace.reducing.files import read_file
from headrace.reducing.processors import processor_of
from headrace.reducing.ranges import parse_range, read_range
from headrace.spark import rehearsal
from headrace.spark.factory import spark_settings
from headrace.spark.failures import ReducerError
from headrace.spark.rehearsed import rehearsed_batch
from headrace.spark.runtime import SparkRuntime
from headrace.spark.sinks.console import ConsoleSink
from headrace.spark.sinks.json_rows import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from headrace.reducing.processors import Reducing
    from headrace.spark.rehearsed import Rehearsed

T = TypeVar("T")

#: Seconds for the end of Spark.
_STOP = 20.0

#: Frames of these are of no interest to who wrote the reducer.
_OURS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says of the reducer, and of where to look for the rest."""

    reducer: str | None = None
    sql: str | None = None
    kind: str | None = None
    schema: str | None = None
    config: Path | None = None
    channel: str | None = None
    servers: str | None = None


class _FailedError(Exception):
    """The reducer raised; its cause is what."""


def reduce(wanted: Wanted, source: str, *, rows: int, as_json: bool) -> int:
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
    except (ConfigError, RequestError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return EXIT_CONFIG
    except _FailedError as failure:
        typer.echo(_told(failure.__cause__), err=True)
        return EXIT_FAILED
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return EXIT_FAILED
    return 0


def _reduced(
    wanted: Wanted, settings: config.Config | None, source: str
) -> tuple[pa.Table, Rehearsed]:
    logging = config.LoggingConfig() if settings is None else settings.logging
    configure_logging(logging.model_copy(update={"level": "warning"}))
    folders = [] if settings is None else list(settings.python_path)
    sys.path[:0] = [f for f in map(str, [*folders, Path.cwd()]) if f not in sys.path]
    processor = processor_of(wanted, settings)
    run = _runner(processor, settings)
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
        raise RequestError(
            [f"{source} is a range of a topic; say where, with --config or --bootstrap-servers"]
        )
    return read_range(wanted, client_properties(kafka))


def _kafka(servers: str) -> config.KafkaConfig:
    try:
        return config.KafkaConfig.model_validate({"bootstrap_servers": servers})
    except ValidationError as error:
        raise RequestError([f"--bootstrap-servers {servers}: it is not HOST:PORT"]) from error


def _runner(processor: Reducing, settings: config.Config | None) -> Callable[[pa.Table], Rehearsed]:
    """Import the reducer, and return what runs it on records."""
    if isinstance(processor, config.ArrowProcessorConfig):
        function, how = load_arrow_reducer(processor.reducer), decode(processor)
        return lambda table: _guarded(lambda: rehearse(function, table, how))
    section = config.SparkConfig() if settings is None else settings.spark
    reducer, how = reducer_of(processor), decode(processor)

    def run(table: pa.Table) -> Rehearsed:
        runtime = SparkRuntime(replace(spark_settings(section), warm_up=0))
        try:
            runtime.start()
            return _guarded(lambda: rehearsal.rehearse(runtime.session, reducer, table, how))
        finally:
            runtime.stop(Deadline.after(_STOP))

    return run


def _guarded(run: Callable[[], T]) -> T:
    """Tell what the reducer raises from what is ours.

    Raises:
        _FailedError: from what it raised.
    """
    try:
        return run()
    except (StartError, ConfigError):
        raise
    except Exception as error:
        raise _FailedError from error


def _told(error: BaseException | None) -> str:
    """Return what an exception says: with the reducer's own frames, where Spark said nothing."""
    assert error is not None, "a failure has a cause"
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


def _print(table: pa.Table, found: Rehearsed, *, rows: int, as_json: bool) -> None:
    if found.outputs is None:
        _print_result(table, found.rows, rows=rows, as_json=as_json)
    for name, result in (found.outputs or {}).items():
        if as_json:
            _print_output(name, result)
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
        sink.commit(sink.stage(rehearsed_batch(table), result), [])


def _print_output(name: str, result: pa.Table | None) -> None:
    for line in () if result is None else json_lines(result):
        typer.echo(f'{{"output":{json.dumps(name)},"row":{line}}}')

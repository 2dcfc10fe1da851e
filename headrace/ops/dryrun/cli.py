"""``headrace reduce``.

Exit codes: 0 reduced; 1 the reducer failed, or Kafka or Spark did not answer; 2 the configuration,
the command line, the input or the reducer's path cannot be used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.core.options import config_option
from headrace.core.usual_file import NAME, usual_file

_Input = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FILE|TOPIC:N:FROM-TO",
        help="JSON lines, Parquet, or the records of one partition from offset FROM up to, "
        "not including, TO.",
    ),
]
_Reducer = Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="The reducer.")]
_Sql = Annotated[str | None, typer.Option(metavar="QUERY", help="A query over the view batch.")]
_Kind = Annotated[
    str | None,
    typer.Option("--type", metavar="spark|arrow", help="How the reducer runs. [default: spark]"),
]
_Schema = Annotated[
    str | None,
    typer.Option(metavar="DDL", help='Decode JSON to these columns: "id INT, name STRING".'),
]
_Config = Annotated[
    Path | None,
    config_option(
        "The configuration whose channel to try.",
        show_default=f"{NAME} in this folder, where no reducer is given",
    ),
]
_Channel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The channel, if the configuration has several."),
]
_Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", metavar="HOST:PORT", help="The brokers, without a configuration."
    ),
]
_Rows = Annotated[int, typer.Option(min=0, help="The most rows to show in a table.")]
_Json = Annotated[bool, typer.Option("--json", help="Print all rows as JSON lines instead.")]


def reduce(
    source: _Input,
    *,
    reducer: _Reducer = None,
    sql: _Sql = None,
    kind: _Kind = None,
    schema: _Schema = None,
    config: _Config = None,
    channel: _Channel = None,
    servers: _Servers = None,
    rows: _Rows = 20,
    json: _Json = False,
) -> None:
    """Try a reducer on a file or on a range of offsets, and print its rows. Commits nothing.

    All records are one micro-batch, and the rows are kept in memory. With a configuration the
    channel's own reducer is tried, or the one that is given in its place.
    """
    from headrace.ops.dryrun import commands  # noqa: PLC0415 - takes a second to import

    if config is None and reducer is None and sql is None:
        config = usual_file()
    wanted = commands.DryrunOptions(reducer, sql, kind, schema, config, channel, servers)
    raise typer.Exit(commands.reduce(wanted, source, rows=rows, as_json=json))

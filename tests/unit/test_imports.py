"""Imports of each start: a process pays only for the libraries that it uses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import headrace
from tests.programs import run_program

if TYPE_CHECKING:
    from pathlib import Path

#: What takes a moment to import and not every process needs.
HEAVY = frozenset(
    {
        "confluent_kafka",
        "deltalake",
        "fastapi",
        "httpx",
        "kazoo",
        "numpy",
        "opentelemetry",
        "pandas",
        "prometheus_client",
        "psutil",
        "py4j",
        "pyarrow",
        "pydantic",
        "pyspark",
        "rich",
        "sqlalchemy",
        "starlette",
        "structlog",
        "typer",
        "uvicorn",
        "watchfiles",
        "yaml",
    }
)

_PRINTED = "\nfinally:\n    print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def imported(*lines: str) -> frozenset[str]:
    """Return the heavy libraries that a new process has imported after these lines."""
    code = "import sys\ntry:\n    pass" + "".join(f"\n    {line}" for line in lines) + _PRINTED
    done = run_program([sys.executable, "-c", code])
    assert "Traceback" not in done.stderr, done.stderr
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def command(*arguments: str) -> frozenset[str]:
    """Return the heavy libraries that a command has imported at its end."""
    return imported(
        f"sys.argv = {['headrace', *arguments]}", "from headrace.__main__ import main", "main()"
    )


def test_importing_headrace_imports_no_library() -> None:
    """The package costs nothing until something of it is used."""
    assert imported("import headrace") == set()


def test_a_library_that_is_used_is_seen() -> None:
    """The other tests of this page would notice an import."""
    assert imported("import headrace", "headrace.load") >= {"pydantic", "yaml"}
    assert "load" in headrace.__all__


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("run", "--help"),
        ("health", "--help"),
        ("local", "--help"),
        ("local", "up", "--help"),
        ("offsets", "reset", "--help"),
        ("status", "--help"),
        ("reduce", "--help"),
    ],
    ids=" ".join,
)
def test_help_imports_the_command_line_only(arguments: tuple[str, ...]) -> None:
    """No command is imported to say what it does: neither models nor clients nor Spark."""
    # typer reads the options of a command with pydantic
    own = {"pydantic"} if len(arguments) > 1 else set()
    assert command(*arguments) <= {"typer", *own}


#: What a channel that reads records takes, whatever becomes of them.
READING = frozenset(
    {"confluent_kafka", "kazoo", "prometheus_client", "pydantic", "rich", "structlog", "yaml"}
)

#: What columns take: pyarrow imports numpy, and pandas where a sink makes it do so early.
COLUMNS = frozenset({"numpy", "pyarrow"})

ARROW = "{type: arrow, reducer: 'operator:eq'}"
SPARK = "{type: spark, sql: SELECT * FROM batch}"


def test_a_daemon_whose_channels_are_not_built_has_imported_what_all_take(tmp_path: Path) -> None:
    """The command headrace run ends here at its missing file, with the common imports."""
    missing = str(tmp_path / "headrace.yaml")
    assert command("run", "-c", missing) == READING - {"rich"}


def built(file: Path, processor: str, sink: str, *first: str) -> frozenset[str]:
    """Return what a daemon has imported when the processor of a channel is built.

    ``first`` are lines that run before.
    """
    channel = f"{{group: g, topics: [t], processor: {processor}, sink: {sink}}}"
    file.write_text(f"kafka: {{bootstrap_servers: b}}\nchannels: {{c: {channel}}}\n")
    return imported(
        *first,
        "import headrace.daemon",
        "from unittest.mock import Mock",
        "from headrace.processors.factory import build_processor",
        f"loaded = headrace.load({str(file)!r})",
        "build_processor(loaded.channels['c'], Mock, 'member', loaded.kafka)",
    )


@pytest.mark.parametrize(
    ("processor", "sink", "more"),
    [
        ("{type: simple}", "{type: function, function: 'headrace.core.files:digest'}", set()),
        (ARROW, "{type: jsonl, path: f}", COLUMNS),
        (ARROW, "{type: delta, path: t}", COLUMNS | {"deltalake"}),
        (ARROW, "{type: noop}", COLUMNS),
        (SPARK, "{type: noop}", COLUMNS | {"pyspark", "py4j"}),
    ],
    ids=["simple", "arrow to jsonl", "arrow to delta", "arrow to nowhere", "spark to nowhere"],
)
def test_a_daemon_imports_what_its_channels_use(
    tmp_path: Path, processor: str, sink: str, more: set[str]
) -> None:
    """No Spark without a channel of type spark, no pyarrow for records, no other sink's library.

    The admin API, the watch of the file and the metrics' server are imported where they are on.
    """
    assert built(tmp_path / "headrace.yaml", processor, sink) == READING | more


@pytest.mark.parametrize(
    ("processor", "sink"),
    [
        (ARROW, "{type: jsonl, path: f}"),
        ("{type: rekey, key: value.a, engine: arrow}", "{type: kafka, topic: t.by-key}"),
    ],
    ids=["arrow", "rekey"],
)
def test_a_channel_without_extras_imports_none(tmp_path: Path, processor: str, sink: str) -> None:
    """The reader of columns takes none either, and what sends dead letters in columns neither."""
    without = "sys.modules |= dict.fromkeys(['numpy', 'pandas', 'pyspark', 'rocksdict'])"
    later = "import headrace.core.undecodable, headrace.kafka.columnar.producer"
    found = built(tmp_path / "headrace.yaml", processor, sink, without, later)
    assert "pyarrow" in found


def test_reading_any_kind_of_sink_and_processor_imports_no_engine(tmp_path: Path) -> None:
    """A section imports what it is checked with; what it builds is imported at the start."""
    lines = (
        "from headrace.config.models.processor import PROCESSORS",
        "from headrace.config.models.sink import SINKS",
        "assert SINKS.known() and PROCESSORS.known()",
    )
    assert imported(*lines) == {"pydantic", "yaml"}
    file = tmp_path / "headrace.yaml"
    file.write_text(
        "kafka: {bootstrap_servers: b}\nchannels:\n"
        "  a: {group: a, topics: [t], processor: {type: spark, sql: 'select 1'}, sink: noop}\n"
        "  k: {group: k, topics: [t], processor: {type: keyed, reducer: 'a:b'}}\n"
        f"  d: {{group: d, topics: [t], processor: {{type: arrow, reducer: 'a:b'}}, sink: "
        f"{{type: delta, path: {tmp_path / 'table'}}}}}\n"
    )
    assert command("check", "-c", str(file)) == {"pydantic", "rich", "typer", "yaml"}


def test_no_start_parses_the_source_of_models() -> None:
    """Descriptions below fields are read for schemas only."""
    code = "import linecache, headrace.daemon, headrace.ops.admin.server; print(*linecache.cache)"
    done = run_program([sys.executable, "-c", code], check=True)
    (package,) = headrace.__path__
    assert package not in done.stdout


def test_state_by_key_needs_its_extra_only_where_it_is_kept() -> None:
    """Re-keying, and the doctor's look at it, do without the store."""
    code = (
        "import sys; sys.modules['rocksdict'] = None\n"
        "import headrace.extensions.keyed.runtime.rekey, headrace.ops.doctor.kafka, headrace.keyed"
    )
    done = run_program([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr

"""What each start imports: a process pays for the libraries that it uses, and for no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

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


def imported(*lines: str) -> set[str]:
    """Return the heavy libraries that a new process has imported after these lines."""
    code = "import sys\ntry:\n    pass" + "".join(f"\n    {line}" for line in lines) + _PRINTED
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def command(*arguments: str) -> set[str]:
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
    assert command(*arguments) <= {"typer", "rich", *own}

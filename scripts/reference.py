"""Write what is generated of the documentation: commands, exit codes, fields, events, metrics.

.venv/bin/python scripts/reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logged_events
import typer

from headrace import daemon
from headrace.cli import app
from headrace.config import reference as configuration
from headrace.telemetry.metrics import reference as metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parent.parent / "docs"

_WRITTEN = "<!-- written by scripts/reference.py -->\n"

_BEGIN = "<!-- exit codes: written by scripts/reference.py -->"
_END = "<!-- end of exit codes -->"

_LISTED = re.compile(r"Exit codes: (.*?)(?:\.(?=\s|$)|\n\n|\Z)", re.DOTALL)
_TOLD = re.compile(r"([^.]*\b[Ee]xits with .*?)(?:\.(?=\s|$)|\n\n|\Z)", re.DOTALL)


def main() -> None:
    """Write all pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{DOCS / name}\n")


def pages() -> dict[str, str]:
    """Return the pages by their files' names."""
    return {
        "commands.md": commands_page(),
        "configuration.md": configuration.update(_written("configuration.md")),
        "events.md": logged_events.update(_written("events.md")),
        "metrics.md": metrics.update(_written("metrics.md")),
        "operation.md": operation_page(),
    }


def _written(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def commands_page() -> str:
    """Return the reference of the command line."""
    intro = (
        "Every command has `--help`, or `-h`. What they end with is in "
        "[exit codes](operation.md#exit-codes).\n"
    )
    chapters = [_chapter(name, command) for name, command in commands()]
    return "\n".join([f"# Commands\n\n{_WRITTEN}\n{intro}", *chapters])


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name."""
    yield from _below("headrace", typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    else:
        for each in inner.values():
            yield from _below(f"{name} {each.name}", each)


def _chapter(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(argument_name, arguments)])
    text = inspect.cleandoc(command.help or "")
    parts = [f"## {name}\n", f"```text\n{usage}\n```\n", f"{text}\n"]
    rows = [_row(each) for each in [*arguments, *options]]
    if rows:
        parts.append("| | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def argument_name(parameter: Any) -> str:
    """Return an argument as a command's usage has it."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        named = f"`{argument_name(parameter)}`"
    else:
        value = "" if parameter.is_flag else f" {value_name(parameter)}"
        both = [*parameter.opts, *parameter.secondary_opts]
        named = ", ".join(f"`{option}{value}`" for option in both)
    default = "required" if parameter.required else default_of(parameter)
    meaning = " ".join((parameter.help or "").split())
    return f"| {named} | {default} | {meaning} |".replace("\\|", "|").replace(
        "latest|", "latest\\|"
    )


def value_name(parameter: Any) -> str:
    """Return what stands for an option's value."""
    return str(parameter.metavar or parameter.opts[0].lstrip("-").upper())


def default_of(parameter: Any) -> str:
    """Return a parameter's default as the pages have it, nothing where that says nothing."""
    value = parameter.default
    if isinstance(parameter.show_default, str):
        return str(parameter.show_default)
    if value is None or value is False or callable(value) or value in ((), []):
        return ""
    return "yes" if value is True else f"`{value.value if isinstance(value, Enum) else value}`"


def operation_page() -> str:
    """Return the page on operation with the exit codes between its markers written again."""
    page = _written("operation.md")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{exit_codes()}\n{_END}{after}"


def exit_codes() -> str:
    """Return the reference of exit codes."""
    run = "\n".join(f"| {code} | `{name}` | {meaning} |" for code, name, meaning in run_codes())
    alike: dict[str, list[str]] = {}
    for name, command in commands():
        if stated := exit_codes_of(command):
            alike.setdefault(stated, []).append(f"`{name}`")
    others = "\n".join(f"| {', '.join(names)} | {stated} |" for stated, names in alike.items())
    return (
        "### Exit codes of headrace run\n\n"
        "| code | name | meaning |\n|---|---|---|\n"
        f"{run}\n"
        "| 128 + n | | Ended at once by a second signal n. |\n\n"
        "A supervisor should start it again after 1, 3, 4, 5 and 70, and not after 0 and 2, as\n"
        "the [unit for systemd](deploy.md#systemd) does. What a stop does, and what it may\n"
        "leave, is in [deploy](deploy.md#how-it-stops).\n\n"
        "### Exit codes of the other commands\n\n"
        "A command line that cannot be understood ends with 2, an unforeseen error with 1.\n\n"
        f"| command | exit codes |\n|---|---|\n{others}\n"
    )


def run_codes() -> Iterator[tuple[int, str, str]]:
    """Yield the codes of the daemon with what stands behind each in the code."""
    (found,) = ast.parse(inspect.getsource(daemon.ExitCode)).body
    assert isinstance(found, ast.ClassDef)
    for member, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            code = daemon.ExitCode[ast.unparse(member.targets[0])]
            assert isinstance(text.value, ast.Constant)
            yield code.value, code.name, " ".join(str(text.value.value).split())


def exit_codes_of(command: Any) -> str:
    """Return what the command's help says of its exit codes, or else its module."""
    if command.name == "run":
        return ""
    text = inspect.cleandoc(command.help or "")
    module = inspect.cleandoc(sys.modules[command.callback.__module__].__doc__ or "")
    match = _LISTED.search(text) or _LISTED.search(module) or _TOLD.search(text)
    stated = " ".join(match[1].split()) if match else ""
    return stated.replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    main()

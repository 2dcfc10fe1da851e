"""Write the manual pages, headrace(1) and one for each command, from the command line's own help.

    .venv/bin/python scripts/man.py [FOLDER]

They go to ``man`` unless a folder is named; ``make dist`` puts them into the wheels.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from reference import argument_name, commands, default_of, exit_codes_of, value_name

from headrace.cli import app
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where the pages are, in a checkout and in an sdist.
FOLDER = Path(__file__).resolve().parent.parent / "man"

_SUMMARY = "inbound Kafka channels"


def main() -> None:
    """Write the pages to the folder that the command line names, or to the usual one."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    write(folder)
    sys.stdout.write(f"{folder}\n")


def write(folder: Path) -> None:
    """Write all pages in place of those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("headrace*.1"):
        old.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return the pages by their files' names."""
    found = {"headrace.1": _main_page()}
    for name, command in commands():
        found[f"{name.replace(' ', '-')}.1"] = _page(name, command)
    return found


def _main_page() -> str:
    group: Any = typer.main.get_command(app)
    listed = [(name, command) for name, command in commands() if not command.hidden]
    lines = [
        *_head("headrace", _SUMMARY),
        *_section("SYNOPSIS"),
        r"\fBheadrace\fR \fICOMMAND\fR [\fIOPTIONS\fR]",
        *_section("DESCRIPTION"),
        *_text(group.help or ""),
        *_section("COMMANDS"),
    ]
    for name, command in listed:
        lines += [".TP", rf"\fB{_escaped(name.removeprefix('headrace '))}\fR"]
        lines.append(_line(_first_sentence(command)))
    lines += [
        *_section("ENVIRONMENT"),
        ".TP",
        r"\fBHEADRACE_CONFIG\fR",
        r"The configuration, in place of \fB\-\-config\fR.",
        *_section("SEE ALSO"),
        ",\n".join(_reference(name) for name, _ in listed),
    ]
    return "\n".join(lines) + "\n"


def _page(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = [rf"\fB{_escaped(name)}\fR", *(["[\\fIOPTIONS\\fR]"] if options else [])]
    words += (rf"\fI{_escaped(argument_name(each))}\fR" for each in arguments)
    lines = [
        *_head(name.replace(" ", "-"), _first_sentence(command).rstrip(".")),
        *_section("SYNOPSIS"),
        " ".join(words),
        *_section("DESCRIPTION"),
        *_text(re.split(r"Exit codes:", inspect.cleandoc(command.help or ""))[0]),
    ]
    if arguments:
        lines += [*_section("ARGUMENTS"), *_parameters(arguments)]
    if options:
        lines += [*_section("OPTIONS"), *_parameters(options)]
    if stated := exit_codes_of(command):
        lines += [*_section("EXIT STATUS"), _line(f"{stated[:1].upper()}{stated[1:]}.")]
    lines += [*_section("SEE ALSO"), _reference("headrace")]
    return "\n".join(lines) + "\n"


def _parameters(parameters: list[Any]) -> Iterator[str]:
    for each in parameters:
        yield ".TP"
        if each.param_type_name == "argument":
            yield rf"\fI{_escaped(argument_name(each))}\fR"
        else:
            value = "" if each.is_flag else rf" \fI{_escaped(value_name(each))}\fR"
            named = [*each.opts, *each.secondary_opts]
            yield ", ".join(rf"\fB{_escaped(option)}\fR{value}" for option in named)
        default = "Required." if each.required else default_of(each).strip("`")
        said = f"Default: {default}." if default and not each.required else default
        variable = f"Environment: {each.envvar}." if each.envvar else ""
        yield _line(" ".join(part for part in (each.help or "", said, variable) if part))


def _head(name: str, summary: str) -> Iterator[str]:
    yield f'.TH "{_escaped(name.upper())}" "1" "" "Headrace {VERSION}" "Headrace"'
    yield from _section("NAME")
    yield rf"{_escaped(name)} \- {_escaped(summary)}"


def _section(title: str) -> Iterator[str]:
    yield f'.SH "{title}"'


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text).strip())):
        if number:
            yield ".PP"
        yield _line(paragraph)


def _line(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _first_sentence(command: Any) -> str:
    return re.split(r"(?<=\.)\s", " ".join((command.help or "").split()))[0]


def _reference(name: str) -> str:
    return rf"\fB{_escaped(name.replace(' ', '-'))}\fR(1)"


def _escaped(text: str) -> str:
    """Return text that roff takes for nothing else."""
    plain = text.replace("``", "").replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


if __name__ == "__main__":
    main()

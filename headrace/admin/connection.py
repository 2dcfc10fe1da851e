"""The options by which every command finds its process."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.admin.commands import Command

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="HEADRACE_CONFIG",
        help="The configuration of the process, on its own machine.",
    ),
]
_Url = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="HEADRACE_URL", help="Where its API is, in place of -c."),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="HEADRACE_TOKEN_FILE",
        help="A file with its token, which HEADRACE_TOKEN may hold as well.",
    ),
]
_Ca = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="HEADRACE_CA_FILE", help="Whom to trust, with https."),
]
_Certificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="HEADRACE_CERTIFICATE_FILE",
        help="A client certificate with its key, in place of the token.",
    ),
]


def _options(
    config: _Config = None,
    url: _Url = None,
    token_file: _TokenFile = None,
    ca_file: _Ca = None,
    certificate_file: _Certificate = None,
) -> None:
    """Stand for the options in a signature."""


def connected(command: Callable[..., Command]) -> Callable[..., None]:
    """Return what typer runs: the options that ``command`` takes, and those above.

    ``command`` returns what is to be done with the process, and the exit code is that of this.
    """
    # what is only imported for the type checker stands in no option
    own = inspect.signature(command, eval_str=True, globals=_names(command))
    common = inspect.signature(_options, eval_str=True)
    parameters = [*own.parameters.values(), *common.parameters.values()]

    @wraps(command)
    def run(**arguments: Any) -> None:
        from headrace.admin import commands, finding  # noqa: PLC0415 - takes a moment to import

        options = finding.Options(**{name: arguments.pop(name) for name in common.parameters})
        raise typer.Exit(commands.run(options, command(**arguments)))

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer asks for it
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    return run


def _names(command: Callable[..., Command]) -> dict[str, Any]:
    """Return the names that the annotations of ``command`` are made of."""
    return {**command.__globals__, "Command": None}

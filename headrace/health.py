"""``headrace health``: how a running process is, for containers' health checks and scripts."""

from __future__ import annotations

import json
import ssl
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import typer

from headrace.config import load
from headrace.errors import ConfigError

#: Exit codes beside 0: not well, or not to be reached; the configuration cannot be used.
UNWELL, EXIT_CONFIG = 1, 2


def health(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML configuration file.")
    ],
    *,
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask whether it does its work, not only lives.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long it may take to answer.")
    ] = 5.0,
) -> None:
    """Ask the process of a configuration on this machine whether it is well.

    Exits with 0 if it is, with 1 if not or if it does not answer, with 2 if the configuration
    cannot be used.
    """
    from headrace.admin.tokens import Folder  # noqa: PLC0415 - takes a while to import

    try:
        address = Folder.of(load(config)).read_address()
    except ConfigError as error:
        typer.echo("\n".join(map(str, error.problems)), err=True)
        raise typer.Exit(EXIT_CONFIG) from None
    if address is None:
        typer.echo("no process serves the admin API of this configuration", err=True)
        raise typer.Exit(UNWELL)
    reasons = _reasons(f"{address.url}/health/{'ready' if ready else 'live'}", timeout)
    typer.echo("\n".join(reasons) or ("ready" if ready else "live"), err=bool(reasons))
    raise typer.Exit(UNWELL if reasons else 0)


def _reasons(url: str, timeout: float) -> list[str]:
    """Return why the process is not well, nothing if it is. Blocks for ``timeout`` seconds."""
    try:
        with urlopen(url, timeout=timeout, context=_own_process()):  # noqa: S310 - the process's own address
            return []
    except HTTPError as error:
        return _told(error) or [f"{url}: {error}"]
    except (URLError, OSError) as error:
        return [f"{url}: {error}"]


def _own_process() -> ssl.SSLContext:
    """Trust any certificate: the address is out of our own folder, and nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _told(error: HTTPError) -> list[str]:
    try:
        return [str(reason) for reason in json.loads(error.read())["reasons"]]
    except (ValueError, LookupError, OSError):
        return []

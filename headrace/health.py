"""``headrace health``: how a running process is, for containers' health checks and scripts.

It is asked every few seconds, so that this needs the standard library alone, and the
configuration only where no process left a record.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from getopt import GetoptError, getopt
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.core.errors import NoRecordError, SeveralProcessesError, UnreachableError
from headrace.core.processes import find_process
from headrace.core.usual_file import usual_file

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: The exit code beside 0: not well, or not to be reached.
UNWELL = 1

#: Seconds that an answer may take, and the least that can be asked for.
TIMEOUT, LEAST_TIMEOUT = 5.0, 0.1

_ANSWERED = range(200, 300)


def main(arguments: list[str]) -> int | None:
    """Ask the process that the command line names, and return the exit code.

    None where that takes more than the record of a process: help, a mistake in the command line,
    or a process that only its configuration leads to. Nothing was printed then.
    """
    given = _parsed(arguments)
    if given is None:
        return None
    config, ready, timeout = given
    try:
        record = find_process(config)
    except (NoRecordError, SeveralProcessesError):
        return None
    except UnreachableError as error:
        sys.stderr.write(f"{error}\n")
        return UNWELL
    return ask(record.url, ready=ready, timeout=timeout)


def ask(url: str, *, ready: bool, timeout: float) -> int:
    """Print how the process at ``url`` is, and return the exit code. Blocks for ``timeout``."""
    reasons = _reasons(url, f"/health/{'ready' if ready else 'live'}", timeout)
    if reasons:
        sys.stderr.write("".join(f"{reason}\n" for reason in reasons))
        return UNWELL
    sys.stdout.write("ready\n" if ready else "live\n")
    return 0


def _parsed(arguments: list[str]) -> tuple[Path, bool, float] | None:
    try:
        options, rest = getopt(arguments, "c:", ["config=", "ready", "timeout="])
        given = dict(options)
        named = given.get("-c") or given.get("--config") or os.environ.get("HEADRACE_CONFIG")
        config = Path(named) if named else usual_file()
        timeout = float(given.get("--timeout", TIMEOUT))
    except (GetoptError, ValueError):
        return None
    if rest or config is None or not timeout >= LEAST_TIMEOUT:
        return None
    return config, "--ready" in given, timeout


def _reasons(url: str, path: str, timeout: float) -> list[str]:
    """Return why the process is not well, nothing if it is."""
    from http.client import HTTPException  # noqa: PLC0415 - the command line's help needs none

    try:
        with closing(_connection(url, timeout)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status in _ANSWERED:
                return []
            return _reasons_in(answer.read()) or [
                f"{url}{path} answered {answer.status} {answer.reason}"
            ]
    except (OSError, HTTPException, ValueError) as error:
        return [f"{url}{path}: {str(error) or type(error).__name__}"]


def _connection(url: str, timeout: float) -> HTTPConnection:
    """Trust any certificate: the address is out of our own folder, and nothing secret is sent."""
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415 - the command line's help needs none

    parts = urlsplit(url)
    if parts.scheme != "https":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    import ssl  # noqa: PLC0415 - takes a while, and mostly there is no TLS on loopback

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)


def _reasons_in(body: bytes) -> list[str]:
    try:
        return [str(reason) for reason in json.loads(body)["reasons"]]
    except (ValueError, LookupError, TypeError):
        return []

"""The process's way into the command line: the console script, and ``python -m headrace``.

Here is what must not wait for the imports, which take seconds.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Signals that end a process which does nothing about them, and must not end a daemon.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run the command line; the console script.

    With ``run``, signals are heard from now on. What a supervisor asks every few seconds, and what
    a user waits for, must not pay for the imports of all commands.
    """
    _open_standard_streams()
    # what imports make stays: to look for garbage in it takes a fifth of their time
    gc.disable()
    if sys.argv[1:2] == ["health"]:
        from headrace import health  # noqa: PLC0415 - for this command only

        code = health.main(sys.argv[2:])
        if code is not None:
            raise SystemExit(code)
    if sys.argv[1:2] == ["run"]:
        _listen()
        path = _only_configuration(sys.argv[2:])
        if path is not None:
            raise SystemExit(_serve(path))
    from headrace.cli import main as run  # noqa: PLC0415 - takes a moment

    gc.enable()
    run()


def _only_configuration(arguments: list[str]) -> Path | None:
    """Return the configuration if the arguments of ``run`` name that and nothing else."""
    from getopt import GetoptError, getopt  # noqa: PLC0415 - for this command only
    from pathlib import Path  # noqa: PLC0415 - for this command only

    from headrace.core.usual_file import usual_file  # noqa: PLC0415 - for this command only

    try:
        options, rest = getopt(arguments, "c:", ["config="])
    except GetoptError:
        return None
    if rest:
        return None
    named = [value for _, value in options] or [os.environ.get("HEADRACE_CONFIG", "")]
    if options or named[-1]:
        return Path(named[-1]) if named[-1] else None
    return usual_file()


def _serve(path: Path) -> int:
    """Run the daemon, whose log has no use for rich's tracebacks: structlog does without it."""
    absent: dict[str, Any] = {} if "rich" in sys.modules else {"rich": None}
    sys.modules.update(absent)
    try:
        import structlog  # noqa: F401, PLC0415 - for what this does
    finally:
        for name in absent:
            del sys.modules[name]
    from headrace.daemon import run  # noqa: PLC0415 - for this command only

    return run(path)


def _listen() -> None:
    """Handle signals; those that come meanwhile are delivered at the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    from headrace.signals import SIGNALS  # noqa: PLC0415 - even that takes a moment

    SIGNALS.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)


def _open_standard_streams() -> None:
    """Put /dev/null in the place of standard streams that are closed.

    The next file that is opened would take the place otherwise, and be written to as standard
    error, by us or by a child.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free, which is this one: those below are open by now
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor, for good


if __name__ == "__main__":
    main()

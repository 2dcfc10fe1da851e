"""The process's way into the command line: the console script, and ``python -m headrace``.

Here is what must not wait for the imports, which take seconds.
"""

from __future__ import annotations

import os
import signal
import sys

#: Signals that end a process which does nothing about them, and must not end a daemon.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run the command line; the console script.

    With ``run``, signals are heard from now on. What a supervisor asks every few seconds must not
    pay for the imports of all commands.
    """
    _open_standard_streams()
    if sys.argv[1:2] == ["health"]:
        from headrace import health  # noqa: PLC0415 - for this command only

        code = health.main(sys.argv[2:])
        if code is not None:
            raise SystemExit(code)
    if sys.argv[1:2] == ["run"]:
        _listen()
    from headrace.cli import main as run  # noqa: PLC0415 - takes a second

    run()


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

"""``python -m headrace``: the command line, and what is done before it is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the console script.

    What a supervisor asks every few seconds must not pay for the imports of all commands.
    """
    if sys.argv[1:2] == ["health"]:
        from headrace import health  # noqa: PLC0415 - for this command only

        code = health.main(sys.argv[2:])
        if code is not None:
            raise SystemExit(code)
    from headrace.cli import main as run  # noqa: PLC0415 - takes a second

    run()


if __name__ == "__main__":
    main()

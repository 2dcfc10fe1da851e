"""``python -m headrace``: the command line."""

from __future__ import annotations

from headrace.cli import main

if __name__ == "__main__":
    main()

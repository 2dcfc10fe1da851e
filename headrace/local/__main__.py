"""``python -m headrace.local``: the same commands as ``headrace local``."""

from __future__ import annotations

from headrace.local.cli import app

if __name__ == "__main__":
    app(prog_name="headrace local")

"""``python -m headrace.devstack``: the same commands as ``headrace local``."""

from __future__ import annotations

from headrace.devstack.cli import app

if __name__ == "__main__":
    app(prog_name="headrace local")

"""``python -m benchmarks``: list the benchmarks; ``python -m benchmarks NAME``: run one."""

from __future__ import annotations

import argparse
import logging
from importlib import import_module

import structlog

#: Each is a module of this package with a function ``run``, described by its docstring.
NAMES = ("passthrough", "spark", "memory", "coordination")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, help="which one; none lists them")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on a line")
    chosen = parser.parse_args()
    if chosen.name is None:
        for name in NAMES:
            print(f"{name:<12} {import_module(f'benchmarks.{name}').__doc__}")
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    report = import_module(f"benchmarks.{chosen.name}").run()
    print(report.as_json() if chosen.json else report.as_table())


if __name__ == "__main__":
    main()

"""``python -m benchmarks``: list the benchmarks; ``python -m benchmarks NAME``: run one."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import structlog

from benchmarks.report import not_repeated, say

#: Each is a module of this package with a function ``run``, described by its docstring.
NAMES = (
    "passthrough",
    "spark",
    "rejects",
    "decode",
    "sinks",
    "pipeline",
    "realtime",
    "peers",
    "keyed",
    "streams",
    "warm",
    "queries",
    "workflow",
    "scale",
    "startup",
    "memory",
    "endurance",
    "coordination",
    "chaos",
    "lifecycle",
    "soak",
)

#: Those of which figures come from several rounds, whose spread a second run has to stay within.
_BY_ROUND = frozenset(
    {
        *("passthrough", "spark", "rejects", "decode", "sinks", "pipeline", "realtime", "peers"),
        *("keyed", "streams", "queries", "workflow", "coordination", "lifecycle"),
    }
)

#: Makes a page with charts of what they printed.
_RESULTS = "results"

#: What some of them take from the command line.
_OPTIONS = {
    "chaos": ("minutes", "seed"),
    "lifecycle": ("seed",),
    "soak": ("minutes", "seed"),
    "peers": ("without",),
    "keyed": ("without",),
    "workflow": ("without", "quick"),
}


def main() -> int:
    """Run what the command line names; 1 if something must not be as it was found."""
    chosen = _arguments()
    if chosen.name is None:
        for name in NAMES:
            print(f"{name:<12} {import_module(f'benchmarks.{name}').__doc__}")
        return 0
    if chosen.name == _RESULTS:
        for path in import_module("benchmarks.plotting").write(chosen.files):
            print(path)
        return 0
    signal.signal(signal.SIGTERM, _end)
    # an installation has its bytecode: without it each process compiles what it imports first
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    run = import_module(f"benchmarks.{chosen.name}").run
    options = {name: getattr(chosen, name) for name in _OPTIONS.get(chosen.name, ())}
    report = run(**options)
    if chosen.twice and (different := not_repeated(report, run(**options))):
        say("\n".join(["not repeated, so not to be kept:", *different]))
        return 1
    print(report.as_json() if chosen.json else report.as_table())
    return 0 if report.figures.get("holds", True) else 1


def _end(number: int, _: object) -> NoReturn:
    """Have servers and the sides' processes ended first."""
    raise SystemExit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        nargs="?",
        choices=(*NAMES, _RESULTS),
        help="which one; none lists them; results writes RESULTS.md and its charts",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="results: files of JSON lines, in place of those in benchmarks/results",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on a line")
    parser.add_argument(
        "--twice",
        action="store_true",
        help="run it twice, and print nothing where the second run does not repeat the first",
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="chaos, soak: how long it goes on"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="chaos, lifecycle, soak: what is done, and when"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PEER",
        help="peers, keyed, workflow: leave this one out",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="workflow: one short round of each kind, to see that it goes",
    )
    chosen = parser.parse_args()
    if chosen.twice and chosen.name not in _BY_ROUND:
        parser.error(
            f"--twice: {chosen.name} has no rounds whose spread a second run could stay within; "
            f"it is for {', '.join(name for name in NAMES if name in _BY_ROUND)}"
        )
    return chosen


if __name__ == "__main__":
    sys.exit(main())

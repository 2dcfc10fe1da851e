"""RESULTS.md from JSON lines: one section for each benchmark that has a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plotting import general, peers, scale, streaming
from benchmarks.plotting.charts import save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.plotting.section import Section

#: Where results are kept, and the page that is made of them.
KEPT = Path(__file__).parents[1] / "results"
PAGE = KEPT.parent / "RESULTS.md"

#: What has charts and words of its own. Each other benchmark has a table.
_SECTIONS: dict[str, Callable[[dict[str, Any]], Section]] = {
    "peers": peers.section,
    "pipeline": streaming.section,
    "scale": scale.section,
    "spark": streaming.section,
}

_TOP = """\
# Results

Made by `python -m benchmarks results` from the JSON lines in [`results`](results), each of them
printed by `python -m benchmarks NAME --json` and kept as it was. How each benchmark measures, and
what its figures mean, is said in [README](README.md). Ratios were taken side by side in one run;
absolute rates say more about the machine than about Headrace. A target that was missed is called
so.
"""


def write(files: Sequence[Path] = (), page: Path = PAGE) -> list[Path]:
    """Write the page and its charts, which go into the folder ``results`` beside it.

    Without ``files`` those that are kept are read. Of several lines of one benchmark the latest
    counts.
    """
    found = read(files or sorted(KEPT.glob("*.json")))
    charts = page.parent / KEPT.name
    charts.mkdir(parents=True, exist_ok=True)
    written, parts = [page], [_TOP]
    for name, line in found.items():
        section = _SECTIONS.get(name, general.section)(line)
        parts.append(section.text)
        for chart, content in section.charts.items():
            save(charts / chart, content)
            written.append(charts / chart)
    page.write_text("\n".join(parts), encoding="utf-8")
    return written


def read(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the latest line of each benchmark, by name; other lines are passed over."""
    latest: dict[str, dict[str, Any]] = {}
    for file in files:
        for text in file.read_text(encoding="utf-8").splitlines():
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            earlier = latest.get(line["benchmark"])
            if earlier is None or earlier["at"] < line["at"]:
                latest[line["benchmark"]] = line
    return dict(sorted(latest.items()))

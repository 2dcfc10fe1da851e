from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from benchmarks.plotting import write

if TYPE_CHECKING:
    from pathlib import Path

_AROUND = {
    "cores": 2,
    "python": "3.11.7",
    "machine": {"processor": "a fast one", "memory": "24 GiB", "system": "Linux"},
    "load": [0.5, 0.4, 0.3],
}


def _side(rate: int, memory: int) -> dict[str, Any]:
    return {
        "rate": rate,
        "rates": [rate, rate],
        "records": 1000,
        "seconds": 2.0,
        "cores": 1.2,
        "cpu_s_per_million": 0.9,
        "memory_mib": memory,
        "threads": 5,
    }


_PEERS = {
    "benchmark": "peers",
    "ratio_to_raw": 0.8,
    "ratio_to_fastest_peer": 2.5,
    "ratio_to_aiokafka": 2.5,
    "fastest_peer": "aiokafka",
    "target_to_raw": 0.9,
    "target_to_fastest_peer": 2.0,
    "sum_raw": _side(2_000_000, 60),
    "sum_headrace": _side(1_600_000, 150),
    "sum_headrace_spark": _side(400_000, 900),
    "sum_aiokafka": _side(640_000, 50),
    "rounds": 2,
    "partitions": 4,
    "size": 160,
    "left_out": ["faust"],
    "versions": {"headrace": {"pyspark": "4.0.5"}, "aiokafka": {"aiokafka": "0.14.0"}},
    "at": "2026-11-22T10:00:00+00:00",
    **_AROUND,
}

_OTHER = {"benchmark": "memory", "worst": 1.2, "at": "2026-11-21T10:00:00+00:00", **_AROUND}

_READ = {
    "rate": 500_000,
    "cpu_s_per_million": 1.5,
    "servers_cpu_s_per_million": 0.4,
    "cores_busy": 1.9,
    "memory_mib": 190,
    "threads": 40,
    "connections": 9,
}

_SCALE = {
    "benchmark": "scale",
    "cost_growth_partitions": 1.1,
    "cost_growth_daemons": 1.3,
    "cost_growth_both": 1.2,
    "target": 1.2,
    "daemons": {"1": {"4": _READ, "1000": _READ}, "2": {"4": _READ, "1000": _READ}},
    "rest": {"2": {"requests_per_look": 2010, "requests_per_look_and_partition": 2.01}},
    "workers": {"1": {"4": {**_READ, "micro_batch_s": 0.5, "mean_batch": 1000.0}}},
    "spark_cpu_ms_per_task": {"1": 4.2},
    "records": 1000,
    "size": 160,
    "batch": 100,
    "at": "2026-11-22T10:00:00+00:00",
    **_AROUND,
}


def _written(folder: Path, *lines: dict[str, Any]) -> str:
    kept = folder / "kept.json"
    texts = ["a line of a server's", *map(json.dumps, lines)]
    kept.write_text("\n".join(texts) + "\n", encoding="utf-8")
    page = folder / "RESULTS.md"
    write([kept], page)
    return page.read_text(encoding="utf-8")


def test_the_page_says_what_was_met_what_was_missed_and_where_a_peer_is_better(
    tmp_path: Path,
) -> None:
    """Targets have verdicts, and a peer that takes less or is faster is named."""
    text = _written(tmp_path, _PEERS)
    assert "| `ratio_to_raw` | 0.8 | 0.9 | **missed** |" in text
    assert "| `ratio_to_fastest_peer` (aiokafka) | 2.5 | 2.0 | met |" in text
    assert "Less memory than `headrace` (150) take aiokafka 50." in text
    assert "aiokafka is faster than `headrace_spark`." in text
    assert "Left out: faust." in text
    assert "2 cores, a fast one, 24 GiB, Linux, Python 3.11.7" in text


def test_a_line_with_short_rounds_is_called_so(tmp_path: Path) -> None:
    """Lists and parts of a line are looked at; processor time may be as short as it is."""
    rounds = {"raw_seconds": [3.0, 2.9], "raw_cpu_seconds": 1.0, "part": {"seconds": 1.5}}
    text = _written(tmp_path, {**_OTHER, **rounds})
    assert "**: 2 of its 3 times are shorter, 1.5 s at the least" in text
    assert "shorter" not in _written(tmp_path, {**_OTHER, "raw_seconds": [3.0], "seconds": 4})


def test_the_latest_line_of_each_benchmark_counts(tmp_path: Path) -> None:
    """An older result is passed over wherever it stands, and one without charts has a table."""
    newer = {**_OTHER, "worst": 1.1, "at": "2026-11-22T10:00:00+00:00"}
    text = _written(tmp_path, newer, _OTHER)
    assert "| `worst` | 1.1 |" in text
    assert "1.2" not in text


def test_charts_are_svg_that_stays_the_same_and_fetches_nothing(tmp_path: Path) -> None:
    """Two runs write the same bytes, whose only address is the name of the format."""
    text = _written(tmp_path, _PEERS)
    chart = tmp_path / "results" / "peers-sum.svg"
    first = chart.read_bytes()
    assert "(results/peers-sum.svg)" in text
    assert ET.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
    addresses = first.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"http" not in addresses
    _written(tmp_path, _PEERS)
    assert chart.read_bytes() == first


def test_scale_says_how_the_cost_grows_and_draws_it(tmp_path: Path) -> None:
    """Growth has verdicts, each number of daemons a line, and Spark a chart of its own."""
    text = _written(tmp_path, _SCALE)
    assert "| `cost_growth_daemons` | 1.3 | 1.2 | **missed** |" in text
    assert "| `cost_growth_both` | 1.2 | 1.2 | met |" in text
    assert "4.2 ms of processor time with 1 workers" in text
    for chart in ("scale-rate.svg", "scale-cost.svg", "scale-spark.svg"):
        assert f"(results/{chart})" in text
    assert "2 daemons" in (tmp_path / "results" / "scale-cost.svg").read_text(encoding="utf-8")


def test_streaming_is_drawn_next_to_us(tmp_path: Path) -> None:
    """Targets have verdicts: a rate has to be large, a latency small; sides not run have no bar."""
    line = {
        "benchmark": "pipeline",
        "value_ratio_100k": 1.4,
        "latency_p50_ratio": 0.4,
        "targets": {"value_ratio_100k": 1.5, "latency_p50_ratio": 0.5},
        "value_rate_100k": 500_000,
        "streaming_rate_100k": 350_000,
        "rounds": 3,
        "record_bytes": 160,
        "packages": {"pyspark": "4.0.5"},
        "at": "2026-11-22T10:00:00+00:00",
        **_AROUND,
    }

    text = _written(tmp_path, line)

    assert "| `value_ratio_100k` | 1.4 | at least 1.5 | **missed** |" in text
    assert "| `latency_p50_ratio` | 0.4 | at most 0.5 | met |" in text
    assert "pyspark 4.0.5" in text
    assert "(results/pipeline-rate-100k.svg)" in text
    assert "1k.svg" not in text
    chart = (tmp_path / "results" / "pipeline-rate-100k.svg").read_text(encoding="utf-8")
    assert "Structured Streaming" in chart
    assert "by reference" not in chart

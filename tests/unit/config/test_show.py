from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from headrace.config import BatchConfig, show
from tests.unit.config.support import CHANNELS, loaded

if TYPE_CHECKING:
    from pathlib import Path

FULL = """
shutdown_timeout: 90s
python_path: [lib]
kafka: {tls: {}, properties: {client.id: "a$${b}", fetch.min.bytes: 1, check.crcs: true}}
spark: {properties: {spark.x: 0.5}}
metrics: {port: null}
channels:
  one:
    topics: [a, b]
    group: gé
    coordinator: {type: static, partitions: {a: [5, "0-3"], b: [1]}}
    processor: {type: spark, reducer: "a:b", decode: json, schema: "x INT"}
    sink: {type: delta, path: t, partition_by: [x]}
    rejects: {failing: skip}
  two:
    topics: [c]
    group: g
    processor: {type: simple, deliver: record, delay: 250ms}
    sink: a:b
  three:
    topics: [d]
    group: h
    coordinator: {type: fixed_count, partitions_per_topic: 2}
    processor: {type: custom, factory: "a:b", options: {a: [1, {b: null}], c: x}}
"""


def test_a_shown_configuration_loads_as_the_same(tmp_path: Path) -> None:
    """The shown text is a file that means the same in any folder."""
    config = loaded(tmp_path, FULL)
    other = tmp_path / "other"
    other.mkdir()
    assert loaded(other, show(config)) == config


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    """The shown text has every field that exists, with units."""
    shown = yaml.safe_load(show(loaded(tmp_path, CHANNELS)))
    flights = shown["channels"]["flights"]
    assert shown["kafka"]["bootstrap_servers"] == ["localhost:9092"]
    assert flights["batch"] == {"max_records": 10000, "max_bytes": "16MiB", "linger": "100ms"}
    assert flights["coordinator"]["type"] == "dynamic"
    assert flights["processor"]["decode"] == "none"
    assert "schema" not in flights["processor"]
    assert flights["rejects"] == {"failing": "fail", "overflow": "wait"}
    assert flights["max_in_flight"] == 2


def test_one_section_can_be_shown() -> None:
    """A section is shown in the order of its fields."""
    text = "max_records: 5\nmax_bytes: 16MiB\nlinger: 100ms\n"
    assert show(BatchConfig(max_records=5)) == text

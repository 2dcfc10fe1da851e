from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.config import load
from headrace.extensions.arrow.reducer import dry_run as rehearse_inline
from headrace.extensions.arrow.reducer import load_arrow_reducer
from headrace.extensions.arrow.section import ArrowProcessorConfig
from headrace.extensions.spark.build import reducer_of
from headrace.extensions.spark.dryrun import dry_run
from headrace.extensions.spark.section import SparkProcessorConfig
from headrace.ops.dryrun.commands import read_file
from headrace.processors.micro_batch_processor import decode
from headrace.sinks.jsonl import json_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import ChannelConfig
    from headrace.extensions.spark.runtime import SparkRuntime

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.mark.parametrize("name", ["delays", "orders", "meters"])
def test_an_example_makes_the_rows_that_it_shows(
    name: str, spark_runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worked example is run as its configuration says, on the records beside it."""
    folder = EXAMPLES / name
    monkeypatch.syspath_prepend(str(folder))
    (channel,) = load(folder / "headrace.yaml").channels.values()
    (records,) = folder.glob("records.*")

    rows = _reduced(channel, read_file(records), spark_runtime)

    sys.modules.pop(name, None)
    expected = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    found = [json.loads(line) for line in json_lines(rows)]
    kept = [{key: row[key] for key in expected[0]} for row in found]
    assert sorted(kept, key=str) == sorted(expected, key=str)


def _reduced(channel: ChannelConfig, table: pa.Table, runtime: SparkRuntime) -> pa.Table:
    processor = channel.processor
    assert isinstance(processor, ArrowProcessorConfig | SparkProcessorConfig)
    how = decode(processor, channel.rejects)
    if isinstance(processor, ArrowProcessorConfig):
        reducer = load_arrow_reducer(processor.reducer)
        return rehearse_inline(reducer, table, how).rows
    return dry_run(runtime.session, reducer_of(processor), table, how).rows

"""A decoder of an installed package: in this process and in Spark's workers, on rows and facts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import MicroBatchRejects, load
from headrace.core.errors import JobFailedError, UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import OnUndecodable
from headrace.extensions.arrow.reducer import dry_run as dry_run_inline
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.rekey import Rekey, RekeyFunction, RekeySettings
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.tables import RESULT, in_this_thread
from headrace.extensions.spark.dryrun import dry_run
from headrace.extensions.spark.keyed import _result, _task, _to_bytes
from headrace.extensions.spark.reducer import send_by_value
from headrace.processors.micro_batch_processor import decode, decoder_of
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing import FakeRecord, records_table
from headrace.testing.channel import FakeClock
from headrace.testing.keyed import MemoryStore
from tests.decoders import install_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from headrace.core.decoders import CustomDecoder
    from headrace.core.tables import Decode
    from headrace.extensions.spark.runtime import SparkRuntime

VALUES = [b"id=1;name=a", None, b"rubbish", b"name=b;more=1", b"id=99999999999", b"id=2"]
SKIPPED = {TopicPartition("events", 0): [2, 4]}


class Site:
    """A configuration with the package's decoder, and what says which processes made one."""

    def __init__(self, folder: Path, made: Path) -> None:
        self.made = made
        options = f"decoder_options: {{separator: ';', made: '{made}'}}"
        rows = f"decode: pairs, schema: 'id INT, name STRING', {options}"
        file = folder / "headrace.yaml"
        file.write_text(
            "kafka: {bootstrap_servers: b}\nchannels:\n"
            f"  arrow: {{group: a, topics: [t], sink: noop, "
            f"processor: {{type: arrow, reducer: 'a:b', {rows}}}}}\n"
            f"  spark: {{group: s, topics: [t], sink: noop, "
            f"processor: {{type: spark, sql: 'SELECT * FROM batch', {rows}}}}}\n"
            f"  keyed: {{group: k, topics: [t], "
            f"processor: {{type: keyed, reducer: 'a:b', value: pairs, {options}}}}}\n"
        )
        self._channels = load(file).channels

    def rows(self, channel: str, on_undecodable: OnUndecodable = OnUndecodable.SKIP) -> Decode:
        """Return how a channel decodes."""
        chosen: Any = self._channels[channel].processor
        return decode(chosen, MicroBatchRejects(undecodable=on_undecodable.value))

    def values(self) -> CustomDecoder:
        """Return how the keyed channel reads values."""
        chosen: Any = self._channels["keyed"].processor
        found = decoder_of(chosen.decoder)
        assert found is not None
        found.load()
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The package on this process's import path alone: workers get its code with their tasks."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield Site(tmp_path, install_pairs(tmp_path / "site"))
    sys.modules.pop("acme_pairs", None)


def test_rows_are_decoded_alike_in_workers_and_without_spark(
    site: Site, spark_runtime: SparkRuntime
) -> None:
    """Rows, tombstones and what is left out are the same, and so are the types' limits."""
    table = records_table(VALUES)
    inline = dry_run_inline(lambda rows, _: rows, table, site.rows("arrow"))
    spark = dry_run(spark_runtime.session, lambda df, _: df, table, site.rows("spark"))
    assert inline.rows is not None
    assert spark.rows is not None
    assert inline.skipped == spark.skipped == SKIPPED
    assert inline.rows.to_pylist() == spark.rows.to_pylist()
    named = [(row["id"], row["name"], row["_kafka"]["offset"]) for row in spark.rows.to_pylist()]
    assert named == [(1, "a", 0), (None, None, 1), (None, "b", 3), (2, None, 5)]


def test_workers_make_a_decoder_once_each(site: Site, spark_runtime: SparkRuntime) -> None:
    """One serves all tasks of a worker; this process checks first that it can be made."""
    how = site.rows("spark")
    for _ in range(4):
        dry_run(spark_runtime.session, lambda df, _: df, records_table(VALUES), how)
    makers = site.made.read_text().split()
    assert len(makers) > 1
    assert sorted(makers) == sorted(set(makers))
    assert str(os.getpid()) in makers


@pytest.mark.parametrize("channel", ["arrow", "spark"])
def test_an_undecodable_record_is_named_with_the_decoders_reason(
    site: Site, spark_runtime: SparkRuntime, channel: str
) -> None:
    """The error of the failed batch has the record's offset and the decoder's reason."""
    dry_runs: dict[str, Any] = {
        "arrow": lambda table, how: dry_run_inline(lambda rows, _: rows, table, how),
        "spark": lambda table, how: dry_run(spark_runtime.session, lambda df, _: df, table, how),
    }
    how = site.rows(channel, OnUndecodable.FAIL)
    table = records_table([b"id=1", b"rubbish", b"id=3"])
    with pytest.raises(UndecodableRecordError) as caught:
        dry_runs[channel](table, how)
    assert caught.value.partition == TopicPartition("events", 0)
    assert caught.value.offset == 1
    assert caught.value.reason.startswith("acme_pairs:Pairs raised ValueError: dictionary update")
    assert caught.value.reason.endswith("or skip, which leaves such records out")


def test_no_record_is_blamed_where_a_decoder_cannot_work_now(
    site: Site, spark_runtime: SparkRuntime
) -> None:
    """Not even where undecodable records are skipped: the batch comes again."""
    with pytest.raises(JobFailedError, match="the registry does not answer"):
        dry_run(
            spark_runtime.session,
            lambda df, _: df,
            records_table([b"id=1", b"down"]),
            site.rows("spark"),
        )


def total(key: str, state: Any, facts: Sequence[Any], now: int) -> Any:
    """Add the ids of a key's facts up."""
    del key, now
    (fact,) = facts
    return (state or 0) + fact.value["id"], [], {}


def folded(fold: Any, run: Any) -> list[dict[str, Any]]:
    """Return what becomes of three facts of two keys, one of which cannot be decoded."""
    state = LayeredState(MemoryStore())
    state.admit(0)
    sent = [(b"k", b"id=3"), (b"j", b"rubbish"), (b"k", b"id=4")]
    table = records_table([FakeRecord(key_=key, value_=value) for key, value in sent])
    function = KeyedFunction(fold, RowSettings(undecodable="skip"), state, FakeClock())
    parts = (OffsetRange("events", 0, 0, 3, 3, "i/0"),)
    result = function.reduce(table, MicroBatch("1", "c", parts), run, 2)
    assert set(RESULT.names) <= set(result.column_names)
    return sorted(
        ({name: row[name] for name in ("key", "state", "rejected")} for row in result.to_pylist()),
        key=lambda row: row["key"],
    )


def test_facts_are_decoded_in_workers(site: Site, spark_runtime: SparkRuntime) -> None:
    """And folded as this process would; a fact that cannot be decoded is poison."""
    decoder = site.values()
    fold = Fold(total, FoldSettings(outputs=("out",), failing="skip", decoder=decoder))
    send_by_value(decoder.factory)
    send_by_value(total)

    def in_workers(fold: Any, parts: Sequence[pa.Table]) -> list[pa.Table]:
        payloads = [_to_bytes(part) for part in parts]
        rows: Any = spark_runtime.context.parallelize(payloads, len(payloads))
        return [_result(each) for each in rows.map(_task(fold)).collect()]

    expected = [
        {"key": b"j", "state": None, "rejected": 1},
        {"key": b"k", "state": b"7", "rejected": 0},
    ]
    assert folded(fold, in_workers) == expected
    assert folded(fold, in_this_thread) == expected
    assert len(set(site.made.read_text().split())) > 1


def test_records_are_re_keyed_by_a_field_that_a_decoder_returns(site: Site) -> None:
    """The key is a field of the decoder's result; a decoder that cannot work blames no record."""
    settings = RekeySettings("value.id", "by-id", undecodable="skip", decoder=site.values())
    function = RekeyFunction(Rekey(settings))
    micro_batch = MicroBatch("1", "c", (OffsetRange("events", 0, 0, 3, 3, "i/0"),))
    found = function(records_table([b"id=3", b"rubbish", b"name=a"]), micro_batch)
    assert found.column("key").to_pylist() == [b"3"]
    with pytest.raises(Exception, match="the registry does not answer") as caught:
        function(records_table([b"id=3", b"down"]), micro_batch)
    assert type(caught.value).__name__ == "RetryableError"

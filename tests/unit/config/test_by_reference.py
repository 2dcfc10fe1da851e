from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

CONNECTOR = "spark: {connector: maven}\n"
REFERENCE = CHANNELS + "    source: by_reference\n"


def test_spark_reads_where_it_has_a_connector(tmp_path: Path) -> None:
    """The default, by value, needs no connector."""
    assert loaded(tmp_path, CONNECTOR + REFERENCE).channels["flights"].by_reference
    assert not loaded(tmp_path, CHANNELS).channels["flights"].by_reference


def test_without_a_connector_it_cannot(tmp_path: Path) -> None:
    """The problem is shown where the source is."""
    (problem,) = refused(tmp_path, REFERENCE)
    assert "channels.flights.source (line 8): is by_reference" in problem
    assert "give spark.connector" in problem


def test_other_processors_need_the_records(tmp_path: Path) -> None:
    """Only Spark can read by itself."""
    text = CONNECTOR + REFERENCE.replace(
        '{type: spark, reducer: "reducers:reduce"}', "{type: simple}"
    ).replace("noop", "a:b")
    (problem,) = refused(tmp_path, text)
    assert "is by_reference, and the simple processor needs the records themselves" in problem


def test_a_buffer_of_nothing_has_no_limit(tmp_path: Path) -> None:
    """The size of a buffer would have no effect, and large batches need none."""
    (problem,) = refused(tmp_path, CONNECTOR + REFERENCE + "    buffer: {max_bytes: 1GiB}\n")
    assert "buffer (line 10): exists only with source: by_value" in problem
    found = loaded(tmp_path, CONNECTOR + REFERENCE + "    batch: {max_bytes: 1GiB}\n")
    assert found.channels["flights"].batch.max_bytes == 1 << 30


@pytest.mark.parametrize("name", ["sasl.kerberos.keytab", "enable.ssl.certificate.verification"])
def test_security_that_java_does_not_know_is_refused(tmp_path: Path, name: str) -> None:
    """Left out it would be another connection; by value it is as good as any property."""
    text = f"kafka: {{properties: {{{name}: x}}}}\n"
    (problem,) = refused(tmp_path, text + CONNECTOR + REFERENCE)
    assert f"kafka.properties.{name}" in problem
    assert "has no counterpart in the Java client" in problem
    assert loaded(tmp_path, text + CHANNELS).channels


def test_a_property_of_librdkafka_alone_is_not_refused(tmp_path: Path) -> None:
    """The Java client does without it."""
    text = "kafka: {properties: {fetch.queue.backoff.ms: 5, fetch.min.bytes: 10}}\n"
    assert loaded(tmp_path, text + CONNECTOR + REFERENCE).channels


@pytest.mark.parametrize("connector", ["maven", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"])
def test_a_connector_is_a_name_or_a_folder(tmp_path: Path, connector: str) -> None:
    """A relative folder starts from the file's, as every path does."""
    assert loaded(tmp_path, f'spark: {{connector: "{connector}"}}\n{CHANNELS}').spark.connector == (
        connector
    )
    found = loaded(tmp_path, f"spark: {{connector: jars}}\n{CHANNELS}").spark.connector
    assert found == str(tmp_path / "jars")

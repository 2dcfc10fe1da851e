"""Spark's Kafka connector: the properties that have a session load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from headrace.config.kinds.connectors import MAVEN, is_coordinate
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the connector depends on and Spark brings itself: 54 MB that need not be fetched again.
_SPARKS_OWN = (
    "com.google.code.findbugs:jsr305",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
#: Spark's default less kafka: the newer of the two readers in the connector makes no objects of
#: rows on the way, which takes a tenth to a quarter off a micro-batch.
_OLD_READERS = {"spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text"}
_PACKAGES, _EXCLUDES, _JARS = "spark.jars.packages", "spark.jars.excludes", "spark.jars"


def default_coordinate() -> str:
    """Return the connector that fits the pyspark installed: the first release of its line."""
    major, minor, *_ = pyspark.__version__.split(".")
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{major}.{minor}.0"


def connector_properties(connector: str | None, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's properties for what ``spark.connector`` says, beside those of the user.

    Raises:
        ConfigError: a folder without the connector in it.
    """
    if connector is None:
        return {}
    found = {name: value for name, value in _OLD_READERS.items() if name not in properties}
    if connector == MAVEN or is_coordinate(connector):
        coordinate = default_coordinate() if connector == MAVEN else connector
        return {
            **found,
            _PACKAGES: _joined(properties.get(_PACKAGES), [coordinate]),
            _EXCLUDES: _joined(properties.get(_EXCLUDES), _SPARKS_OWN),
        }
    return {**found, _JARS: _joined(properties.get(_JARS), _jars_in(Path(connector)))}


def _joined(theirs: str | None, ours: list[str] | tuple[str, ...]) -> str:
    return ",".join([*([theirs] if theirs else []), *ours])


def _jars_in(folder: Path) -> list[str]:
    jars = sorted(folder.glob("*.jar"))
    if not any("spark-sql-kafka" in jar.name for jar in jars):
        problem = (
            f"spark.connector: {folder} has no jar of Spark's Kafka connector; fill it with: "
            f"headrace connector fetch {folder}"
        )
        raise ConfigError([problem])
    return [str(jar) for jar in jars]

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
import pytest

from headrace.config import SparkConfig
from headrace.core.errors import ConfigError
from headrace.extensions.spark.settings import (
    connector_properties,
    default_coordinate,
    spark_settings,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_maven_means_the_connector_of_the_installed_spark() -> None:
    """It is fetched without what pyspark brings itself."""
    found = connector_properties("maven", {})
    assert found["spark.jars.packages"] == default_coordinate()
    line = ".".join(pyspark.__version__.split(".")[:2])
    assert default_coordinate() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{line}.0"
    assert "org.apache.hadoop:hadoop-client-runtime" in found["spark.jars.excludes"]


def test_packages_and_jars_of_ones_own_stay(tmp_path: Path) -> None:
    """The connector comes behind them."""
    theirs = {"spark.jars.packages": "a:b:1", "spark.jars": "/c.jar"}
    assert connector_properties("x:y:2", theirs)["spark.jars.packages"] == "a:b:1,x:y:2"
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-4.0.0.jar"
    jar.touch()
    assert connector_properties(str(tmp_path), theirs)["spark.jars"] == f"/c.jar,{jar}"


def test_the_newer_reader_is_taken_unless_the_user_says_otherwise() -> None:
    """Spark would take the older one for Kafka."""
    name = "spark.sql.sources.useV1SourceList"
    assert "kafka" not in connector_properties("maven", {})[name].split(",")
    assert name not in connector_properties("maven", {name: "kafka"})


def test_a_folder_without_the_connector_is_refused(tmp_path: Path) -> None:
    """The error says how to fill it."""
    with pytest.raises(ConfigError, match=f"headrace connector fetch {tmp_path}"):
        spark_settings(SparkConfig.model_validate({"connector": str(tmp_path)}))


def test_without_one_nothing_is_loaded() -> None:
    """The session of a process whose channels all go by value has no more than pyspark."""
    settings = spark_settings(SparkConfig())
    assert not [name for name in settings.properties if name.startswith("spark.jars")]

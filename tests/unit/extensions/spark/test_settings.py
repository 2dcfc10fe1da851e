from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.config import Config, SparkConfig
from headrace.extensions.spark.settings import (
    SHORT_LIVED,
    SparkSettings,
    local_cores,
    short_lived,
    spark_channels,
    spark_settings,
)
from tests.programs import run_program


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[ 3 ]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    """Only a local master says how many tasks run at once."""
    assert local_cores(master) == cores


def test_a_star_means_the_cores_this_process_may_use() -> None:
    """``local[*]`` counts the cores of the process's affinity mask."""
    assert local_cores("local[*]") == len(os.sched_getaffinity(0))


def test_the_users_properties_win() -> None:
    """A property of the user replaces the recommended one; JVM options are added to ours."""
    properties = {
        "spark.sql.adaptive.enabled": "true",
        "spark.driver.extraJavaOptions": "-Dmine=1",
    }

    effective = SparkSettings("local[2]", properties).effective()

    assert effective["spark.sql.adaptive.enabled"] == "true"
    assert effective["spark.sql.shuffle.partitions"] == "2"
    assert effective["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert "-Dlog4j2.configurationFile=" in effective["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    "collector", ["", "-XX:+UseParallelGC", "-XX:+UseSerialGC", "-Xmx64m", "-XX:+UseZGC -Xmx9g"]
)
def test_a_jvm_takes_the_options_with_any_collector(collector: str) -> None:
    """Options for G1 stop no JVM with another collector or a small heap."""
    settings = SparkSettings(properties={"spark.driver.extraJavaOptions": collector})
    options = settings.effective()["spark.driver.extraJavaOptions"].split()

    ran = run_program(["java", *options, "-version"])

    assert ran.returncode == 0, ran.stderr
    assert "warning" not in ran.stderr.lower()


def test_executors_keep_unused_records_for_seconds() -> None:
    """The names are those of this version's connector; Spark ignores unknown ones silently."""
    effective = SparkSettings("spark://host:7077").effective()
    assert effective["spark.kafka.consumer.fetchedData.cache.timeout"] == "30s"
    assert effective["spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval"] == "10s"


@pytest.mark.parametrize(
    ("master", "channels", "wanted"),
    [
        ("local[3]", 1, ("local[3]", None)),
        ("local[3]", 2, ("local[6]", "3")),
        ("local[3,4]", 4, ("local[8,4]", "3")),
        ("local", 2, ("local[2]", "1")),
        ("spark://host:7077", 3, ("spark://host:7077", None)),
    ],
)
def test_several_channels_have_slots_to_spare(
    master: str, channels: int, wanted: tuple[str, str | None]
) -> None:
    """Spark's own default, one task for each slot, stays one for each core."""
    effective = SparkSettings(master, channels=channels).effective()

    assert (effective["spark.master"], effective.get("spark.default.parallelism")) == wanted
    if wanted[1] is not None:
        assert effective["spark.sql.shuffle.partitions"] == wanted[1]


def test_channels_that_share_the_session_are_counted() -> None:
    """Those of another kind need no slots, nor do those that are switched off."""
    spark: dict[str, Any] = {
        "topics": ["t"],
        "processor": {"type": "spark", "reducer": "a:b"},
        "sink": "noop",
    }
    arrow = {**spark, "processor": {"type": "arrow", "reducer": "a:b"}}
    keyed: dict[str, Any] = {
        "topics": ["t"],
        "processor": {"type": "keyed", "reducer": "a:b", "key": "value.id"},
    }
    channels = {
        "one": {**spark, "group": "one"},
        "two": {**spark, "group": "two"},
        "off": {**spark, "group": "off", "enabled": False},
        "other": {**arrow, "group": "other"},
        # two of them: one that re-keys, and one that reads by key
        "keyed": {**keyed, "group": "keyed"},
        "arrow": {**keyed, "processor": {**keyed["processor"], "engine": "arrow"}, "group": "i"},
    }
    kafka, zookeeper = {"bootstrap_servers": "h:1"}, {"hosts": "h:2"}
    config = Config.model_validate({"kafka": kafka, "zookeeper": zookeeper, "channels": channels})
    assert spark_channels(config) == 4


def test_lanes_share_the_cores() -> None:
    """The jobs of all pools run at once, instead of those that came first."""
    assert SparkSettings("local[2]").effective()["spark.scheduler.mode"] == "FAIR"


def test_a_local_session_asks_who_connects() -> None:
    """Unless its properties say otherwise; a cluster's secret is the cluster's affair."""
    assert SparkSettings("local[2]").effective()["spark.authenticate"] == "true"
    off = {"spark.authenticate": "false"}
    assert SparkSettings("local[2]", off).effective()["spark.authenticate"] == "false"
    assert "spark.authenticate" not in SparkSettings("spark://host:7077").effective()


def test_a_cluster_gets_no_loopback_address() -> None:
    """Executors on other hosts must reach the driver, so its address is left to Spark."""
    settings = SparkSettings("spark://host:7077")

    assert "spark.driver.host" not in settings.effective()
    assert "SPARK_LOCAL_IP" not in settings.environment()


def test_workers_are_forked_by_a_module_of_ours() -> None:
    """It is found whatever the user puts on the workers' path; a cluster knows nothing of it."""
    name = "spark.executorEnv.PYTHONPATH"
    effective = SparkSettings("local[2]", {name: "/mine"}).effective()
    ours, theirs = effective[name].split(os.pathsep)
    assert theirs == "/mine"
    assert (Path(ours) / f"{effective['spark.python.daemon.module']}.py").is_file()
    assert not {name, "spark.python.daemon.module"} & SparkSettings("yarn").effective().keys()


def test_workers_run_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python workers run the daemon's interpreter, unless the environment names another."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert SparkSettings().environment()["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    assert "PYSPARK_PYTHON" not in SparkSettings().environment()


def test_threads_of_the_jvm_share_few_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM's C library has two arenas, unless the environment names a number."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert SparkSettings().environment()["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert "MALLOC_ARENA_MAX" not in SparkSettings().environment()


def test_the_configuration_says_how_long_a_start_may_take() -> None:
    """Two minutes, unless spark.start_timeout says otherwise."""
    assert spark_settings(SparkConfig()).start_timeout == 120
    longer = SparkConfig.model_validate({"start_timeout": "10m"})
    assert spark_settings(longer).start_timeout == 600


def test_a_short_lived_session_starts_soon() -> None:
    """The JVM has options for a fast start after our own, and hardly any warm-up."""
    settings = short_lived("local[2]")
    assert settings.effective()["spark.driver.extraJavaOptions"].endswith(SHORT_LIVED)
    assert (settings.master, settings.warm_up) == ("local[2]", 1)

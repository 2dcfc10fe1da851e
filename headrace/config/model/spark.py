"""The ``spark`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from headrace.config.kinds.connectors import Connector
from headrace.config.kinds.properties import Properties, PropertyValue
from headrace.config.kinds.scalars import WholeNumber
from headrace.config.kinds.secrets import reveal_all
from headrace.config.kinds.text import FreeText
from headrace.config.kinds.units import GIB, MIB, Duration, Size
from headrace.config.model.base import Cold, Section

_FIELDS = {
    "spark.master": "master",
    "spark.app.name": "app_name",
    "spark.driver.memory": "driver_memory",
}

#: Spark refuses to start below 450 MiB of usable heap, and the collector keeps a part for itself.
_MIN_DRIVER_MEMORY = 512 * MIB


def _refusal(name: str) -> str | None:
    if name in _FIELDS:
        return f"is said by spark.{_FIELDS[name]}; use that field"
    return None if name.startswith("spark.") else "does not begin with 'spark.'"


class SparkConfig(Section):
    """The Spark session that all channels of the process share."""

    master: Cold[FreeText] = "local[*]"
    """Where Spark runs: local[cores], or the URL of a cluster."""

    app_name: Cold[FreeText] = "headrace"
    """The application's name in Spark's own pages and logs."""

    driver_memory: Cold[Annotated[int, Size(_MIN_DRIVER_MEMORY)]] = GIB
    """The heap of the driver's Java process; with a local master all work runs in it."""

    connector: Cold[Connector | None] = None
    """Spark's Kafka connector, for channels with source: by_reference. maven: the one that fits
    the installed pyspark, from Maven Central; or a Maven coordinate; or a folder that
    headrace connector fetch has filled. null: none."""

    properties: Cold[Annotated[Mapping[str, PropertyValue], Properties(_refusal)]] = Field(
        default={}
    )
    """Any property of Spark, by its full name."""

    warm_up: Cold[Annotated[int, WholeNumber(0, 1000)]] = 20
    """Small jobs to run before the process is ready: the first ones are several times slower."""

    start_timeout: Cold[Annotated[float, Duration(10, 3600)]] = 120.0
    """How long a session may take to be ready, warm-up included; on a cluster that counts the wait
    for executors. A service manager has to wait longer."""

    def session_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for Spark only."""
        return reveal_all(self.properties)

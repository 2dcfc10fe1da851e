"""One Spark session for all tests; a test that harms it starts its own."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.devstack.jars import cached, connector_set
from headrace.extensions.spark.settings import SparkSettings, connector_properties, short_lived
from headrace.testing.sinks import started_spark
from tests.integration.extensions.spark.channels import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime

#: Two tasks, so that chunks and shuffles are real; hardly any warm-up, so that tests start soon.
#: Slots for three channels.
SETTINGS = replace(short_lived("local[2]"), channels=3)


def with_connector(settings: SparkSettings) -> SparkSettings:
    """Return the settings of a session that can read from Kafka itself."""
    folder = str(cached(connector_set())[0].parent)
    properties = dict(settings.properties)
    return replace(settings, properties=properties | connector_properties(folder, properties))


_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pyspark leave the sockets that it collects results through to the garbage collector."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect those sockets before a test ends that is allowed to leave them."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[SparkRuntime]:
    """A started runtime."""
    with started_spark(with_connector(SETTINGS)) as runtime:
        yield runtime


@pytest.fixture
def channel(spark_runtime: SparkRuntime, tmp_path: Path) -> Iterator[Callable[..., Channel]]:
    """Open a channel with a reducer, and close it at the end."""
    opened: list[Channel] = []

    def open_one(reducer: Reducer | str, **options: Any) -> Channel:
        opened.append(Channel(spark_runtime, tmp_path / "table", reducer, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()

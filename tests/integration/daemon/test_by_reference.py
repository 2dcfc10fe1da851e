"""A daemon whose Spark reads the records from Kafka itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.devstack.jars import cached, connector_set
from tests.integration.daemon.rig import spark_section
from tests.integration.daemon.test_until import numbered

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

#: The same is asked of a session that other tests share; this one starts its own, as users do.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: Seconds for Spark's start and its first jobs on a busy machine.
START = 200.0

_REDUCERS = """
def places(df, batch):
    return df.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
"""


def _document(site: Site) -> dict[str, Any]:
    document = site.document()
    connector = str(cached(connector_set())[0].parent)
    document["spark"] = spark_section(2, driver_memory="512MiB", connector=connector)
    document["channels"]["main"] |= {
        "source": "by_reference",
        "processor": {"type": "spark", "reducer": "reducers:places"},
        "sink": {"type": "delta", "path": str(site.directory / "table")},
    }
    return document


def test_spark_reads_the_ranges_that_a_daemon_plans(site: Site) -> None:
    """Every readable record is in the table once; offsets stand at the ends, behind markers."""
    (site.directory / "reducers.py").write_text(_REDUCERS)
    site.broker.produce(site.partition(0), *numbered("plain", 2500))
    site.broker.transact(site.partition(1), *numbered("kept", 10))
    site.broker.transact(site.partition(1), *numbered("aborted", 10), commit=False)

    daemon = site.daemon(_document(site)).start("--until", "latest")
    assert daemon.running.wait(START) == 0, daemon.text()

    rows = DeltaTable(site.directory / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["partition"], row["offset"], row["value"]) for row in rows) == sorted(
        [(0, n, f"plain-{n}") for n in range(2500)] + [(1, n, f"kept-{n}") for n in range(10)]
    )
    assert site.offsets() == [2500, 22]

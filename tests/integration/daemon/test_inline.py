from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
from deltalake import DeltaTable

from tests.integration.daemon.test_reload import Changing

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

_REDUCER = """
import pyarrow as pa
import pyarrow.compute as pc


def sizes(table, batch):
    size = pc.binary_length(table.column("value"))
    return table.select(["partition", "offset"]).append_column("size", size)
"""


#: Writes down whether pandas was there when the first batch had become a table.
_ASKING = """
import sys
from pathlib import Path

_SEEN = Path(__file__).with_name("seen")


def reduce(table, batch):
    if not _SEEN.exists():
        _SEEN.write_text(f"{table.num_rows > 0} {'pandas' in sys.modules}")
    return table.select(["partition", "offset", "timestamp"])
"""


def test_the_first_batch_as_a_table_imports_no_pandas(site: Site) -> None:
    """Pandas is not imported unasked: it would hold the first batch up for a second and more."""
    (site.directory / "asking_reducer.py").write_text(_ASKING, encoding="utf-8")
    table = site.directory / "table"
    changing = Changing(
        site,
        processor={"type": "arrow", "reducer": "asking_reducer:reduce"},
        sink={"type": "delta", "path": str(table)},
    )
    changing.produce(10)
    changing.daemon.signal(signal.SIGTERM)
    assert changing.daemon.wait() == 0
    assert (site.directory / "seen").read_text(encoding="utf-8") == "True False"


def test_a_channel_of_type_arrow_takes_no_jvm_and_follows_its_code(site: Site) -> None:
    """Rows are in the table once, no process was started, and changed code is taken up."""
    code = site.directory / "inline_reducer.py"
    code.write_text(_REDUCER, encoding="utf-8")
    table = site.directory / "table"
    changing = Changing(
        site,
        watch=True,
        processor={"type": "arrow", "reducer": "inline_reducer:sizes", "reload": True},
        sink={"type": "delta", "path": str(table)},
    )
    changing.produce(10)
    assert psutil.Process(changing.daemon.running.pid).children(recursive=True) == []

    code.write_text(_REDUCER.replace('"size", size', '"size", pc.negate(size)'), encoding="utf-8")
    changing.daemon.wait_event("channel_restarted")
    changing.produce(10)
    changing.daemon.signal(signal.SIGTERM)
    assert changing.daemon.wait() == 0

    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    found = sorted((row["partition"], row["offset"], row["size"] > 0) for row in rows)
    assert found == [(p, offset, offset < 10) for p in (0, 1) for offset in range(20)]

"""What a Spark session keeps of thousands of micro-batches: heap, memory and temporary files."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import stack
from benchmarks.growth import live_heap, more_of
from benchmarks.lifecycle.daemon import CHANGE, Daemon, Settings
from benchmarks.report import Report, say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.reader import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace.devstack import LocalStack

#: The most that each figure may be.
TARGETS = {"live_heap_growth_mib": 2.0, "temp_files_growth": 0}

#: What tells files of one kind apart.
_NUMBER = re.compile(r"[0-9a-f]{8,}|[0-9]+")

_CHANNEL = "bench"
_MIB = 1 << 20

#: Files of shuffles go a moment after the JVM has collected what refers to them: seconds within
#: which they have to, and in which none comes or goes when they have.
_CLEANED, _STILL = 60.0, 5.0

#: The heap has its full size from the start; otherwise its growth looks like something kept.
_HEAP = "-Xms768m -XX:+AlwaysPreTouch"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: ``batches`` micro-batches of ``records`` each, compared with ``early`` ones."""

    batches: int = 10_000
    early: int = 1_000
    records: int = 10
    partitions: int = 2
    master: str = "local[2]"
    #: Seconds that a micro-batch may take on average.
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What there is while the channel is held; sizes in MiB.

    ``live_heap`` is None without the JDK's tools; ``temp_files`` are counted by their names, with
    ``#`` for what is a number.
    """

    batches: int
    live_heap_mib: float | None
    jvm_rss_mib: float
    daemon_rss_mib: float
    temp_files: Mapping[str, int]
    temp_mib: float


def run(plan: Plan | None = None) -> Report:
    """Run all micro-batches in one daemon with one JVM. Blocks for some ten minutes."""
    plan = plan or Plan()
    with stack.servers() as servers, _running(plan, servers) as daemon:
        looks = [_look(plan, servers, daemon, at) for at in (plan.early, plan.batches)]
        generation = daemon.get("status")["spark"]["generation"]
        daemon.stop()
        _require_all(plan, servers)
        figures = _growth(*looks)
        missed = [name for name, most in TARGETS.items() if (figures[name] or 0) > most]
        return Report(
            "endurance",
            {
                "holds": not missed and generation == 1,
                "missed": missed,
                **figures,
                "looks": [asdict(look) for look in looks],
                "generation": generation,
                "exits": daemon.exits,
                "targets": TARGETS,
            },
        )


def _growth(early: Look, late: Look) -> dict[str, Any]:
    heaps = (early.live_heap_mib, late.live_heap_mib)
    grown = None if None in heaps else round((heaps[1] or 0) - (heaps[0] or 0), 1)
    return {
        "live_heap_growth_mib": grown,
        "temp_files_growth": sum(late.temp_files.values()) - sum(early.temp_files.values()),
        "more_temp_files": more_of([early.temp_files], [late.temp_files]),
        "jvm_rss_growth_mib": round(late.jvm_rss_mib - early.jvm_rss_mib, 1),
        "daemon_rss_growth_mib": round(late.daemon_rss_mib - early.daemon_rss_mib, 1),
        "batches": late.batches - early.batches,
    }


@contextmanager
def _running(plan: Plan, servers: LocalStack) -> Iterator[Daemon]:
    stack.fill(
        servers,
        _CHANNEL,
        records=plan.batches * plan.records,
        size=40,
        partitions=plan.partitions,
        keyed=True,
    )
    daemon = Daemon(_CHANNEL, servers.directory, _settings(plan, servers))
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.kill()


def _settings(plan: Plan, servers: LocalStack) -> Settings:
    temp = _temp(servers)
    temp.mkdir()
    properties = {
        "spark.local.dir": str(temp),
        "spark.driver.extraJavaOptions": f"{_HEAP} -Djava.io.tmpdir={temp}",
    }
    channel: Mapping[str, Any] = {
        "topics": [_CHANNEL],
        "group": _CHANNEL,
        "batch": {"max_records": plan.records // plan.partitions, "linger": 0},
        "processor": {
            "type": "spark",
            "reducer": "benchmarks.reducers:count_by_key",
            "max_records": plan.records,
        },
        "sink": {"type": "delta", "path": str(_table(servers))},
    }
    spark = {
        "master": plan.master,
        "driver_memory": "768MiB",
        "start_timeout": "4m",
        "properties": properties,
    }
    return Settings(
        stack.addresses(servers), {_CHANNEL: channel}, {"spark": spark}, {"TMPDIR": str(temp)}
    )


def _temp(servers: LocalStack) -> Path:
    return servers.directory / "temp"


def _table(servers: LocalStack) -> Path:
    return servers.directory / "table"


def _look(plan: Plan, servers: LocalStack, daemon: Daemon, batches: int) -> Look:
    """Wait for the micro-batch, hold the channel, and look at what there is then. Blocks."""
    wanted = batches * plan.records

    def read() -> int:
        return sum(each["position"] or 0 for each in daemon.partitions(_CHANNEL))

    if not wait_for(lambda: read() >= wanted, Deadline.after(batches * plan.patience + CHANGE)):
        raise AssertionError(f"{read()} of {wanted} records were read in time")
    daemon.post(f"channels/{_CHANNEL}/pause", wait_s=CHANGE)
    pid = daemon.get("status")["spark"]["pid"]
    heap = live_heap(pid)
    files = _settled(_temp(servers))
    jvm, own = psutil.Process(pid), psutil.Process(daemon.pid)
    look = Look(
        batches=read() // plan.records,
        live_heap_mib=heap and round(heap / _MIB, 1),
        jvm_rss_mib=round(jvm.memory_info().rss / _MIB, 1),
        daemon_rss_mib=round(own.memory_info().rss / _MIB, 1),
        temp_files=dict(Counter(_NUMBER.sub("#", file.name) for file in files)),
        temp_mib=round(sum(files.values()) / _MIB, 2),
    )
    say(f"{look}")
    daemon.post(f"channels/{_CHANNEL}/resume")
    return look


def _settled(folder: Path) -> dict[Path, int]:
    """Return the files in a folder with their sizes, once they have stayed the same for a while."""
    found, since = _files(folder), SYSTEM_CLOCK.monotonic()

    def still() -> bool:
        nonlocal found, since
        if (now := _files(folder)) != found:
            found, since = now, SYSTEM_CLOCK.monotonic()
        return SYSTEM_CLOCK.monotonic() - since > _STILL

    wait_for(still, Deadline.after(_CLEANED))
    return found


def _files(folder: Path) -> dict[Path, int]:
    sizes = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it went meanwhile
            if file.is_file():
                sizes[file] = file.stat().st_size
    return sizes


def _require_all(plan: Plan, servers: LocalStack) -> None:
    """Add up the counts in the table."""
    found = sum(read_rows(_table(servers), ["count"]).column("count").to_pylist())
    if found != plan.batches * plan.records:
        raise AssertionError(f"the table has {found} of {plan.batches * plan.records} records")

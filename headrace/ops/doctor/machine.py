"""The machine: memory, open files, disk space."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace.config.types.units import GIB, MIB
from headrace.core.files import existing
from headrace.core.findings import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import Config
    from headrace.core.findings import Finding

#: What the Python process takes without records: 193 MiB with 10 partitions, 228 with 1,000
#: (python -m benchmarks coordination).
PYTHON_BYTES = 230 * MIB

#: What a JVM takes beyond its heap: Spark's own allowance, a tenth of the heap and no less.
JVM_SHARE, JVM_LEAST = 0.1, 384 * MIB

#: The part of the memory above which nothing is left for Python workers and the file cache.
MEMORY_SHARE = 0.8

#: Sockets, pipes and files: of the process itself, and of each channel's clients with some brokers.
BASE_FILES, CHANNEL_FILES = 200, 50

#: What a limit on open files should be, for clusters of many brokers and tables of many files.
FILES = 4096

#: Free space: below the first a thing fails soon, below the second it should be watched.
SPACE_STATE = (16 * MIB, 256 * MIB)
SPACE_TABLE = (256 * MIB, 2 * GIB)
SPACE_SPARK = (GIB, 5 * GIB)

_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def gigabytes(size: int) -> str:
    """Return bytes as people compare them."""
    return f"{size / GIB:.1f} GiB"


def needed_memory(config: Config, *, spark: bool) -> int:
    """Return the bytes that the process and its JVM may grow to, Python workers not counted."""
    channels = [channel for channel in config.channels.values() if channel.enabled]
    needed = PYTHON_BYTES + sum(channel.buffer.max_bytes for channel in channels)
    if spark:
        heap = config.spark.driver_memory
        needed += heap + max(JVM_LEAST, int(heap * JVM_SHARE))
    return needed


def check_memory(config: Config, *, spark: bool, total: int | None = None) -> Iterator[Finding]:
    """Compare what the configuration allows itself with what there is; ``total`` in bytes."""
    needed, there = needed_memory(config, spark=spark), total or memory()
    seen = f"up to {gigabytes(needed)} of {gigabytes(there)}"
    advice = "lower spark.driver_memory or the channels' buffer.max_bytes"
    if needed > there:
        yield error("memory", seen, f"{advice}, or take a larger machine")
    elif needed > there * MEMORY_SHARE:
        yield warning("memory", seen, f"{advice}: Spark's Python workers come on top")
    else:
        yield ok("memory", seen)


def memory(total: int | None = None, cgroups: tuple[Path, ...] = _CGROUPS) -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's.

    ``total`` is the machine's, where it is not to be asked.
    """
    total = psutil.virtual_memory().total if total is None else total
    for path in cgroups:
        try:
            limit = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        total = min(total, limit)
    return total


def check_open_files(config: Config, limit: int | None = None) -> Iterator[Finding]:
    """Compare the limit on open files with what the channels' clients take."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    needed = BASE_FILES + CHANNEL_FILES * len(config.channels)
    seen = f"{allowed} allowed, about {needed} needed"
    advice = f"raise the limit to {FILES} (ulimit -n, or LimitNOFILE= in the systemd unit)"
    if allowed == resource.RLIM_INFINITY or allowed >= max(FILES, needed):
        yield ok("open files", seen)
    elif allowed < needed:
        yield error("open files", seen, advice)
    else:
        yield warning("open files", seen, f"{advice}: brokers and tables may be many")


def check_disk(config: Config, environment: Mapping[str, str], *, spark: bool) -> Iterator[Finding]:
    """Check the free space where state, tables and Spark's shuffles lie."""
    yield from _space("disk of state_dir", Path(config.state_dir), SPACE_STATE)
    for name, channel in config.channels.items():
        path = getattr(channel.sink, "path", None)
        if path is not None:
            yield from _space(f"disk of channel {name}'s sink", Path(path), SPACE_TABLE)
    for folder in spark_folders(config, environment) if spark else ():
        yield from _space("disk of Spark's local folder", folder, SPACE_SPARK)


def spark_folders(config: Config, environment: Mapping[str, str]) -> list[Path]:
    """Return where Spark puts shuffles and spilled data."""
    properties = config.spark.session_properties()
    named = environment.get("SPARK_LOCAL_DIRS") or str(properties.get("spark.local.dir", "/tmp"))  # noqa: S108 - Spark's default
    return [Path(folder.strip()) for folder in named.split(",") if folder.strip()]


def _space(check: str, path: Path, limits: tuple[int, int]) -> Iterator[Finding]:
    folder = existing(path)
    free = shutil.disk_usage(folder).free
    seen = f"{gigabytes(free)} free in {folder}"
    if free < limits[0]:
        yield error(check, seen, f"free some; {gigabytes(limits[1])} are comfortable")
    elif free < limits[1]:
        yield warning(check, seen, f"watch it; {gigabytes(limits[1])} are comfortable")
    else:
        yield ok(check, seen)

"""Processor time of the processes that this one has started, apart from the servers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time so far: of servers, of all else below this process, of the machine.

    ``machine`` leaves out what processors were idle, or waited for a disk or a host.
    """

    at: float
    servers: float
    ours: float
    machine: float


class Usage:
    """Knows the servers by their processes, those that there are when it is made."""

    def __init__(self) -> None:
        self._servers = {process.pid for process in _below()}

    def now(self) -> Used:
        """Return what was used until now."""
        below = _below()
        whole = psutil.cpu_times()
        busy = whole.user + whole.nice + whole.system + whole.irq + whole.softirq
        return Used(
            at=time.monotonic(),
            servers=_seconds([each for each in below if each.pid in self._servers]),
            ours=_seconds([each for each in below if each.pid not in self._servers]),
            machine=busy,
        )


def _below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _seconds(processes: Collection[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total

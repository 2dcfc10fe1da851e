"""The Delta sink, with what it writes into a table's log and how it keeps the table small."""

from __future__ import annotations

from headrace.extensions.delta.maintenance import MaintenanceConfig
from headrace.extensions.delta.sink import DeltaSink

__all__ = ["DeltaSink", "MaintenanceConfig"]

"""The controller of a process's channels, and how it takes over another configuration."""

from __future__ import annotations

from headrace.controller.controller import KafkaController
from headrace.controller.reload import Reloader
from headrace.controller.reports import ConfigStatus, PendingChange, ReloadOutcome, ReloadReport

__all__ = [
    "ConfigStatus",
    "KafkaController",
    "PendingChange",
    "ReloadOutcome",
    "ReloadReport",
    "Reloader",
]

"""Kinds of processors that tests have channels of."""

from __future__ import annotations

from typing import ClassVar, Literal

from headrace.config.models.base import Restarts
from headrace.config.models.processor import ProcessorConfig


class TasksConfig(ProcessorConfig):
    """A kind that works in tasks: on the same partitions of all topics."""

    together: ClassVar[bool] = True

    type: Restarts[Literal["tasks"]] = "tasks"
    """This kind."""

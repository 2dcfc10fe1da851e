"""Kinds of sinks and processors of your own: all that their sections are written with."""

from __future__ import annotations

from headrace.config.delivery import DeliveryGuarantee
from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, OnlyWith, Restarts, Section
from headrace.config.models.processor import ProcessorConfig, ProcessorSite
from headrace.config.models.sink import SinkConfig, SinkSite
from headrace.config.types.scalars import (
    Count,
    Flag,
    FreeText,
    ImportPath,
    LocalPath,
    Name,
    PositiveNumber,
    TopicName,
    WholeNumber,
)
from headrace.config.types.secrets import SecretValue
from headrace.config.types.units import Duration, NonNegativeSeconds, PositiveSeconds, Size
from headrace.core.findings import Finding, error, ok, warning

__all__ = [
    "Count",
    "DeliveryGuarantee",
    "Duration",
    "FieldConflict",
    "Finding",
    "Flag",
    "FreeText",
    "Hot",
    "ImportPath",
    "LocalPath",
    "Name",
    "NonNegativeSeconds",
    "OnlyWith",
    "PositiveNumber",
    "PositiveSeconds",
    "ProcessorConfig",
    "ProcessorSite",
    "Restarts",
    "SecretValue",
    "Section",
    "SinkConfig",
    "SinkSite",
    "Size",
    "TopicName",
    "WholeNumber",
    "error",
    "ok",
    "warning",
]

"""Headrace: inbound Kafka channels, owned through ZooKeeper, reduced by Spark, committed once."""

from __future__ import annotations

__version__ = "0.1.0"

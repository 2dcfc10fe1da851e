"""The ownership of partitions: allocation, the registry in ZooKeeper, lease and coordinator."""

from __future__ import annotations

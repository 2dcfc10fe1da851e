"""The ZooKeeper client: the only package that imports kazoo."""

from __future__ import annotations

"""ZooKeeper and Kafka on loopback, for the demo, the tests, the benchmarks and a quick try.

Real servers, not doubles: ZooKeeper from pyspark's own jars, Kafka's broker in KRaft mode. They
need Java and nothing else installed, start in seconds and end with the process that owns them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.devstack.errors import LocalStackError
    from headrace.devstack.kafka import KafkaBroker
    from headrace.devstack.stack import Blueprint, LocalStack
    from headrace.devstack.zookeeper import ZooKeeperServer

#: Imported when they are first asked for: the commands' help needs none of them.
_HOMES = {
    "Blueprint": "headrace.devstack.stack",
    "KafkaBroker": "headrace.devstack.kafka",
    "LocalStack": "headrace.devstack.stack",
    "LocalStackError": "headrace.devstack.errors",
    "ZooKeeperServer": "headrace.devstack.zookeeper",
}

__all__ = ["Blueprint", "KafkaBroker", "LocalStack", "LocalStackError", "ZooKeeperServer"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.devstack' has no attribute {name!r}")
    return getattr(import_module(home), name)

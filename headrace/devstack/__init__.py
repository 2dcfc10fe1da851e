"""ZooKeeper and Kafka on loopback, for the demo, the tests, the benchmarks and a quick try.

Real servers, not doubles: ZooKeeper from pyspark's own jars, Kafka's broker in KRaft mode. They
need Java and nothing else installed, start in seconds and end with the process that owns them.
"""

from __future__ import annotations

from headrace.devstack.errors import LocalStackError
from headrace.devstack.kafka import KafkaBroker
from headrace.devstack.stack import Blueprint, LocalStack
from headrace.devstack.zookeeper import ZooKeeperServer

__all__ = ["Blueprint", "KafkaBroker", "LocalStack", "LocalStackError", "ZooKeeperServer"]

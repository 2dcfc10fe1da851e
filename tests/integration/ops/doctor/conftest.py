"""The documents and servers that the doctor is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.brokers import Broker

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


@pytest.fixture
def document(broker: Broker, zookeeper_hosts: str, tmp_path: Path) -> dict[str, Any]:
    """A configuration that is fit for the shared servers, with a topic and a group of its own."""
    (tmp_path / "functions.py").write_text("def keep(record):\n    pass\n", encoding="utf-8")
    return {
        "instance_id": "one",
        "state_dir": str(tmp_path / "state"),
        "python_path": [str(tmp_path)],
        "kafka": {"bootstrap_servers": broker.address},
        "zookeeper": {"hosts": zookeeper_hosts, "connect_timeout": "20s"},
        "channels": {
            "main": {
                "topics": [broker.create_topic(2)],
                "group": f"group.{uuid4().hex[:12]}",
                "processor": {"type": "simple", "deliver": "record"},
                "sink": "functions:keep",
            }
        },
    }

"""Ends ZooKeeper sessions from outside, as the servers do when nothing is heard of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.zookeeper.client import Credentials, build_client

if TYPE_CHECKING:
    from headrace.zookeeper.session import ZooKeeperSession


def expire(session: ZooKeeperSession) -> None:
    """End the session on the servers; its client finds out by itself and opens another."""
    credentials = Credentials(*session._client.client_id)
    taker = build_client(session._settings, credentials).client
    taker.start(timeout=10)
    assert taker.client_id[0] == credentials.session_id
    taker.stop()
    taker.close()

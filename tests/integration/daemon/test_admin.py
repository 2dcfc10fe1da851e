"""The admin API of a real daemon."""

from __future__ import annotations

import json
import signal
import stat
from typing import TYPE_CHECKING, Any

import httpx

from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Daemon, Site


def _folder(site: Site) -> Path:
    return site.directory / "state" / "one"


def _client(site: Site, daemon: Daemon) -> httpx.Client:
    """Return a client with what the daemon wrote down for its commands."""
    daemon.wait_event("admin_served")
    address = json.loads((_folder(site) / "admin.json").read_text())
    token = (_folder(site) / "admin-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=address["url"], headers=headers, timeout=WAIT)


def _status(client: httpx.Client) -> Any:
    return client.get("/api/v1/status").raise_for_status().json()


def test_the_api_answers_from_the_start_to_the_end(site: Site) -> None:
    """It is live before it is ready, shows all partitions, and goes with the process."""
    daemon = site.run()
    with _client(site, daemon) as client:
        assert client.get("/health/live").status_code == 200
        eventually(lambda: client.get("/health/ready").status_code == 200)
        site.broker.produce(site.partition(0), b"a", b"b", b"c")

        def read() -> bool:
            (channel,) = _status(client)["channels"]
            where = {p["partition"]: p["committed"] for p in channel["partitions"]}
            return where == {0: 3, 1: 0}

        eventually(read)
        assert client.get("/api/v1/members").json()["groups"][0]["group"] == site.group
        assert "headrace_position" in client.get("/metrics").text
        assert stat.S_IMODE((_folder(site) / "admin-token").stat().st_mode) == 0o600
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    assert not (_folder(site) / "admin.json").exists()
    assert "Traceback" not in daemon.text()


def test_a_second_process_of_the_name_takes_nothing_from_the_first(site: Site) -> None:
    """It is refused before it writes where its own API would be."""
    first = site.run()
    with _client(site, first) as client:
        second = site.run()
        assert second.wait() == 3
        assert _status(client)["process"]["pid"] == first.running.pid
        assert (_folder(site) / "admin.json").exists()

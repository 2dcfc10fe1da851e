"""A Prometheus server of a test's own, and promtool; both come with the Debian package."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from headrace.core.clock import Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import FAR_S, SILENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[3] / "deploy"

#: Seconds until Prometheus is ready, and until it has scraped often enough for a rate.
WAIT = 60.0


def tool(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install --no-install-recommends prometheus")
    return path


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        found = self.get("query", query=expression)
        assert isinstance(found["result"], list)
        return found["result"]

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with what became of their last evaluation."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def get(self, what: str, **parameters: str) -> Any:
        """Return what the server's API answers."""
        url = f"http://{LOOPBACK}:{self.port}/api/v1/{what}?{urlencode(parameters)}"
        with urlopen(url, timeout=WAIT) as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        return document["data"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urlopen(f"http://{LOOPBACK}:{self.port}/-/ready", timeout=WAIT) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Prometheus]:
    """Run a server with the files in deploy/, that scrapes ``target`` every second."""
    program = tool("prometheus")
    folder = directory / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", folder)
    config = folder / "prometheus.yml"
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    (folder / "targets.yml").write_text(json.dumps([{"targets": [target]}]), encoding="utf-8")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(port)
        silence = Silence(signs_of_work([process.pid], [folder]), SILENCE_S)
        assert wait_for(server.is_ready, Deadline.after(FAR_S), silence), (
            folder / "log"
        ).read_text()
        yield server
    finally:
        process.kill()
        process.wait(WAIT)

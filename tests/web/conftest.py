"""A browser, and what every test of the page watches for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.brokers import Broker
from tests.integration.daemon.rig import Site
from tests.web.browser import CHROMIUM, chromium
from tests.web.scenes import healthy
from tests.web.stage import serving
from tests.web.visit import Visits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from tests.web.stage import Stage


# one for each file: while one is open no other event loop can run on this thread
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    pytest.importorskip("playwright", reason="no playwright: make test-all installs it")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is missing: apt-get install --no-install-recommends chromium")
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The page in front of a process that a test makes up."""
    with serving(healthy()) as found:
        yield found


@pytest.fixture
def visits(browser: Browser) -> Iterator[Visits]:
    """Opens pages; nothing may go wrong on any of them that a test did not say."""
    found = Visits(browser)
    yield found
    found.close()
    assert found.complaints() == []


@pytest.fixture
def site(bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path) -> Iterator[Site]:
    """A topic, a group, and a folder for daemons."""
    found = Site(Broker(bootstrap_servers), zookeeper_hosts, tmp_path, partitions=4)
    yield found
    found.close()

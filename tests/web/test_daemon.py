"""The page of a real daemon with a running channel."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.daemon.rig import WAIT, eventually
from tests.integration.extensions.keyed.test_daemon import arrived
from tests.integration.extensions.streams.test_daemon import (
    URLS,
    clicks,
    produce,
    program,
    topology,
)
from tests.web.visit import accessibility, overflow, rows, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.integration.daemon.rig import Daemon, Site
    from tests.web.visit import Visits


def _client(site: Site, daemon: Daemon) -> httpx.Client:
    """Return a client of the daemon's API that has the token."""
    url = daemon.wait_event("admin_served")["url"]
    token = (site.directory / "state" / "one" / "admin-token").read_text().strip()
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=WAIT)


def _start(site: Site, document: dict[str, Any]) -> tuple[Daemon, str]:
    """Start a daemon and return it with the address of its page, once it is ready."""
    daemon = site.daemon(document).start()
    url = daemon.wait_event("admin_served")["url"]
    eventually(lambda: httpx.get(f"{url}/health/ready").status_code == 200)
    return daemon, url


def _claims(url: str) -> int:
    (channel,) = httpx.get(f"{url}/api/v1/channels").json()["channels"]
    return len(channel["partitions"])


def _row(page: Page, name: str) -> list[str]:
    return next(row for row in rows(page) if row[0] == name)


def test_the_page_shows_the_values_of_the_api(site: Site, visits: Visits) -> None:
    """Process, session, channel, partitions, owners and events are the daemon's own."""
    _, url = _start(site, site.document())
    eventually(lambda: _claims(url) == 4)
    site.broker.produce(site.partition(0), b"a", b"b", b"c")
    page = visits.open(url)
    until(page, lambda: len(rows(page)) == 4)
    until(page, lambda: _row(page, f"{site.topic}-0")[7] == "3")
    status = httpx.get(f"{url}/api/v1/status").json()
    facts = page.inner_text("#facts")
    assert f"pid {status['process']['pid']}" in facts
    assert status["zookeeper"]["session_id"] in facts
    assert "not used" in facts
    (channel,) = status["channels"]
    shown = {row[0]: (row[3], row[9]) for row in rows(page)}
    assert shown == {
        f"{each['topic']}-{each['partition']}": ("this process", str(each["epoch"]))
        for each in channel["partitions"]
    }
    assert f"group {site.group}" in page.inner_text(".channel header")
    until(page, lambda: "one" in page.inner_text("#group"))
    until(page, lambda: "controller started" in page.inner_text("#events"))
    until(page, lambda: page.inner_text("#verdict-title") == "All is well")
    assert accessibility(page) == []


def test_changes_are_seen_without_a_reload(site: Site, visits: Visits) -> None:
    """Records move positions, a pause through the API is told, and so is its end."""
    daemon, url = _start(site, site.document())
    eventually(lambda: _claims(url) == 4)
    page = visits.open(url)
    until(page, lambda: len(rows(page)) == 4)
    site.broker.produce(site.partition(2), *[b"x"] * 25)
    until(page, lambda: _row(page, f"{site.topic}-2")[7] == "25")
    with _client(site, daemon) as client:
        asked = {"reason": "the table is locked", "by": "ann"}
        client.post("/api/v1/channels/main/pause", json=asked).raise_for_status()
        until(page, lambda: "main is paused by ann" in page.inner_text("#problems"))
        assert "the table is locked" in page.inner_text("#problems")
        until(page, lambda: {row[2] for row in rows(page)} == {"paused"})
        client.post("/api/v1/channels/main/resume", json={"by": "ann"}).raise_for_status()
    until(page, lambda: page.inner_text("#verdict-title") == "All is well")
    until(page, lambda: "channel resumed" in page.inner_text("#events"))


def test_a_poison_record_stands_first_with_its_error(site: Site, visits: Visits) -> None:
    """The partition, the offset, the attempts and the error are there; others go on."""
    _, url = _start(site, site.document("refuse_poison"))
    eventually(lambda: _claims(url) == 4)
    site.broker.produce(site.partition(1), b"poison")
    page = visits.open(url, viewport={"width": 360, "height": 740})
    until(page, lambda: page.inner_text("#verdict-title") == "1 fault")
    problem = page.inner_text("#problems li")
    assert f"{site.topic}-1 fails at offset 0" in problem
    assert "cannot decode this" in problem
    assert overflow(page) == 0
    page.click("#problems button:has-text('Show')")
    (row,) = rows(page)
    assert row[0] == f"{site.topic}-1"
    assert "failing" in row[2]
    until(page, lambda: "processor error" in page.inner_text("#events"))


def test_partitions_of_another_member_have_its_name(site: Site, visits: Visits) -> None:
    """A partition that another member owns is shown with its owner."""
    _, url = _start(site, site.document())
    other = site.daemon({**site.document(), "instance_id": "two"}).start()
    other.wait_event("controller_started")
    eventually(lambda: _claims(url) == 2)
    page = visits.open(url)
    until(page, lambda: sorted(row[3] for row in rows(page)) == ["this process"] * 2 + ["two"] * 2)
    assert page.locator(".cells [data-look=elsewhere]").count() == 2
    page.select_option("#by-owner", "two")
    assert [row[2] for row in rows(page)] == ["elsewhere"] * 2


def test_the_page_goes_on_after_a_restart(site: Site, visits: Visits) -> None:
    """While the daemon is away that is said, with the age; the next one is found by itself."""
    document = site.document()
    # the usual port may be another process's by the time of the second start
    document["admin"] = {"port": 0}
    first, url = _start(site, document)
    document["admin"] = {"port": int(url.rpartition(":")[2])}
    page = visits.open(url)
    before = first.running.pid
    until(page, lambda: f"pid {before}" in page.inner_text("#facts"))
    visits.expect_failures()
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    page.wait_for_selector("#away:not([hidden])")
    assert page.inner_text("#live-text").startswith("Old: ")
    second, _ = _start(site, document)
    page.wait_for_selector("#live[data-state=live]")
    until(page, lambda: f"pid {second.running.pid}" in page.inner_text("#facts"))
    assert page.is_hidden("#away")
    until(page, lambda: page.inner_text("#verdict-title") == "All is well")


def test_the_token_is_asked_for_and_kept_in_this_tab_only(site: Site, visits: Visits) -> None:
    """No data is shown before the token, if reading takes one; a wrong one is asked for again."""
    document = site.document()
    document["admin"] = {"host": "0.0.0.0", "port": 0, "plain_text": True}
    daemon = site.daemon(document).start()
    url = daemon.wait_event("admin_served")["url"]
    visits.expect_failures()
    page = visits.open(url, wait="#token:not([hidden])")
    assert page.is_hidden("#all")
    assert page.evaluate("document.activeElement.id") == "token-value"
    assert accessibility(page) == []
    page.keyboard.type("not-the-token-of-this-process")
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-wrong:not([hidden])")
    assert page.is_visible("#token-value")
    assert accessibility(page) == []
    token = (site.directory / "state" / "one" / "admin-token").read_text().strip()
    page.fill("#token-value", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#live[data-state=live]")
    until(page, lambda: page.is_visible("#all"))
    assert page.evaluate("Object.values(sessionStorage)") == [token]
    assert page.evaluate("Object.values(localStorage)") == []
    assert page.context.cookies() == []
    page.click("summary:has-text('All settings')")
    assert "bootstrap_servers" in page.inner_text("#config pre")
    assert token not in page.content()


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
def test_a_real_daemon_sends_the_policy(site: Site, path: str) -> None:
    """The headers come through the whole stack."""
    daemon = site.run()
    url = daemon.wait_event("admin_served")["url"]
    headers = httpx.get(f"{url}{path}").headers
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert json.dumps(dict(headers)).count("nosniff") == 1


def test_a_key_of_a_running_topology_is_looked_up(site: Site, visits: Visits) -> None:
    """The row is the one of the API, and a key without one is told with the store's name."""
    code, output = program(site), site.broker.create_topic(1)
    document = topology(site, code, "totals", {"clicks": site.topic, "output": output})
    token = "a-token-of-22-characters"
    daemon, url = _start(site, {**document, "instance_id": "one", "admin": {"token": token}})
    sent = clicks(50, 1)
    produce(site, sent, 4)
    wanted = sum(page == URLS[0] for page, _, _ in sent)
    arrived(site, daemon, output, len({page for page, _, _ in sent}))
    page = visits.open(url)
    visits.expect_failures()
    form = page.get_by_role("search", name="Look up a key in topology shop")
    form.get_by_role("button", name="Look up").click()
    page.fill("#token-value", token)
    page.press("#token-value", "Enter")
    form.get_by_label("Key").fill(URLS[0])

    def is_counted() -> bool:
        form.get_by_role("button", name="Look up").click()
        page.wait_for_selector(".answer tbody tr")
        shown = json.loads(page.inner_text(".answer code"))
        return bool(shown == {"url": URLS[0], "n": wanted})

    until(page, is_counted)
    form.get_by_label("Key").fill("/nowhere")
    form.get_by_label("Key").press("Enter")
    page.wait_for_selector(".answer .wrong")
    assert "store totals has no row of key /nowhere" in page.inner_text(".answer")

"""Stores of topologies in daemons on real servers, asked by their members' APIs."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest

from headrace import StateClient
from headrace.core.clock import Deadline
from headrace.devstack.server import free_port
from headrace.devstack.wait import wait_for
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, arrived
from tests.integration.extensions.streams.test_daemon import (
    URLS,
    clicks,
    produce,
    program,
    run_in_process,
    stop,
    topology,
)

if TYPE_CHECKING:
    from types import ModuleType

    from tests.integration.daemon.rig import Site
    from tests.integration.extensions.streams.test_daemon import Click

TOKEN = "a-token-that-all-members-have"

#: Addresses of the loopback interface: what each member's API is reached at.
ADDRESSES = {"one": "127.0.0.2", "two": "127.0.0.3"}


def member(
    site: Site,
    code: ModuleType,
    function: str,
    options: dict[str, Any],
    name: str,
    *,
    standbys: int = 0,
) -> dict[str, Any]:
    """Return the configuration of a member whose API has an address of its own."""
    host, port = ADDRESSES[name], free_port()
    processor = {"max_records": 40, "state": {"standbys": standbys}}
    document = topology(site, code, function, options, processor=processor)
    # what asks for what a killed member had does so before its session is over
    document["zookeeper"]["session_timeout"] = "20s"
    admin = {"host": host, "port": port, "advertised_url": f"http://{host}:{port}", "token": TOKEN}
    return {**document, "instance_id": name, "admin": admin}


def client_of(*documents: dict[str, Any]) -> StateClient:
    """Return a client of members."""
    urls = [each["admin"]["advertised_url"] for each in documents]
    return StateClient(urls, token=TOKEN, timeout=SPARK_WAIT)


def held(document: dict[str, Any], store: str) -> list[int]:
    """Return the partitions of a store that a member can be asked for; none while it starts."""
    url = document["admin"]["advertised_url"]
    with httpx.Client(trust_env=False) as client:
        try:
            answer = client.get(f"{url}/api/v1/topologies/shop/stores")
        except httpx.HTTPError:
            return []
    if answer.is_error:
        return []
    found = {each["name"]: each["here"] for each in answer.json()["stores"]}
    return list(found[store])


def counted(sent: list[Click]) -> dict[str, int]:
    """Return the clicks of each page."""
    return dict(Counter(url for url, _, _ in sent))


@pytest.mark.timeout(400)
def test_either_member_leads_to_every_key_and_so_does_the_one_that_is_left(site: Site) -> None:
    """Each of two members has a partition; a client of either one gets all rows.

    One is killed: a client goes on asking, and gets all rows of the other, as they were and later.
    """
    code, output = program(site), site.broker.create_topic(1)
    options = {"clicks": site.topic, "output": output}
    documents = {name: member(site, code, "totals", options, name) for name in ADDRESSES}
    daemons = {name: site.daemon(each).start() for name, each in documents.items()}
    for each in daemons.values():
        each.wait_event("controller_started", SPARK_WAIT)

    def is_shared() -> bool:
        return [len(held(each, "totals")) for each in documents.values()] == [1, 1]

    assert wait_for(is_shared, Deadline.after(SPARK_WAIT)), daemons["one"].text()
    sent = clicks(300, 3)
    produce(site, sent, 2)
    wanted = counted(sent)
    arrived(site, daemons["one"], output, len(wanted))
    for document in documents.values():
        with client_of(document) as client:
            store = client.store("shop", "totals")
            assert wait_for(is_counted_by(store, wanted), Deadline.after(SPARK_WAIT))
            found = [store.get(url) for url in URLS]
            assert {each.key: each.row["n"] for each in found if each is not None} == wanted
            assert {each.partition for each in found if each is not None} == {0, 1}
            assert store.get("/nowhere") is None
    with client_of(*documents.values()) as client:
        store = client.store("shop", "totals")
        assert None not in [store.get(url) for url in URLS]
        daemons["one"].signal(signal.SIGKILL)
        daemons["one"].wait()
        found = [store.get(url) for url in URLS]
        assert {each.key: each.row["n"] for each in found if each is not None} == wanted
        more = clicks(100, 4)
        produce(site, more, 2)
        wanted = counted([*sent, *more])
        assert wait_for(is_counted_by(store, wanted), Deadline.after(SPARK_WAIT))
    stop(daemons["two"])


@pytest.mark.timeout(400)
def test_the_copy_of_a_killed_owner_answers_what_says_stale(site: Site) -> None:
    """Rows come with the copy's lag, and a plain question gets none before the session is over.

    Then the member has the partition itself, and its rows are of a copy no longer.
    """
    code, output = program(site), site.broker.create_topic(1)
    options = {"clicks": site.topic, "output": output}
    documents = {
        name: member(site, code, "totals", options, name, standbys=1) for name in ADDRESSES
    }
    daemons = {name: site.daemon(each).start() for name, each in documents.items()}
    for each in daemons.values():
        each.wait_event("controller_started", SPARK_WAIT)

    def is_shared() -> bool:
        return [len(held(each, "totals")) for each in documents.values()] == [1, 1]

    assert wait_for(is_shared, Deadline.after(SPARK_WAIT)), daemons["one"].text()
    (moving,), (kept,) = (held(each, "totals") for each in documents.values())
    sent = clicks(300, 3)
    produce(site, sent, 2)
    wanted = counted(sent)
    with client_of(documents["two"]) as client:
        store = client.store("shop", "totals", stale=True)

        def is_copied() -> bool:
            found = list(store.rows())
            lags = {each.partition: each.standby and each.standby.lag for each in found}
            rows = {each.key: each.row["n"] for each in found}
            return (lags, rows) == ({kept: None, moving: 0}, wanted)

        assert wait_for(is_copied, Deadline.after(SPARK_WAIT)), daemons["two"].text()
        daemons["one"].signal(signal.SIGKILL)
        daemons["one"].wait()
        assert is_copied()
        found = [row for url in URLS if (row := store.get(url)) is not None]
        assert {each.key: each.row["n"] for each in found} == wanted
        theirs = next(each for each in found if each.partition == moving)
        assert (theirs.offsets, theirs.standby and theirs.standby.lag) == ({}, 0)
        url = documents["two"]["admin"]["advertised_url"]
        with httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {TOKEN}"}) as plain:
            path = f"/api/v1/topologies/shop/stores/totals/{quote(theirs.key, safe='')}"
            answer = plain.get(url + path)
        assert (answer.status_code, answer.json()["error"]) == (307, "held_elsewhere")
        assert answer.headers["location"].startswith(documents["one"]["admin"]["advertised_url"])

        def is_taken_over() -> bool:
            found = list(store.rows())
            rows = {each.key: each.row["n"] for each in found}
            return rows == wanted and all(each.standby is None for each in found)

        assert wait_for(is_taken_over, Deadline.after(SPARK_WAIT)), daemons["two"].text()
    stop(daemons["two"])


def is_counted_by(store: Any, wanted: dict[str, int]) -> Any:
    """Return what asks whether all rows have so many clicks."""
    return lambda: {each.key: each.row["n"] for each in store.rows()} == wanted


@pytest.mark.parametrize("kind", ["hopping", pytest.param("session", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_windows_of_each_key_are_those_of_the_test_kit(site: Site, kind: str) -> None:
    """All that are open, with the fields that the operator writes, also after a restart."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options = {"clicks": site.topic, "final": final, "updates": updates, "kind": kind}
    document = member(site, code, "windows", options, "one")
    sent = clicks(120, 1)
    produce(site, sent)
    test = run_in_process(code.windows(**options), sent, site.topic)
    wanted = test.store("pages")
    daemon = site.daemon(document).start()

    def found() -> dict[tuple[str, int], Any]:
        store = client.store("shop", "pages")
        windows = [each for url in URLS for each in store.windows(url)]
        return {(each.key, each.row["begin"]): each.row for each in windows}

    with client_of(document) as client:
        daemon.wait_event("controller_started", SPARK_WAIT)
        assert wait_for(lambda: found() == wanted, Deadline.after(SPARK_WAIT)), daemon.text()
        stop(daemon)
        again = site.daemon(document).start()
        again.wait_event("controller_started", SPARK_WAIT)
        assert found() == wanted
    stop(again)

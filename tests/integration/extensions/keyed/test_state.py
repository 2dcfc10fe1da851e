"""The state of running daemons, as their API shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from headrace.core.clock import Deadline
from headrace.devstack.server import free_port
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import partition_of
from headrace.testing.records import FakeRecord
from tests.integration.extensions.keyed.test_daemon import arrived, keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.daemon.rig import Daemon, Site

WAIT = 60.0

#: As many keys as both partitions have some of, spread as Kafka's own producer does.
KEYS = [f"key-{number}" for number in range(20)]


#: Addresses of the loopback interface: what each member's API is reached at.
ADDRESSES = {"one": "127.0.0.2", "two": "127.0.0.3"}


def document(site: Site, output: str, member: str = "one") -> dict[str, Any]:
    """Return the configuration of a member of a channel with state."""
    return {
        **site.document(**keyed(site, output)),
        "instance_id": member,
        "admin": {"port": 0},
    }


def advertised(site: Site, output: str, member: str) -> dict[str, Any]:
    """Return the same with an API of an address of its own, which the member publishes."""
    host, port = ADDRESSES[member], free_port()
    admin = {"host": host, "port": port, "advertised_url": f"http://{host}:{port}"}
    return {**document(site, output, member), "admin": admin}


def produce(site: Site, times: int = 1) -> None:
    """Produce a fact of each key, so often."""
    for key in KEYS * times:
        name = key.encode()
        site.broker.produce(
            site.partition(partition_of(name, 2)), FakeRecord(key_=name, value_=b"v")
        )


def ask(site: Site, member: str, url: str) -> httpx.Response:
    """Ask with a member's token; what leads elsewhere is not followed."""
    token = (site.directory / "state" / member / "admin-token").read_text(encoding="utf-8").strip()
    with httpx.Client(trust_env=False, timeout=WAIT) as client:
        return client.get(url, headers={"Authorization": f"Bearer {token}"})


def get(site: Site, member: str, path: str) -> tuple[int, Any]:
    """Ask a member's API with its token; return the status and the answer."""
    answer = ask(site, member, address(site, member, path))
    return answer.status_code, answer.json()


def address(site: Site, member: str, path: str) -> str:
    """Return where a member answers."""
    record = (site.directory / "state" / member / "admin.json").read_text(encoding="utf-8")
    return f"{json.loads(record)['url']}/api/v1/channels/main/{path}"


def held(site: Site, member: str) -> set[int]:
    """Return the partitions whose state a member has."""
    status, found = get(site, member, "tasks")
    assert status == 200
    return {each["partition"] for each in found["tasks"] if each["restored"]}


def reduced(site: Site, members: set[str], count: int) -> None:
    """Wait until the members' state is of so many facts, and can be read."""

    def all_of_them() -> bool:
        tasks = [each for name in members for each in get(site, name, "tasks")[1]["tasks"]]
        return sum(each["offset"] or 0 for each in tasks if each["restored"]) == count

    assert wait_for(all_of_them, Deadline.after(WAIT))


def test_a_daemon_shows_the_keys_that_it_has(site: Site) -> None:
    """Each with what was committed; how much there is stands beside it."""
    output = site.broker.create_topic(1)
    daemon = site.daemon(document(site, output)).start()
    daemon.wait_event("controller_started")
    produce(site, 3)
    arrived(site, daemon, output, 3 * len(KEYS))
    reduced(site, {"one"}, 3 * len(KEYS))
    status, found = get(site, "one", f"state/{quote(KEYS[0])}")
    number = partition_of(KEYS[0].encode(), 2)
    assert (status, found["state"], found["partition"]) == (200, {"n": 3}, number)
    _, page = get(site, "one", "state?limit=1000")
    assert sorted(each["key"] for each in page["keys"]) == sorted(KEYS)
    assert {each["state"]["n"] for each in page["keys"]} == {3}
    assert (page["next"], page["restoring"], page["elsewhere"]) == (None, [], 0)

    def counted() -> bool:
        _, found = get(site, "one", "tasks")
        rows = [each["rows"] for each in found["tasks"]]
        return None not in rows and sum(rows) == len(KEYS)

    assert wait_for(counted, Deadline.after(WAIT)), daemon.text()
    assert get(site, "one", "state/nobody")[1]["error"] == "unknown_key"


def both(
    site: Site, output: str, of: Callable[[Site, str, str], dict[str, Any]] = document
) -> tuple[Daemon, Daemon]:
    """Return two members, each of which has a partition."""
    daemons = [site.daemon(of(site, output, name)).start() for name in ("one", "two")]
    for daemon in daemons:
        daemon.wait_event("controller_started")

    def shared() -> bool:
        return len(held(site, "one")) == 1 == len(held(site, "two"))

    assert wait_for(shared, Deadline.after(WAIT)), daemons[0].text()
    return daemons[0], daemons[1]


def test_a_key_of_another_daemon_names_it(site: Site) -> None:
    """421, where its API is on loopback; that member has the key."""
    output = site.broker.create_topic(1)
    first, _ = both(site, output)
    produce(site)
    arrived(site, first, output, len(KEYS))
    reduced(site, {"one", "two"}, len(KEYS))
    other = held(site, "two")
    for key in KEYS:
        is_others = partition_of(key.encode(), 2) in other
        status, found = get(site, "one", f"state/{key}")
        if is_others:
            assert (status, found["error"]) == (421, "held_elsewhere")
            assert "which member two has" in found["message"]
            assert get(site, "two", f"state/{key}")[1]["state"] == {"n": 1}
        else:
            assert (status, found["state"]) == (200, {"n": 1})


@pytest.mark.slow
def test_a_key_of_another_daemon_is_found_where_the_answer_leads(site: Site) -> None:
    """307, where it publishes its API's address: there the key is, for that member's token."""
    output = site.broker.create_topic(1)
    first, _ = both(site, output, advertised)
    produce(site)
    arrived(site, first, output, len(KEYS))
    reduced(site, {"one", "two"}, len(KEYS))
    names = ("one", "two")
    owners = {number: name for name in names for number in held(site, name)}
    for key in KEYS:
        number = partition_of(key.encode(), 2)
        owner = owners[number]
        (other,) = {*names} - {owner}
        assert get(site, owner, f"state/{key}")[1]["state"] == {"n": 1}
        answer = ask(site, other, address(site, other, f"state/{key}"))
        assert (answer.status_code, answer.json()["error"]) == (307, "held_elsewhere")
        place = answer.headers["location"]
        assert urlsplit(place).hostname == ADDRESSES[owner]
        assert ask(site, other, place).status_code == 401
        found = ask(site, owner, place)
        assert (found.status_code, found.json()["state"]) == (200, {"n": 1})
        assert found.json()["partition"] == number

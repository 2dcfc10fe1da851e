"""A daemon whose file changes while it runs."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site


class Changing:
    """A daemon that is told of a change by SIGHUP, unless it watches its file."""

    def __init__(
        self,
        site: Site,
        *,
        watch: bool = False,
        **channel: Any,
    ) -> None:
        self.site = site
        self.document = site.document(**channel)
        self.document["reload"] = {"watch": watch, "debounce": "100ms"}
        self.daemon: Daemon = site.daemon(self.document).start()
        self.file = self.daemon.directory / f"{self.daemon.name}.yaml"
        self.daemon.wait_event("controller_started")

    def count(self, event: str) -> int:
        """Return how often an event was logged."""
        return sum(each["event"] == event for each in self.daemon.events())

    def write(self) -> None:
        """Put the document in place as deployments do: whole, by a rename."""
        other = self.file.with_suffix(".new")
        other.write_text(json.dumps(self.document), encoding="utf-8")
        other.replace(self.file)

    def reload(self) -> None:
        """Write the document, have it read, and wait for that."""
        before = self.count("config_reloaded") + self.count("config_rejected")
        self.write()
        self.daemon.signal(signal.SIGHUP)
        eventually(lambda: self.count("config_reloaded") + self.count("config_rejected") > before)

    def produce(self, count: int) -> None:
        """Produce to both partitions, and wait until it is committed."""
        ends = [(end or 0) + count for end in self.site.offsets()]
        for number in (0, 1):
            values = [b"%d-%d" % (number, n) for n in range(ends[number] - count, ends[number])]
            self.site.broker.produce(self.site.partition(number), *values)
        eventually(lambda: self.site.offsets() == ends)

    def lives(self) -> None:
        """Assert that records still get through, and that it stops in order, without duplicates."""
        self.produce(10)
        self.daemon.signal(signal.SIGTERM)
        assert self.daemon.wait() == 0
        seen = self.site.seen()
        assert len(seen) == len(set(seen)) == sum(end or 0 for end in self.site.offsets())


def test_sighup_applies_hot_values_in_place(site: Site) -> None:
    """No partition is released; a value that needs a restart is pending, a bad file rejected."""
    changing = Changing(site)
    changing.produce(10)
    main = changing.document["channels"]["main"]
    main["batch"] = {"max_records": 3}
    main["workers"] = 5
    changing.document["metrics"]["host"] = "127.0.0.2"
    changing.reload()
    assert changing.daemon.wait_event("channel_reconfigured")["channel"] == "main"
    assert changing.daemon.wait_event("config_pending")["change"] == "metrics.host"
    assert changing.daemon.metric("headrace_config_pending_changes") == 1
    main["wrkers"] = 5
    changing.reload()
    [problem] = changing.daemon.wait_event("config_rejected")["problems"]
    assert "did you mean workers?" in problem
    assert changing.daemon.metric("headrace_config_last_reload_success") == 0
    changing.produce(10)
    assert changing.count("partition_released") == 0
    assert changing.count("partition_claimed") == 2
    changing.lives()


def test_sighup_moves_a_channel_to_another_group_and_connects_again(site: Site) -> None:
    """The channel drains and starts anew; so do all when the servers' section changes."""
    changing = Changing(site)
    changing.produce(10)
    changing.document["channels"]["main"]["sink"] = "functions:say"
    changing.reload()
    assert changing.daemon.wait_event("channel_restarted")["channel"] == "main"
    assert changing.count("partition_released") == 2
    changing.produce(10)
    changing.document["kafka"]["properties"] = {"client.id": "renamed"}
    changing.document["zookeeper"]["session_timeout"] = "8s"
    changing.reload()
    assert changing.daemon.wait_event("clients_reconnected")["channels"] == ["main"]
    # one of them only looked whether the new settings get through
    assert changing.count("zookeeper_session_started") == 3
    assert changing.count("partition_released") == 4
    assert changing.count("claim_lost") == 0
    changing.lives()


def test_changed_code_is_taken_up_and_code_that_cannot_be_loaded_is_not(site: Site) -> None:
    """The channel starts anew with what loads, and goes on undisturbed where it does not."""
    functions = site.directory / "functions.py"
    former = functions.read_text(encoding="utf-8")
    changing = Changing(
        site,
        watch=True,
        processor={"type": "simple", "deliver": "record", "reload": True},
    )
    changing.produce(10)
    functions.write_text(former.replace("file.write(record", 'file.write(b"new-" + record'))
    changing.daemon.wait_event("channel_restarted")
    changing.produce(10)
    assert [value.startswith("new-") for value in site.seen()] == [False] * 20 + [True] * 20
    functions.write_text("raise ValueError('half a thought')")
    pending = changing.daemon.wait_event("config_pending")
    assert pending["change"] == "channels.main.processor.code"
    assert "ValueError: half a thought" in pending["reason"]
    changing.produce(10)
    assert site.seen()[-1].startswith("new-")
    assert changing.count("channel_restarted") == 1
    functions.write_text(former)
    eventually(lambda: changing.count("channel_restarted") == 2)
    changing.lives()


def test_a_watched_file_is_taken_up_by_itself(site: Site) -> None:
    """A file that a rename puts in place is read at once, and what differs is applied."""
    changing = Changing(site, watch=True)
    changing.produce(10)
    changing.document["channels"]["main"]["workers"] = 5
    changing.write()
    assert changing.daemon.wait_event("config_reloaded")["by"] == "watch"
    assert changing.daemon.wait_event("channel_reconfigured")["changed"] == [
        "channels.main.workers"
    ]
    changing.lives()

"""Three ZooKeeper servers, of which the first hears the others through cables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import wait_for
from headrace.devstack.zookeeper import ZooKeeperServer
from tests.integration.outages.cable import Cable

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 60.0


class Ensemble:
    """The first server is a follower, and can be cut off from its leader without noticing soon.

    It waits for its leader for 20 s, the others for a follower for 2 s: meanwhile it answers
    readers with what it had, as a server does that a network has parted from the rest.
    """

    def __init__(self, directory: Path) -> None:
        numbers = (1, 2, 3)
        quorum = {number: free_port() for number in numbers}
        election = {number: free_port() for number in numbers}
        self._cables = {number: Cable(quorum[number]) for number in numbers[1:]}

        def peers(seen_by: int) -> dict[int, str]:
            ports = dict(quorum)
            if seen_by == 1:
                ports |= {number: cable.port for number, cable in self._cables.items()}
            return {n: f"{LOOPBACK}:{ports[n]}:{election[n]}" for n in numbers}

        self.servers = [
            ZooKeeperServer(
                directory / f"zookeeper-{number}",
                server_id=number,
                peers=peers(number),
                settings={"syncLimit": "40" if number == 1 else "4", "initLimit": "8"},
            )
            for number in numbers
        ]

    def start(self) -> None:
        """Start all servers at the same time. Blocks.

        Of servers without data that vote together, that with the highest number leads.
        """
        deadline = Deadline.after(WAIT)
        with ThreadPoolExecutor(len(self.servers)) as pool:
            started = [pool.submit(server.start, deadline) for server in self.servers]
        for future in started:
            future.result()
        assert self.servers[0].mode() == "follower"

    def stop(self) -> None:
        """Stop all servers at once."""
        for cable in self._cables.values():
            cable.close()
        for server in self.servers:
            server.kill()

    @property
    def hosts(self) -> str:
        """All servers, for clients."""
        return ",".join(server.address for server in self.servers)

    @property
    def main_hosts(self) -> str:
        """The servers that stay together."""
        return ",".join(server.address for server in self.servers[1:])

    def leader(self) -> ZooKeeperServer:
        """Return the server that leads."""
        return next(server for server in self.servers if server.mode() == "leader")

    def cut(self) -> None:
        """Part the first server from the others."""
        for cable in self._cables.values():
            cable.cut()

    def mend(self) -> None:
        """Join them again."""
        for cable in self._cables.values():
            cable.mend()

    def whole(self) -> None:
        """Wait until all three serve again."""
        modes = ["follower", "follower", "leader"]
        assert wait_for(
            lambda: sorted(str(server.mode()) for server in self.servers) == modes,
            Deadline.after(WAIT),
        )

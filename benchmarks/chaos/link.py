"""TCP connections on loopback that can be cut: what a network does to a member."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from headrace.devstack.server import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine

#: Seconds that a change may take.
_PATIENCE = 10.0

_CHUNK = 1 << 16


class Network:
    """The loop that all links of a run live in, on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._thread.start()

    def link(self, target: int, port: int | None = None) -> Link:
        """Open a link to a loopback port; it need not be listened on yet."""
        link = Link(self, free_port() if port is None else port, target)
        self.run(link.listen())
        self._links.append(link)
        return link

    def run(self, coroutine: Coroutine[object, object, None]) -> None:
        """Have the loop's thread run something, and wait for it."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE)

    def close(self) -> None:
        """End the loop with all links."""
        for link in self._links:
            link.cut(drops=True)
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()


class Link:
    """Forwards connections to a port from another one. ``cut`` and ``heal`` are for any thread."""

    def __init__(self, network: Network, port: int, target: int) -> None:
        self.port = port
        self._network = network
        self._target = target
        self._server: asyncio.Server | None = None
        self._passable = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """``host:port`` for the member."""
        return f"{LOOPBACK}:{self.port}"

    def cut(self, *, drops: bool) -> None:
        """Cut the link.

        ``drops``: connections break and are refused. Otherwise they fall silent: nobody is told,
        and what was sent arrives when the link is healed.
        """
        self._network.run(self._drop() if drops else self._silence())

    def heal(self) -> None:
        """Let everything through again."""
        self._network.run(self.listen())

    async def listen(self) -> None:
        """Accept connections, and let pass what waits. In the loop."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)
        self._passable.set()

    async def _silence(self) -> None:
        self._passable.clear()

    async def _drop(self) -> None:
        self._passable.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._passable.wait()
            onward_reader, onward = await asyncio.open_connection(LOOPBACK, self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(onward)
        await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer))
        self._writers -= {writer, onward}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one direction on until it ends; the other one ends with it."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passable.wait()
                writer.write(data)
                await writer.drain()
        await self._passable.wait()
        writer.close()


async def _cancel_all() -> None:
    ours = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not ours]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

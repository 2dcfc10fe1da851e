"""Temporal: the steps as activities of a workflow, with its development server.

Run with an address, it is a worker; without, it drives rounds.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.peer_sides.wire import Request, Wire
from benchmarks.peer_sides.workflow_work import STEPS, Child, Effects, Order, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_QUEUE = "orders"

_MODULE = "benchmarks.peer_sides.workflow_temporal"

#: Calls that a worker makes at once.
_AT_ONCE = 4

#: After so long an activity is attempted again whose worker says nothing of it.
_TIMEOUT = timedelta(seconds=10)

#: Starts that the client has under way at once.
_STARTS = 50

#: Seconds that starts may take.
_PATIENCE = 120.0


@cache
def _effects() -> Effects:
    return Effects()


def _made(order: dict[str, Any]) -> dict[str, Any]:
    info = activity.info()
    name, key = info.activity_type, f"{info.workflow_id}/{info.activity_id}"
    _effects().call(order["instance"], name, key, order["pause"])
    return {**order, "n": STEPS[name](order["n"])}


@activity.defn  # type: ignore[untyped-decorator]
def reserve(order: dict[str, Any]) -> dict[str, Any]:
    """Reserve what is ordered."""
    return _made(order)


@activity.defn  # type: ignore[untyped-decorator]
def charge(order: dict[str, Any]) -> dict[str, Any]:
    """Charge the customer."""
    return _made(order)


@activity.defn  # type: ignore[untyped-decorator]
def ship(order: dict[str, Any]) -> dict[str, Any]:
    """Ship it."""
    return _made(order)


@workflow.defn(name="order")
class OrderWorkflow:
    """The steps, one after the other."""

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, order: dict[str, Any]) -> int:
        """Return the order's number as it is after the last step."""
        for name in STEPS:
            order = await workflow.execute_activity(
                name, order, start_to_close_timeout=_TIMEOUT, result_type=dict
            )
        return int(order["n"])


async def work(address: str) -> None:
    """Make activities and workflow tasks until the process is ended."""
    client = await Client.connect(address)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        await Worker(
            client,
            task_queue=_QUEUE,
            workflows=[OrderWorkflow],
            activities=[reserve, charge, ship],
            activity_executor=pool,
            max_concurrent_activities=_AT_ONCE,
            workflow_runner=UnsandboxedWorkflowRunner(),
        ).run()


class TemporalSystem:
    """Two workers, and a client on a loop of its own."""

    def __init__(self, request: Request) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        address = request.settings["address"]
        self._client = self._run(Client.connect(address))
        self._ended: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._waiting: set[asyncio.Task[None]] = set()
        folder = Path(request.settings["directory"])
        command = [sys.executable, "-m", _MODULE, address]
        self._children = [Child(name, command, folder / name) for name in ("worker-1", "worker-2")]
        for child in self._children:
            child.start()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE)

    def start(self, orders: Sequence[Order]) -> None:
        """Start a workflow for each, and wait for its result behind."""
        self._run(self._start(orders))

    async def _start(self, orders: Sequence[Order]) -> None:
        room = asyncio.Semaphore(_STARTS)

        async def one(each: Order) -> None:
            order = {"instance": each.instance, "n": each.n, "pause": each.pause}
            async with room:
                handle = await self._client.start_workflow(
                    "order", order, id=each.instance, task_queue=_QUEUE, result_type=int
                )
            task = asyncio.create_task(self._wait(each.instance, handle))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

        await asyncio.gather(*map(one, orders))

    async def _wait(self, instance: str, handle: Any) -> None:
        self._ended.put((instance, await handle.result()))

    def outcomes(self, timeout: float) -> Iterable[tuple[str, int]]:
        """Yield results as they come."""
        try:
            found = self._ended.get(timeout=timeout)
            while True:
                yield found
                found = self._ended.get_nowait()
        except Empty:
            return

    def kill_worker(self) -> None:
        """Kill the last one, and start it again."""
        self._children[-1].kill()
        self._children[-1].start()

    def require_running(self) -> None:
        """Look at both."""
        for child in self._children:
            child.require_running()

    def close(self) -> None:
        """End both."""
        for child in self._children:
            child.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def main(arguments: list[str]) -> None:
    """Work, or serve rounds."""
    if arguments:
        asyncio.run(work(arguments[0]))
    else:
        serve(Wire(), TemporalSystem)


if __name__ == "__main__":
    main(sys.argv[1:])

"""One run: flights in at their pace, two daemons at work, one of them killed and brought back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from headrace.clock import SYSTEM_CLOCK, Deadline
from headrace.demo.daemons import Daemon, Reading
from headrace.demo.errors import DemoError
from headrace.demo.flights import key_values
from headrace.demo.pace import Pace
from headrace.demo.progress import MemberView, Progress, View
from headrace.demo.record import Kill, RunRecord, rows_in
from headrace.demo.story import GATES, PATIENCE, Facts, Phase, next_phase
from headrace.spark.sinks.delta.reader import DeltaLog, TableCommit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd

    from headrace.kafka.producer import TopicProducer

PARTITIONS = 8

#: Seconds between two turns: produce what is due, read the table's log, decide, show.
_TURN = 0.2

#: Seconds between two looks at the daemons' metrics, which cost them some work.
_READ_EVERY = 1.0

#: Seconds that brokers have to take records, and to confirm the last of them.
_PRODUCE_S = 60.0

#: Seconds that the daemons have to stop in order; they have half of it by their configuration.
_STOP_S = 60.0


class Run:
    """Drives the daemons through the story on one thread, by what the table's log says.

    The second daemon is the one that is killed.
    """

    def __init__(
        self,
        flights: pd.DataFrame,
        daemons: Sequence[Daemon],
        producer: TopicProducer,
        table: Path,
        *,
        seconds: float,
    ) -> None:
        self.record = RunRecord(len(flights), tuple(daemon.name for daemon in daemons))
        self.commits: list[TableCommit] = []
        self._daemons = list(daemons)
        self._victim = self._daemons[1]
        self._records = key_values(flights)
        self._pace = Pace(len(flights), seconds)
        self._producer = producer
        self._log = DeltaLog(table)
        self._phase = Phase.STARTING
        self._readings: dict[str, Reading] = {}
        self._before_kill = Reading()
        self._began = self._turned = self._read_at = SYSTEM_CLOCK.monotonic()

    def play(self, progress: Progress) -> None:
        """Start the daemons and go on until everything is in the table. Blocks.

        Raises:
            DemoError: a daemon ended by itself, or a phase took too long.
            ProduceError: the broker refused records.
        """
        for daemon in self._daemons:
            daemon.start()
        pause = threading.Event()
        patience = Deadline.after(PATIENCE[self._phase])
        while True:
            phase = self._turn()
            progress.show(self._view())
            if phase is Phase.DONE:
                break
            if phase is not self._phase:
                self._enter(phase)
                patience = Deadline.after(PATIENCE[phase])
            if patience.expired:
                raise DemoError(f"nothing came of this in {PATIENCE[phase]:.0f} s: {phase.value}")
            pause.wait(_TURN)
        self._producer.flush(Deadline.after(_PRODUCE_S))

    def stop(self) -> dict[str, int]:
        """Stop the daemons in order and return their exit codes. Blocks."""
        deadline = Deadline.after(_STOP_S)
        with ThreadPoolExecutor(len(self._daemons), "demo-stop") as pool:
            codes = pool.map(lambda daemon: daemon.stop(deadline), self._daemons)
            names = [daemon.name for daemon in self._daemons]
            return dict(zip(names, codes, strict=True))

    def _turn(self) -> Phase:
        """Do what is due and return the phase that the facts lead to."""
        for daemon in self._daemons:
            daemon.require_running()
        self._produce()
        self.commits += self._log.read_new()
        if SYSTEM_CLOCK.monotonic() >= self._read_at:
            self._read_at = SYSTEM_CLOCK.monotonic() + _READ_EVERY
            self._readings = {each.name: each.read() or Reading() for each in self._daemons}
        holdings = {name: reading.partitions for name, reading in self._readings.items()}
        return next_phase(self._phase, Facts(self.commits, holdings), self.record, PARTITIONS)

    def _produce(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        count = self._pace.due(now - self._turned, GATES[self._phase])
        self._turned = now
        self._producer.send(islice(self._records, count), Deadline.after(_PRODUCE_S))
        if self._producer.failed:
            self._producer.flush(Deadline.after(0))

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        if phase is Phase.TAKING_OVER:
            self._kill()
        elif phase is Phase.RETURNING:
            self._restart()

    def _kill(self) -> None:
        """Kill the victim and note when that was, and what was in the table when it was gone."""
        name = self._victim.name
        self._before_kill = self._victim.read() or self._readings[name]
        at = SYSTEM_CLOCK.time()
        self._victim.kill()
        self.commits += self._log.read_new()
        partitions = tuple(sorted(self._before_kill.partitions))
        kill = Kill(name, at, self.commits[-1].version, partitions)
        self.record = replace(self.record, kill=kill)
        self._readings[name] = Reading()

    def _restart(self) -> None:
        """Start the victim again; whatever it commits from this version on is of its new life."""
        self.record = replace(self.record, restart_version=self.commits[-1].version)
        self._victim.start()

    def _view(self) -> View:
        return View(
            phase=self._phase,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            total=self.record.rows,
            produced=self._pace.produced,
            stored=rows_in(self.commits),
            members=[self._member_view(daemon) for daemon in self._daemons],
        )

    def _member_view(self, daemon: Daemon) -> MemberView:
        now = self._readings.get(daemon.name, Reading())
        past = self._before_kill if daemon is self._victim and self.record.kill else Reading()
        return MemberView(
            name=daemon.name,
            state=daemon.state,
            partitions=now.partitions,
            lag=now.lag,
            batches=past.batches + now.batches,
            spark_seconds=past.spark_seconds + now.spark_seconds,
            commits=sum(commit.member == daemon.name for commit in self.commits),
        )

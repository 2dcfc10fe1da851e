"""A Spark cluster of its own on loopback: a master and workers from the pip package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds for what takes some on a machine that does nothing else.
WAIT = 120.0

_HOME = Path(pyspark.__file__).parent
_CLASSES = "org.apache.spark.deploy"


class Cluster:
    """One master, and workers of one core each. All methods block."""

    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self._port = free_port()
        where = ["--host", LOOPBACK, "--webui-port", "0"]
        self._processes = [self._start("master", "master.Master", "--port", self._port, *where)]
        self._says("master", "I have been elected leader")
        for number in range(workers):
            sizes = ["--cores", "1", "--memory", "1200m"]
            sizes += ["--work-dir", str(directory / f"work-{number}")]
            self._processes.append(
                self._start(f"worker-{number}", "worker.Worker", *sizes, *where, self.master)
            )
        for number in range(workers):
            self._says(f"worker-{number}", "Successfully registered with master")

    @property
    def master(self) -> str:
        """The URL of the master."""
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def properties(self) -> Mapping[str, str]:
        """What a session needs to run here, with an executor on every worker."""
        return {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{WAIT:.0f}s",
        }

    def kill_worker(self, number: int) -> None:
        """End a worker as a power cut does; its executor ends with it."""
        worker = self._processes[1 + number]
        worker.kill()
        worker.wait(WAIT)

    def close(self) -> None:
        """End what is left."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(WAIT)

    def _start(self, name: str, main: str, *arguments: object) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(_HOME / "bin" / "spark-class"), f"{_CLASSES}.{main}", *map(str, arguments)]
        with self._log(name).open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _says(self, name: str, words: str) -> None:
        said = wait_for(lambda: words in self._log(name).read_text(), Deadline.after(WAIT))
        assert said, self._log(name).read_text()

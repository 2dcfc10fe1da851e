"""The JVM behind pyspark: its process, started out of reach of our signals, and its output."""

from __future__ import annotations

import gc
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import structlog
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from headrace.errors import StartError
from headrace.spark.output import OutputPump

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from py4j.clientserver import ClientServer

log = structlog.get_logger(__name__)


class Jvm:
    """One gateway process. It ends with us: it watches the pipe at its standard input.

    A process group and session of its own keep signals for our group, such as a terminal's Ctrl-C,
    from taking it before the micro-batch in it is finished. It ignores SIGTERM, which systemd's
    default sends to every process of a service.

    Raises:
        PySparkRuntimeError: the process ended before it was ready, as without a Java.
        StartError: this process runs under spark-submit, whose JVM is not ours to replace.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            raise StartError("under spark-submit; start headrace by itself, and give it a master")
        self.conf = SparkConf(loadDefaults=False)
        for name, value in properties.items():
            self.conf.set(name, value)
        output, theirs = os.pipe()
        self._pump = OutputPump(output)
        self._pump.start()
        launch: Callable[..., ClientServer] = launch_gateway
        try:
            # a JVM that gives up says why on its standard output
            options = {"start_new_session": True, "stdout": theirs, "stderr": theirs}
            self.gateway = launch(self.conf, popen_kwargs=options)
        finally:
            os.close(theirs)
        self.process = cast("subprocess.Popen[bytes]", self.gateway.proc)
        signals = self.gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)

    @property
    def is_running(self) -> bool:
        """Whether the process lives. Does not block."""
        return self.process.poll() is None

    def close(self, seconds: float) -> None:
        """End the process: by closing its standard input, by SIGKILL after ``seconds``."""
        with suppress(Exception):
            self.gateway.shutdown()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning("spark_killed", pid=self.process.pid, after=seconds)
            self.process.kill()
            self.process.wait()
        self._pump.finish(1)


def forget_session() -> None:
    """Make pyspark forget a dead JVM, so that the next session can be built in this process.

    pyspark keeps gateway, context and session in class attributes, and every UDF keeps its
    counterpart in the JVM: those must go too, or a reducer's module would call into the old one.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 - no public way
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
    for function in gc.get_objects():
        if type(function) is UserDefinedFunction:  # isinstance would wake up lazy proxies
            function._judf_placeholder = None  # noqa: SLF001

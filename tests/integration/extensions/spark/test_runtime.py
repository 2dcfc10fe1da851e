from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.extensions.spark.gateway import Jvm
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

_START = """
import sys
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.extensions.spark.gateway import Jvm
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

runtime = SparkRuntime(SparkSettings("local[1]", warm_up=0))
try:
    runtime.start()
except StartError as error:
    print(error)
    sys.exit(3)
print(runtime.pid, flush=True)
sys.stdin.readline()
runtime.stop(Deadline.after(20))
"""

#: Prints the number of the first job behind the start. Spark counts jobs from 0.
_WARMED_UP = """
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

runtime = SparkRuntime(SparkSettings("local[1]", warm_up=3))
runtime.start()
runtime.context.setJobGroup("ours", "ours")
runtime.session.range(1).collect()
tracker = runtime.context.statusTracker()
print("jobs", *wait_for(lambda: tracker.getJobIdsForGroup("ours"), Deadline.after(20)))
runtime.stop(Deadline.after(20))
"""

#: Starts with secrets among its properties, runs a job in Python workers and prints what arrived.
_WITH_SECRETS = """
import sys
from headrace.core.clock import Deadline
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

secret = sys.stdin.readline().strip()
options = f'-Dtrust.password="{secret} \\\\" 1" -Xss2m'
properties = {
    "spark.hadoop.fs.s3a.secret.key": f"{secret} \\\\ = 2",
    "spark.driver.extraJavaOptions": options,
    "spark.driver.memory": "704m",
}
runtime = SparkRuntime(SparkSettings("local[1]", properties, warm_up=0))
runtime.start()
context = runtime.context
assert context.range(3).map(lambda n: n + 1).sum() == 6
print("trust", context._jvm.java.lang.System.getProperty("trust.password"))
print("key", context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"))
print("memory", context._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)
print("up", flush=True)
sys.stdin.readline()
runtime.stop(Deadline.after(20))
"""

#: Starts a session and prints its ports, and a request of Spark's own protocol in hex: whether an
#: endpoint of that name exists, which is asked for in an object of Java.
_ASKED = """
import struct
import sys
from headrace.core.clock import Deadline
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

properties = {"spark.authenticate": sys.argv[1]} if sys.argv[1:] else {}
runtime = SparkRuntime(SparkSettings("local[1]", properties, warm_up=1))
runtime.start()
context = runtime.context
jvm, port = context._jvm, int(context.getConf().get("spark.driver.port"))
body = jvm.java.io.ByteArrayOutputStream()
data = jvm.java.io.DataOutputStream(body)
data.writeBoolean(False)
data.writeBoolean(True)
data.writeUTF("127.0.0.1")
data.writeInt(port)
data.writeUTF("endpoint-verifier")
question = getattr(jvm.org.apache.spark.rpc.netty, "RpcEndpointVerifier$CheckExistence")
objects = jvm.java.io.ObjectOutputStream(data)
objects.writeObject(question("HeartbeatReceiver"))
objects.flush()
request = bytes(body.toByteArray())
request = struct.pack(">BqI", 3, 7, len(request)) + request
blocks = context._jsc.sc().env().blockManager().blockManagerId().port()
print(f"asked {runtime.pid} {port} {blocks} {context._gateway.gateway_parameters.port} "
      f"{(struct.pack('>q', len(request) + 8) + request).hex()}", flush=True)
sys.stdin.readline()
print("sum", context.range(3).map(lambda n: n + 1).sum())
runtime.stop(Deadline.after(20))
"""


def _started() -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a process with a runtime; return it and its JVM."""
    process = subprocess.Popen(
        [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdigit():
            return process, psutil.Process(int(line))
    raise AssertionError("the runtime did not start")


def test_our_handler_of_ctrl_c_stays(spark_runtime: SparkRuntime) -> None:
    """Building the session replaces no signal handler of the process."""
    assert spark_runtime.generation > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_to_our_group_do_not_reach_the_jvm(spark_runtime: SparkRuntime) -> None:
    """The JVM has a process group and a session of its own."""
    assert spark_runtime.pid is not None
    assert os.getpgid(spark_runtime.pid) == spark_runtime.pid
    assert os.getsid(spark_runtime.pid) == spark_runtime.pid


def test_sessions_have_settings_and_views_of_their_own(spark_runtime: SparkRuntime) -> None:
    """Lanes share the context and nothing else."""
    one, other = spark_runtime.new_session(), spark_runtime.new_session()
    one.conf.set("spark.sql.caseSensitive", "true")
    one.range(1).createOrReplaceTempView("mine")

    assert other.conf.get("spark.sql.caseSensitive") == "false"
    assert not other.catalog.tableExists("mine")
    assert other.sparkContext is one.sparkContext
    assert other.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_second_context_in_the_process_is_refused(spark_runtime: SparkRuntime) -> None:
    """Spark allows one context, so a second runtime says so and leaves the first one alone."""
    with pytest.raises(StartError, match="has a Spark context already"):
        SparkRuntime(SparkSettings("local[1]")).start()

    assert spark_runtime.is_usable()


def test_a_runtime_that_is_not_started_says_so() -> None:
    """Using a session before the start is an error that names the cure."""
    runtime = SparkRuntime(SparkSettings("local[1]"))

    with pytest.raises(StartError, match=r"call SparkRuntime\.start first"):
        _ = runtime.session
    assert not runtime.is_usable()
    assert runtime.pid is None


@pytest.mark.slow
def test_stop_ends_the_jvm() -> None:
    """After stop the JVM is gone and the process ends by itself."""
    process, jvm = _started()

    process.communicate("\n", timeout=60)

    assert process.returncode == 0
    assert not jvm.is_running()


@pytest.mark.slow
def test_a_killed_process_takes_its_jvm_with_it() -> None:
    """SIGKILL leaves no JVM behind, although it is in another session."""
    process, jvm = _started()

    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)

    gone, alive = psutil.wait_procs([jvm], timeout=30)
    assert (len(gone), alive) == (1, [])


@pytest.mark.slow
def test_a_session_is_ready_once_it_is_warmed_up() -> None:
    """When the start returns, Spark has run as many jobs as there are dummy micro-batches."""
    done = subprocess.run(
        [sys.executable, "-c", _WARMED_UP], capture_output=True, text=True, timeout=180, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "jobs 3" in done.stdout.splitlines()


def _command_lines(process: psutil.Process) -> Iterator[str]:
    """Yield the command lines of all that run below a process, as any user may read them."""
    for child in process.children(recursive=True):
        with suppress(OSError):
            yield Path(f"/proc/{child.pid}/cmdline").read_text(encoding="utf-8")


def _memory_files(pid: int) -> dict[str, str]:
    """Return what stands in the files in memory that a process has open."""
    return {
        str(link.readlink()): link.read_text(encoding="utf-8")
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if str(link.readlink()).startswith(("/memfd:spark-properties", "/memfd:java-options"))
    }


@pytest.mark.slow
def test_secrets_among_the_properties_are_on_no_command_line() -> None:
    """Not while the launcher, the JVM and a Python worker start; and they arrive as they are."""
    secret, seen, said = "hunter2-of-the-bucket", set[str](), list[str]()
    command = [sys.executable, "-c", _WITH_SECRETS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{secret}\n")
        process.stdin.flush()
        parent, deadline = psutil.Process(process.pid), Deadline.after(120)
        while not select.select([process.stdout], [], [], 0.01)[0] and not deadline.expired:
            seen.update(_command_lines(parent))
        for line in iter(process.stdout.readline, "up\n"):
            assert line, "the runtime did not start"
            said.append(line.rstrip("\n"))
        seen.update(_command_lines(parent))
        jvm = next(
            c for c in parent.children() if "org.apache.spark.deploy.SparkSubmit" in c.cmdline()
        )
        left = _memory_files(jvm.pid)
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    for part in ("launcher.Main", "-Xmx704m", "-Xss2m", "headrace_worker_daemon"):
        assert any(part in line for line in seen), part
    assert [line for line in seen if secret in line] == []
    assert said[-3:] == [f'trust {secret} " 1', f"key {secret} \\ = 2", "memory 704"]
    assert set(left.values()) == {""}


def _answer(port: int, request: bytes, length: int) -> bytes:
    """Return so many bytes of what comes back on a port, less where no more do."""
    answer, deadline = b"", Deadline.after(20)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        while len(answer) < length and not deadline.expired:
            connection.settimeout(deadline.remaining)
            more = connection.recv(length - len(answer))
            if not more:
                break
            answer += more
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("said", [[], ["false"]])
def test_only_the_process_itself_is_answered_on_loopback(said: list[str]) -> None:
    """Spark's two ports refuse who has no secret, unless it is turned off; the gateway always.

    There is no other port.
    """
    refused, answered = 5, 4
    with subprocess.Popen(
        [sys.executable, "-c", _ASKED, *said],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        words = next(line for line in process.stdout if line.startswith("asked ")).split()
        pid, driver, blocks, gateway = map(int, words[1:5])
        listening = {
            each.laddr.port
            for each in psutil.Process(pid).net_connections()
            if each.status == psutil.CONN_LISTEN
        }
        # the answer's length of eight bytes, then its kind
        kind = _answer(driver, bytes.fromhex(words[5]), 9)[8]
        assert kind == (answered if said else refused)
        if not said:
            text = _answer(blocks, bytes.fromhex(words[5]), 200)
            assert b"Expected SaslMessage" in text
        assert _answer(gateway, b"c\nz:java.lang.System\nexit\ne\n", 3).startswith(b"!x")
        rest, _ = process.communicate("\n", timeout=60)
    assert listening == {driver, blocks, gateway}
    assert "sum 6" in rest.splitlines()


def test_without_java_the_start_fails_with_advice(tmp_path: Path) -> None:
    """A missing Java is one sentence, and ends the start at once."""
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", _START],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 3, done.stderr
    assert "Java 17 or later must be on the PATH or in JAVA_HOME" in done.stdout


def test_spark_submit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spark-submit the JVM is the launcher's, so the start says how to start instead."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with pytest.raises(StartError, match="under spark-submit"):
        Jvm({})

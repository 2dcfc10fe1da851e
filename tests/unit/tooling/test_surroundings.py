"""The environment of tests, without that of the process that starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.server import ProcessIdentity, ProcessState
from headrace.devstack.wait import wait_for
from tests.leftovers import VARIABLE
from tests.pages import ROOT

_REPORT = """
import json, locale, os, resource, signal, subprocess, sys
sys.path.insert(0, {root!r})
from tests.surroundings import leave_behind
leave_behind()
os.kill(os.getpid(), signal.SIGHUP) if {endures} else None
child = [sys.executable, "-c", "import signal, json; print(json.dumps(sorted("
    "int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN)))"]
print(json.dumps({{
    "ignored": json.loads(subprocess.run(child, stdout=-1).stdout),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "failure": subprocess.run([sys.executable, "-c", "exit(3)"]).returncode,
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "mask": os.umask(0),
    "home": os.environ["HOME"],
    "variables": sorted(os.environ),
}}))
"""

#: What every Python ignores by itself.
_ALWAYS = [
    int(number)
    for number in signal.valid_signals()
    if number in {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)}
]


def _report(ignored: list[int], environment: dict[str, str], *, endures: bool = False) -> Any:
    """Start a process as the tests are started, and return what it is like afterwards."""
    hostile = (
        f"import os, signal, sys, resource\n"
        f"for n in {ignored!r}: signal.signal(n, signal.SIG_IGN)\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {ignored!r})\n"
        f"hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard)); os.umask(0o077)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", hostile, _REPORT.format(root=str(ROOT), endures=endures)],
        capture_output=True,
        check=False,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", ["SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGQUIT"]
)
def test_processes_of_the_tests_ignore_no_signal(name: str) -> None:
    """Signals that the parent ignores and blocks, as nohup does, are restored."""
    found = _report([int(getattr(signal, name))], {})
    assert found["ignored"] == sorted(_ALWAYS)
    assert found["blocked"] == []
    assert found["failure"] == 3


def test_the_tests_outlive_the_end_of_the_terminal_below_nohup() -> None:
    """SIGHUP does nothing to them, as it was ignored, and is not ignored by what they start."""
    assert int(signal.SIGHUP) not in _report([int(signal.SIGHUP)], {}, endures=True)["ignored"]


def test_the_tests_do_not_see_the_variables_of_who_starts_them() -> None:
    """Variables of terminals, proxies, locales, Python and libraries are hidden; HOME is set."""
    named = {
        *("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "LC_ALL", "TZ", "LANGUAGE", "http_proxy"),
        *("HTTPS_PROXY", "no_proxy", "PYTHONWARNINGS", "PYTHONPATH", "PYTHONUTF8", "KAFKA"),
        *("ZOOKEEPER", "HEADRACE_CONFIG", "HEADRACE_TOKEN", "NOTIFY_SOCKET", "STATE_DIRECTORY"),
        *("PGHOST", "GIT_DIR", "OTEL_SERVICE_NAME", "SPARK_HOME"),
    }
    found = _report([], dict.fromkeys(named, "0"))
    assert named.isdisjoint(found["variables"])
    assert Path(found["home"]).is_absolute()


def test_the_tests_have_room_for_files_and_the_usual_mask() -> None:
    """A low soft limit is raised, as far as the hard one goes."""
    found = _report([], {})
    assert found["files"] > 128
    assert found["mask"] == 0o022


_STARTS = """
import subprocess, sys, threading
sys.path.insert(0, {root!r})
from tests.leftovers import watch
watch()
nested = "import subprocess, sys, threading; child = subprocess.Popen(['sleep', '600'], " \
    "start_new_session=True); print(child.pid, flush=True); threading.Event().wait()"
daemon = subprocess.Popen([sys.executable, "-c", nested], start_new_session=True)
print(daemon.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_started_process_ends_with_the_process_of_the_tests(number: signal.Signals) -> None:
    """Daemons in sessions of their own, and what these started, also when nothing is cleaned up."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS.format(root=str(ROOT))], stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        started = [ProcessIdentity.of(int(tests.stdout.readline())) for _ in range(2)]
        assert None not in started
        assert all(each is not None and each.state is ProcessState.RUNNING for each in started)
        tests.send_signal(number)
    assert wait_for(
        lambda: all(each is not None and each.state is ProcessState.GONE for each in started),
        Deadline.after(60.0),
    )


def test_all_that_these_tests_start_ends_with_them() -> None:
    """The variable by which it is found is of this process."""
    assert os.environ[VARIABLE].startswith(f"{os.getpid()}-")

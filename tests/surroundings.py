"""Isolation of the tests from what starts them: signals that it ignores, its variables, limits.

A shell without job control has SIGINT ignored by what it starts in the background, ``nohup`` has
SIGHUP, and both are inherited by everything below, as are variables that people set for their
terminal, their proxy or their own Headrace. The tests are about what these do.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from pwd import getpwuid

#: Ignored by every Python, which lets processes that it starts have them.
_PYTHONS = {signal.SIGPIPE, signal.Signals(getattr(signal, "SIGXFSZ", signal.SIGPIPE))}

#: Variables that change what is printed, where something is looked for, or whom it asks. Those of
#: tests themselves (``HEADRACE_TEST_DOCKER``), and where jars and Java are, stay.
_VARIABLES = {
    *(
        "TERM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "PY_COLORS",
    ),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "PAGER", "MANPAGER", "LESS"),
    *("LANGUAGE", "LC_ALL", "TZ"),
    *("KAFKA", "ZOOKEEPER"),
    *("HEADRACE_CONFIG", "HEADRACE_URL", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"),
    *("HEADRACE_CA_FILE", "HEADRACE_CERTIFICATE_FILE", "HEADRACE_TURNAROUND_LEDGER"),
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "STATE_DIRECTORY", "INVOCATION_ID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "HADOOP_CONF_DIR"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME"),
}

#: The same, by how they begin. Libraries read variables of their own.
_PREFIXES = ("PYTHON", "PYSPARK_", "OTEL_", "PG", "AWS_", "GIT_", "UVICORN_", "ARROW_")

#: Variables of Python that say how it is run, rather than what the tests see of it.
_KEPT = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONHASHSEED", "PYTHONFAULTHANDLER"}

#: Files that may be open at once. Servers, Spark and the tests of many channels take some hundred.
_FILES = 4096


def leave_behind() -> None:
    """Put this process, and all it starts, in the state of one started by an empty terminal."""
    _signals()
    for name in list(os.environ):
        if (
            name.lower().endswith("_proxy")
            or name in _VARIABLES
            or (name.startswith(_PREFIXES) and name not in _KEPT)
        ):
            del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    if not Path(os.environ.get("HOME", "")).is_absolute():
        os.environ["HOME"] = getpwuid(os.getuid()).pw_dir
    os.umask(0o022)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _signals() -> None:
    """Ignore and block no signal, but outlive the end of the terminal where ``nohup`` is to do it.

    A signal with a function of Python has its default again in what is started from here.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - _PYTHONS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            continue
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif number == signal.SIGHUP:
            signal.signal(number, _endure)
        else:
            signal.signal(number, signal.SIG_DFL)


def _endure(*_: object) -> None:
    """Do nothing, as an ignored signal does."""

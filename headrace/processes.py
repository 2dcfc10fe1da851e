"""Other processes of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python that runs ``code`` with our modules, and with no others.

    Isolated, it takes neither the folder where it starts nor the environment for places of
    modules: who may write there must not have code run as this process's user.
    """
    path = [str(Path(each).absolute()) for each in sys.path if each]
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path!r}; {code}", *arguments]


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs, whosever it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

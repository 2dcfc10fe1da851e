"""Programs that tests run to their end, for as long as they work."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.wait import FAR_S, SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Seconds between two looks at a program's signs of work.
_LOOK_S = 0.5


def run_program(
    command: Sequence[str],
    *,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    silence: float = SILENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what it printed. Blocks.

    Raises:
        subprocess.TimeoutExpired: it showed no sign of work for ``silence`` seconds, or is not over
            at a deadline far away; it is ended then.
        subprocess.CalledProcessError: it failed, and ``check`` says that it must not.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        watch, deadline = Silence(signs_of_work([process.pid]), silence), Deadline.after(FAR_S)
        try:
            while True:
                try:
                    printed, errors = process.communicate(timeout=_LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    if watch.is_over() or deadline.expired:
                        raise
        finally:
            process.kill()
    done = subprocess.CompletedProcess(command, process.returncode, printed, errors)
    if check:
        done.check_returncode()
    return done

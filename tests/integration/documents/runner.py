"""A folder in which the commands of a page are those of this checkout."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.pages import EXECUTED, ROOT, Block, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Seconds for all that a page has to run: the tutorial starts Spark three times.
WAIT = 500.0

#: Where the pages say that the admin API is; it is elsewhere where that port is taken.
_ADMIN = "127.0.0.1:9465"

_CONFIGURATION = """
instance_id: one
state_dir: state
kafka: {bootstrap_servers: "${KAFKA}"}
zookeeper: {hosts: "${ZOOKEEPER}"}
python_path: [.]
channels:
  flights:
    topics: [flights]
    group: GROUP
    processor: {type: simple, deliver: record}
    sink: functions:keep
"""


class Folder:
    """The folder of one page; ``servers`` are variables that say where servers are.

    ``installed`` has the programs of an environment in which Headrace is, in place of this one.
    """

    def __init__(
        self, path: Path, page: str, servers: Mapping[str, str], installed: Path | None = None
    ) -> None:
        self._path = path
        self._page = page
        (path / "bin").mkdir()
        python = shlex.quote(str(installed / "python") if installed else sys.executable)
        for name, command in {"headrace": f"{python} -m headrace", "python": python}.items():
            (path / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            (path / "bin" / name).chmod(0o755)
        self._environment = {
            **os.environ,
            **servers,
            "PATH": os.pathsep.join([str(path / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": str(path) if installed else f"{ROOT}{os.pathsep}{path}",
            "XDG_STATE_HOME": str(path / "home"),
        }
        self._environment.pop("STATE_DIRECTORY", None)

    def write_files(self, group: str = "documents") -> None:
        """Write a configuration and its code, and the page's own files over these."""
        files = {
            "headrace.yaml": _CONFIGURATION.replace("GROUP", group),
            "functions.py": "def keep(record):\n    pass\n",
            "reducers.py": "def late(df, batch):\n    return df\n",
        }
        files |= {b.detail: b.text for b in self._blocks("file")}
        for name, text in files.items():
            (self._path / name).write_text(text, encoding="utf-8")

    def run(self, *kinds: str) -> None:
        """Run the page's programs and commands of these kinds, in order, as one session."""
        shell = [block for block in self._blocks(*kinds) if block.language != "yaml"]
        self._execute("\n".join(["set -euo pipefail", *map(self._script, shell)]))

    def run_beside_daemon(self) -> None:
        """Run what needs a daemon, while one runs."""
        if self._blocks("daemon"):
            with self._daemon():
                self.run("daemon")

    def _blocks(self, *kinds: str) -> list[Block]:
        mine = [block for block in blocks() if block.page == self._page]
        return [block for block in mine if block.kind in kinds and block.language in EXECUTED]

    def _script(self, block: Block) -> str:
        """Return a block as a part of a shell's script that says where it is."""
        where = f"echo {shlex.quote(f'-- {block}')}"
        if block.language == "python":
            return f"{where}\npython - <<'END OF PROGRAM'\n{block.text}\nEND OF PROGRAM"
        return "\n".join([where, *block.commands])

    def _execute(self, script: str) -> None:
        address = self._path / "state" / "one" / "admin.json"
        if address.exists():
            script = script.replace(_ADMIN, _admin_address(address))
        done = subprocess.run(
            ["bash", "-x"],
            input=script,
            cwd=self._path,
            env=self._environment,
            timeout=WAIT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    @contextmanager
    def _daemon(self) -> Iterator[None]:
        with (self._path / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "headrace", "run", "-c", "headrace.yaml"],
                cwd=self._path,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            health = ["headrace", "health", "--ready", "-c", "headrace.yaml"]
            assert wait_for(lambda: self._succeeds(health), Deadline.after(WAIT)), self._log()
            yield
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(WAIT)
        assert code == 0, self._log()

    def _succeeds(self, command: list[str]) -> bool:
        path = str(self._path / "bin" / command[0])
        done = subprocess.run(
            [path, *command[1:]],
            cwd=self._path,
            env=self._environment,
            capture_output=True,
            check=False,
            timeout=WAIT,
        )
        return done.returncode == 0

    def _log(self) -> str:
        return (self._path / "daemon.log").read_text(encoding="utf-8")


def _admin_address(file: Path) -> str:
    url = str(json.loads(file.read_text(encoding="utf-8"))["url"])
    return url.partition("://")[2].rstrip("/")

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Site


def _health(config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "health", "-c", str(config), *options],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def test_a_health_check_asks_the_process_of_a_configuration(site: Site) -> None:
    """0 while it runs and is ready, whatever is in the file by then; 1 with the reason when not."""
    document = site.document()
    document["admin"] = {"port": 0}
    daemon = site.daemon(document).start()
    config = site.directory / f"{daemon.name}.yaml"
    daemon.wait_event("partition_claimed")
    eventually(lambda: _health(config, "--ready").returncode == 0)
    assert _health(config).stdout == "live\n"
    config.write_text("channels: {}")
    assert _health(config).stdout == "live\n"
    daemon.kill()
    dead = _health(config)
    assert (dead.returncode, dead.stdout) == (1, "")
    assert "does not run any more" in dead.stderr


def test_a_file_without_a_process_is_told_from_one_that_cannot_be_used(site: Site) -> None:
    """1 for a process that was never started, 2 where nothing can lead to one."""
    config = site.directory / "never.yaml"
    config.write_text(json.dumps({**site.document(), "state_dir": str(site.directory / "other")}))
    never = _health(config)
    assert (never.returncode, "start it with" in never.stderr) == (1, True)
    config.write_text("channels: {}")
    assert _health(config).returncode == 2


def test_a_process_that_is_not_ready_says_why(site: Site) -> None:
    """While it still starts it lives, and is not ready."""
    document = site.document()
    document["zookeeper"]["hosts"] = "127.0.0.1:1"
    document["admin"] = {"port": 0}
    daemon = site.daemon(document).start()
    daemon.wait_event("admin_served")
    config = site.directory / f"{daemon.name}.yaml"
    assert _health(config).returncode == 0
    unready = _health(config, "--ready")
    assert unready.returncode == 1
    assert "the process is starting" in unready.stderr

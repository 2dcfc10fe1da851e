"""The files in ``deploy`` agree with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from headrace.channel import commits, fetcher
from headrace.config import Config, SparkConfig, ZooKeeperConfig
from headrace.daemon import READY_TIMEOUT, START_TIMEOUT, ExitCode
from headrace.extensions.spark.settings import FAR
from headrace.signals import ENDING_MARGIN, LAST_WORDS_TIMEOUT
from tests.integration.deploy.images import PACKAGES

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "systemd" / "headrace.service"

#: The longest session that the configuration allows.
LONGEST_SESSION = 60.0

_UNITS = {"s": 1.0, "min": 60.0}


def _settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def _seconds(name: str) -> float:
    found = re.fullmatch(r"(\d+)(s|min)", _settings(name)[0])
    assert found is not None
    return int(found[1]) * _UNITS[found[2]]


def _codes(name: str) -> set[int]:
    return {int(code) for code in _settings(name)[0].split()}


def test_systemd_restarts_after_failures_but_code_2() -> None:
    """Exit code 2 of the main process prevents a restart, whatever else Restart= says of it."""
    assert _settings("Restart") == ["on-failure"]
    assert _codes("RestartPreventExitStatus") == {ExitCode.CONFIG}
    assert _codes("RestartForceExitStatus") == {ExitCode.NOT_STARTED, ExitCode.RESTART}


def test_systemd_waits_longer_than_the_process() -> None:
    """For the start and the slowest turn: systemd kills only what keeps to no limit."""
    spark: float = FAR * SparkConfig.model_fields["start_timeout"].default
    zookeeper: float = ZooKeeperConfig.model_fields["connect_timeout"].default
    assert _seconds("TimeoutStartSec") > spark + START_TIMEOUT + zookeeper + READY_TIMEOUT
    limits = (commits.STALL_TIMEOUT, fetcher.STALL_TIMEOUT, LONGEST_SESSION)
    assert _seconds("WatchdogSec") >= 2 * max(limits)


def test_a_stop_that_hangs_ends_itself_before_it_is_killed() -> None:
    """The grace periods exceed the time by which the process reports where it hangs."""
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text("utf-8"))
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    stop: float = Config.model_fields["shutdown_timeout"].default
    for allowed in (
        _seconds("TimeoutStopSec"),
        _kubernetes("StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        int(compose["services"]["headrace"]["stop_grace_period"].removesuffix("s")),
        *map(int, re.findall(r"--stop-timeout (\d+)", page)),
    ):
        assert allowed > stop + ENDING_MARGIN + LAST_WORDS_TIMEOUT


def test_the_unit_checks_before_it_starts_or_reloads() -> None:
    """A bad file ends both with its own message."""
    check = "/opt/headrace/bin/headrace check -c /etc/headrace/headrace.yaml"
    assert _settings("ExecStartPre") == [check]
    assert _settings("ExecReload") == [check, "/bin/kill -HUP $MAINPID"]
    assert _settings("KillMode") == ["mixed"]
    assert _settings("Type") == ["notify"]


def _packages() -> list[str]:
    text = (ROOT / "requirements" / "debian-test-all.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_ci_installs_what_slow_tests_would_be_skipped_without() -> None:
    """Each Debian package that a reason for skipping names stands in the list, in order."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    pattern = r"apt-get install (?:--no-install-recommends )?([a-z][a-z0-9-]+)"
    named = {name for text in sources for name in re.findall(pattern, text)}
    assert {*named, *PACKAGES} - {"ca-certificates"} <= set(_packages())
    assert _packages() == sorted(set(_packages()))


def test_ci_runs_the_readme_s_commands_first_and_no_test_twice() -> None:
    """The README's two commands run in clones of their own, then the slow tests."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    checks, rest = text.split("\n}\n\nslow_tests() {")
    checks = checks.partition("\nchecks() {")[2]
    assert re.findall(r"^    step (make \w+) \|\| ", checks, re.MULTILINE) == [
        "make check",
        "make docs",
    ]
    found = re.findall(
        r"^(first_in_a_clone make \w+|checks|wait|slow_tests) .*(?:\|\||&)", rest, re.MULTILINE
    )
    assert found == [
        "first_in_a_clone make test",
        "checks",
        "first_in_a_clone make demo",
        "wait",
        "slow_tests",
    ]
    assert re.findall(r"^        make (.*)$", text, re.MULTILINE) == [
        'test-all ONLY_SLOW=1 SLOW_SHARE="$SHARES" SESSION_TIMEOUT="$SLOW_BUDGET" AGAIN=1'
    ]


def test_ci_installs_packages_between_the_readme_s_commands_and_the_slow_tests() -> None:
    """The README's commands have nothing that is installed; what is slow misses nothing."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    installed = text.index("    without_services install_for_tests")
    assert text.index("\nfirst_in_a_clone make demo") < installed < text.index("\nslow_tests ||")


def test_ci_ends_within_its_hour_and_a_half() -> None:
    """Slow tests are ended while there is time left for what comes before them, half an hour."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    budget, limit = (
        int(seconds) for seconds in re.findall(r"^SLOW_\w+=(\d+)$", text, re.MULTILINE)
    )
    assert budget < limit <= 3600


def _kubernetes(kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/headrace.yaml").read_text("utf-8"))
    found: dict[str, Any] = next(each for each in documents if each["kind"] == kind)
    return found


def test_the_configurations_serve_what_prometheus_scrapes() -> None:
    """Both listen for other containers, on the port that the image exposes for metrics."""
    compose = (ROOT / "deploy/compose/config/headrace.yaml").read_text("utf-8")
    for text in (compose, _kubernetes("ConfigMap")["data"]["headrace.yaml"]):
        assert yaml.safe_load(text)["metrics"] == {"host": "0.0.0.0", "port": 9464}
    assert "EXPOSE 9464" in (ROOT / "Dockerfile").read_text("utf-8")

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[3] / "scripts" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, working on an empty checkout; its steps are noted, not done."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("build", "run", "test", "test-all", "bench", "check"):
        (tmp_path / f"{name}.lock").write_text(name, encoding="utf-8")
    for name, value in {"ROOT": tmp_path, "LOCKS": tmp_path, "VENV": tmp_path / ".venv"}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "set-up.json")
    sources = dict.fromkeys(("project", "kafka", "connector"), _file(tmp_path))
    monkeypatch.setattr(module, "SOURCES", sources)
    monkeypatch.setattr(module, "require_java", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("HEADRACE_INSTALL_JRE", raising=False)
    return module


@pytest.fixture
def ran(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the commands that were run, in a few words; making an environment makes its Python."""
    calls: list[str] = []

    def run(*command: str | Path, **_: object) -> None:
        words = " ".join(str(word) for word in command)
        if "-m venv" in words:
            bootstrap.STAMP.unlink(missing_ok=True)
            bootstrap.VENV.mkdir(exist_ok=True)
            bootstrap.PYTHON.touch()
            calls.append("venv")
        elif words.endswith(".lock"):
            calls.append(Path(command[-1]).stem)
        else:
            others = {"--editable": "project", "'kafka'": "kafka", "'connector'": "connector"}
            calls.append(next(step for word, step in others.items() if word in words))

    monkeypatch.setattr(bootstrap, "run", run)
    return calls


def _file(folder: Path) -> Path:
    path = folder / "source"
    path.write_text("source", encoding="utf-8")
    return path


def test_a_first_set_up_does_every_step_and_a_second_none(bootstrap: Any, ran: list[str]) -> None:
    """The steps of a purpose are done once, in order."""
    bootstrap.set_up("test")
    assert ran == ["venv", "build", "run", "test", "bench", "project", "kafka", "connector"]
    ran.clear()
    bootstrap.set_up("test")
    bootstrap.set_up("run")
    assert ran == []


def test_another_purpose_adds_only_what_it_lacks(bootstrap: Any, ran: list[str]) -> None:
    """Packages that are installed for one purpose are not installed again for the next."""
    bootstrap.set_up("run")
    ran.clear()
    bootstrap.set_up("check")
    assert ran == ["test", "bench", "test-all", "check"]


def test_a_changed_lock_makes_the_environment_again(bootstrap: Any, ran: list[str]) -> None:
    """Packages of an older lock are removed."""
    bootstrap.set_up("run")
    ran.clear()
    bootstrap.lock("run").write_text("changed", encoding="utf-8")
    bootstrap.set_up("run")
    assert ran == ["venv", "build", "run", "project", "kafka"]


def test_a_changed_project_file_installs_only_the_project(bootstrap: Any, ran: list[str]) -> None:
    """New entry points need no new environment."""
    bootstrap.set_up("check")
    ran.clear()
    bootstrap.SOURCES["project"].write_text("changed", encoding="utf-8")
    bootstrap.set_up("check")
    assert ran == ["project"]


def test_an_interrupted_installation_begins_again(
    bootstrap: Any, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that was left half filled is made anew."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    bootstrap.set_up("run")
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "pip", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.set_up("test")
    ran.clear()
    bootstrap.set_up("test")
    assert ran == ["venv", "build", "run", "test", "bench", "project", "kafka", "connector"]


def test_a_failed_fetch_of_jars_costs_only_itself(
    bootstrap: Any, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that were done before a failure are not done again."""
    done = bootstrap.do

    def do(step: str) -> None:
        if step == "kafka":
            raise subprocess.CalledProcessError(1, ["java"])
        done(step)

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "do", do)
        with pytest.raises(subprocess.CalledProcessError):
            bootstrap.set_up("run")
    ran.clear()
    bootstrap.set_up("run")
    assert ran == ["kafka"]


@pytest.mark.parametrize("moved", ["python_version", "ROOT"])
def test_an_environment_of_another_place_is_made_again(
    bootstrap: Any, ran: list[str], monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """An environment is not used by a moved checkout or another Python."""
    bootstrap.set_up("run")
    ran.clear()
    other = (lambda: "3.99") if moved == "python_version" else bootstrap.ROOT / "elsewhere"
    monkeypatch.setattr(bootstrap, moved, other)
    monkeypatch.setattr(bootstrap, "do", ran.append)
    bootstrap.set_up("run")
    assert ran == ["venv", "build", "run", "project", "kafka"]


def test_too_old_a_python_is_told_which_to_name(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message for Python 3.9 says what is needed and how to name another."""
    monkeypatch.setattr(sys, "version_info", (3, 9))
    assert bootstrap.main(["run"]) == 1
    assert "3.11 or later is needed; name another one" in capsys.readouterr().err


def _pip_that_says(bootstrap: Any, text: str, code: int) -> None:
    """Make the environment's Python a script that prints a text and ends."""
    bootstrap.VENV.mkdir()
    bootstrap.PYTHON.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    bootstrap.PYTHON.chmod(0o755)


_UNREACHABLE = """Collecting a==1
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'
ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)
ERROR: No matching distribution found for a==1"""


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (_UNREACHABLE, "check the network, or name a mirror of the package index in PIP_INDEX_URL"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM the file", "name another mirror"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
    ],
    ids=["no index", "other file", "full disk"],
)
def test_a_failure_of_pip_is_one_line_with_the_next_step(
    bootstrap: Any, capsys: pytest.CaptureFixture[str], said: str, advice: str
) -> None:
    """For the known reasons the last line, and only that, says what went wrong and what to do."""
    _pip_that_says(bootstrap, said, 1)
    with pytest.raises(bootstrap.SetUpError) as caught:
        bootstrap.pip("--requirement", bootstrap.lock("run"))
    assert advice in str(caught.value)
    assert said.splitlines()[-1].partition("ERROR: ")[2] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "ERROR" not in capsys.readouterr().err


def test_a_failure_of_pip_for_another_reason_is_shown_whole(
    bootstrap: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unforeseen failure is shown with pip's own last lines."""
    _pip_that_says(bootstrap, "building a\nno compiler\nERROR: Failed building wheel for a", 1)
    with pytest.raises(bootstrap.SetUpError, match="Failed building wheel for a"):
        bootstrap.pip("--requirement", bootstrap.lock("run"))
    assert "building a\nno compiler\n" in capsys.readouterr().err


def test_an_installation_says_how_far_it_is(
    bootstrap: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow step is announced at its beginning."""
    lock = bootstrap.lock("run")
    lock.write_text("a==1\nb==2\nc==3 ; sys_platform == 'win32'\n", encoding="utf-8")
    said = """Ignoring c: markers 'sys_platform == "win32"' don't match your environment
Collecting a==1 (from -r run.lock (line 1))
  Downloading a-1.whl (5.3 kB)
Collecting b==2 (from -r run.lock (line 2))
  Downloading b-2.tar.gz (434.1 MB)
Building wheels for collected packages: b
Installing collected packages: a, b
Successfully installed a-1 b-2"""
    _pip_that_says(bootstrap, said, 0)
    bootstrap.pip("--requirement", lock)
    large = "  package 2 of 2: b-2.tar.gz (434.1 MB)"
    assert _said(capsys) == [large, "  building b", "  unpacking 2 in all"]


def test_an_installation_is_not_silent_while_pip_is(
    bootstrap: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present package is repeated, and a silent index is reported."""
    monkeypatch.setattr(bootstrap, "SHOWN_EVERY", 0.01)
    output = bootstrap.PipOutput(1)
    output.hear(
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'"
    )
    assert _said(capsys) == ["  the package index does not answer; pip asks again"]
    output.hear("Collecting a==1")
    output.hear("  Downloading a-1.whl (5.3 kB)")
    said: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            twice.set()

    monkeypatch.setattr(bootstrap, "say", say)
    with output.shown():
        assert twice.wait(60)
    assert {text.partition(" (0")[0] for text in said} == {"  package 1 of 1: a-1.whl (5.3 kB)"}


def _said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("set-up: ") for line in capsys.readouterr().err.splitlines()]


def test_jars_that_cannot_be_had_end_the_set_up_without_a_second_message(
    bootstrap: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fetch has given the reason in one line; no message or traceback is added."""
    _pip_that_says(bootstrap, "", 1)
    with pytest.raises(SystemExit) as caught:
        bootstrap.fetch_jars("kafka")
    assert caught.value.code == 1
    assert capsys.readouterr().err == ""


#: Loads the script without the package and whatever else is installed.
_LOADED = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bootstrap", {str(_SCRIPT)!r})
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
java = bootstrap.load(bootstrap.ROOT / "headrace" / "devstack" / "java.py")
"""


def _bare_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code with the standard library alone, as the script runs on a fresh machine."""
    command = [sys.executable, "-I", "-S", "-c", _LOADED + code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_java_is_looked_for_with_the_standard_library_alone() -> None:
    """The script loads that module of the package before any installation."""
    shown = _bare_python(
        "java.find_java({})\n"
        "print(java.parse_version('openjdk version \"21\"'), 'headrace' in sys.modules)"
    )
    assert (shown.stdout, shown.stderr) == ("21 False\n", "")


def test_missing_java_is_one_line_with_the_next_step(tmp_path: Path) -> None:
    """Before anything is made or fetched, and without root nothing is installed."""
    shown = _bare_python(
        "java._IN_ROOT = ()\n"
        "bootstrap.load = lambda path: java\n"
        "bootstrap.os.geteuid = lambda: 1000\n"
        f"bootstrap.VENV = bootstrap.Path({str(tmp_path)!r}, 'venv')\n"
        "bootstrap.STAMP = bootstrap.VENV / 'set-up.json'\n"
        "sys.exit(bootstrap.main(['run']))",
        PATH=str(tmp_path),
        HOME=str(tmp_path),
    )
    assert shown.returncode == 1
    assert shown.stderr == (
        "set-up: no Java 17 or later was found; install one (Debian, Ubuntu: apt-get install "
        "openjdk-17-jre-headless or openjdk-21-jre-headless) or set JAVA_HOME\n"
    )
    assert list(tmp_path.iterdir()) == []


class FakeApt:
    """An apt-get that notes its arguments and has only some packages."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str) -> bool:
        """Succeed for a package there is."""
        self.calls.append(arguments)
        return arguments[0] == "update" or arguments[-1] in self.packages


@pytest.fixture
def apt(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> FakeApt:
    """A Debian with root and no Java 17, but 21 to be had; nothing real is installed."""
    fake = FakeApt("second")
    monkeypatch.setattr(bootstrap, "apt", fake)
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: "/usr/bin/apt-get")
    return fake


def test_with_ci_set_the_first_package_there_is_gets_installed(
    bootstrap: Any, apt: FakeApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that a release lacks are passed over, and installed packages are left as they are."""
    monkeypatch.setenv("CI", "true")
    bootstrap.install(["first", "second", "third"], "no Java")
    assert [call[-1] for call in apt.calls] == ["update", "first", "second"]
    assert all({"--no-upgrade", "--no-remove"} <= set(call) for call in apt.calls[1:])


def test_without_consent_nothing_is_installed(
    bootstrap: Any, apt: FakeApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal and without a variable that agrees, the set-up says what to install."""
    monkeypatch.setattr(bootstrap, "asked", lambda *_: False)
    with pytest.raises(bootstrap.SetUpError, match="no Java"):
        bootstrap.install(["second"], "no Java")
    assert apt.calls == []


def test_without_root_nothing_is_installed(
    bootstrap: Any, apt: FakeApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may not install packages is told what to install, even under CI."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    with pytest.raises(bootstrap.SetUpError, match="no Java"):
        bootstrap.install(["second"], "no Java")
    assert apt.calls == []


@pytest.mark.parametrize(("answer", "agreed"), [("y", True), ("YES ", True), ("", False)])
def test_on_a_terminal_the_user_is_asked(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, answer: str, agreed: bool
) -> None:
    """Only a clear yes agrees."""
    monkeypatch.setattr(bootstrap.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert bootstrap.asked("a-package", "no Java") is agreed

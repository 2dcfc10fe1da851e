from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headrace.core.clock import Deadline
from headrace.devstack import jars
from headrace.devstack.errors import LocalStackError

_COORDINATE = jars.Coordinate("org.apache.kafka", "kafka_2.13", "4.3.0")


def _say(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in Ivy's place."""
    monkeypatch.setattr(jars, "java_command", lambda *_, **__: ["sh", "-c", script])


def test_the_artifact_goes_to_a_folder_with_its_own_cache() -> None:
    """Ivy keeps to the folder it is given, for its cache and for the jars."""
    arguments = jars.ivy_arguments(_COORDINATE, Path("/t"), {})
    assert arguments[:2] == ["-cache", "/t/ivy"]
    assert arguments[2:6] == ["-dependency", "org.apache.kafka", "kafka_2.13", "4.3.0"]
    assert arguments[-1].startswith("/t/jars/")


def test_an_archive_is_named_in_a_file(tmp_path: Path) -> None:
    """Ivy's command line has jars only, so its file has the classifier and how the name ends."""
    archive = jars.Coordinate("io.apicurio", "registry", "3.3.3", "all", "tar.gz")
    arguments = jars.ivy_arguments(archive, tmp_path / "new", {}, needs=False)
    file = arguments[arguments.index("-ivy") + 1]
    assert "-dependency" not in arguments
    (wanted,) = ET.parse(file).iter("dependency")
    assert (wanted.get("org"), wanted.get("name"), wanted.get("rev")) == (
        "io.apicurio",
        "registry",
        "3.3.3",
    )
    (named,) = wanted
    assert (named.get("ext"), named.get("{http://ant.apache.org/ivy/maven}classifier")) == (
        "tar.gz",
        "all",
    )


def test_a_settings_file_can_name_a_mirror() -> None:
    """The file named in the environment is handed to Ivy."""
    arguments = jars.ivy_arguments(_COORDINATE, Path("/t"), {"HEADRACE_IVY_SETTINGS": "/s.xml"})
    assert arguments[:2] == ["-settings", "/s.xml"]


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every fifth module and every fifth jar is told, and nothing else that Ivy says."""
    _say(
        monkeypatch,
        "for i in 1 2 3 4 5 6 7 8 9 10 11; do printf '\\tfound m%s\\n' $i; done; echo talk;"
        "for i in 1 2 3 4 5 6; do echo downloading; printf '\\t[SUCCESSFUL ] j%s\\n' $i; done",
    )
    told: list[str] = []
    jars.fetch(_COORDINATE, tmp_path, report=told.append, deadline=Deadline.after(20))
    assert told == ["found 5", "found 10", "fetched 5"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            ":: a: not found\n\tServer access error at url u (java.net.X: Connection refused)\n",
            "Connection refused",
        ),
        ("\t\t:: g#a;1: not found\n\t\t::::::", "g#a;1: not found"),
        ("something else\n", "something else"),
        ("", "Ivy said nothing"),
    ],
)
def test_a_failure_says_in_one_line_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, reason: str
) -> None:
    """When Ivy fails, the error has the reason and names the way to use a mirror."""
    (tmp_path / "said").write_text(said, encoding="utf-8")
    _say(monkeypatch, f"cat {tmp_path / 'said'}; exit 1")
    with pytest.raises(LocalStackError) as caught:
        jars.fetch(_COORDINATE, tmp_path, report=print, deadline=Deadline.after(20))
    assert f": {reason}; " in str(caught.value)
    assert "HEADRACE_IVY_SETTINGS" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hanging_ivy_is_ended_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An Ivy that never ends is killed, and that is a failure like any other."""
    _say(monkeypatch, "exec sleep 100")
    with pytest.raises(LocalStackError, match="could not be fetched"):
        jars.fetch(_COORDINATE, tmp_path, report=print, deadline=Deadline.after(0.1))

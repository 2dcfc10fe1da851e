from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.devstack import connector

if TYPE_CHECKING:
    from pathlib import Path

_CONTENTS = {"a.jar": b"first", "b.jar": b"second"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small jars in place of the connector's, fetched already."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, content in _CONTENTS.items():
        (folder / name).write_bytes(content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in _CONTENTS.items()}
    monkeypatch.setattr(connector, "pinned_sums", lambda _: sums)
    monkeypatch.setattr(connector, "cached", lambda _: sorted(folder.iterdir()))
    return folder


@pytest.mark.usefixtures("cache")
def test_the_jars_are_put_into_the_folder(tmp_path: Path) -> None:
    """The folder is made, has the jars and nothing else, and the output says how to use it."""
    folder = tmp_path / "opt" / "jars"
    result = CliRunner().invoke(app, ["connector", "fetch", str(folder)])
    assert result.exit_code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == _CONTENTS
    assert f"spark: {{connector: {folder}}}" in result.output


def test_a_folder_that_has_them_is_left_alone(cache: Path, tmp_path: Path) -> None:
    """With whole jars in the folder nothing is fetched; a damaged one is replaced."""
    folder = tmp_path / "jars"
    connector.fetch_into(folder)
    for jar in cache.iterdir():
        jar.unlink()
    connector.fetch_into(folder)
    (cache / "a.jar").write_bytes(b"first")
    (folder / "a.jar").write_bytes(b"damaged")
    connector.fetch_into(folder)
    assert (folder / "a.jar").read_bytes() == b"first"


@pytest.mark.usefixtures("cache")
def test_a_folder_with_other_jars_is_refused(tmp_path: Path) -> None:
    """A jar that Spark would load too is named, no file is added, and the exit code is 1."""
    (tmp_path / "old.jar").write_bytes(b"")
    result = CliRunner().invoke(app, ["connector", "fetch", str(tmp_path)])
    assert result.exit_code == 1
    assert "old.jar" in result.output
    assert not (tmp_path / "a.jar").exists()

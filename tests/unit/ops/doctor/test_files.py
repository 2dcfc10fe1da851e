from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from headrace.core.findings import Level
from headrace.ops.doctor.files import check_secrets, check_state_dir
from tests.unit.ops.doctor.support import bad, config, only

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a configuration file that no other user may write."""
    path = tmp_path / "headrace.yaml"
    path.write_text("channels: {}\n")
    path.chmod(0o644)
    return path


def test_a_folder_that_is_to_be_made_is_fine(tmp_path: Path) -> None:
    """The check does not create the folder."""
    (found,) = check_state_dir(config(tmp_path))
    assert found.level is Level.OK
    assert not (tmp_path / "state").exists()


def test_a_folder_that_others_may_write_is_a_warning(tmp_path: Path) -> None:
    """A user who writes the session's file can take the session over."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o775)
    assert "chmod go-w" in only(check_state_dir(config(tmp_path))).advice
    (tmp_path / "state").chmod(0o700)
    assert not bad(check_state_dir(config(tmp_path)))


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon could not start there."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert only(check_state_dir(config(tmp_path))).level is Level.ERROR


def test_a_state_dir_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """A file in the folder's place is named."""
    (tmp_path / "state").write_text("")
    assert "no folder" in only(check_state_dir(config(tmp_path))).seen


def test_secrets_are_for_their_owner(tmp_path: Path, file: Path) -> None:
    """A file of a reference that everybody may read is a warning, the same for a key."""
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    found = only(check_secrets(config(tmp_path), file, [file, secret]))
    assert found.level is Level.WARNING
    assert "chmod o-r" in found.advice
    assert "hunter2" not in found.seen
    secret.chmod(0o600)
    assert not bad(check_secrets(config(tmp_path), file, [file, secret]))


def test_a_key_that_is_missing_is_an_error(tmp_path: Path, file: Path) -> None:
    """Each file of a tls section has to be there."""
    tls = {"key_file": str(tmp_path / "key.pem"), "certificate_file": str(file)}
    found = only(check_secrets(config(tmp_path, kafka={"tls": tls}), file, [file]))
    assert found.level is Level.ERROR
    assert "key.pem does not exist" in found.seen


def test_a_configuration_that_others_may_write_is_a_warning(tmp_path: Path, file: Path) -> None:
    """It names the code that runs."""
    file.chmod(0o664)
    assert only(check_secrets(config(tmp_path), file, [file])).check == "configuration file"

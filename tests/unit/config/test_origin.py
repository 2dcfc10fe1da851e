from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config import Config
from headrace.config.errors import Origin
from tests.unit.config.support import CHANNELS, loaded


def _origin(environ: dict[str, str], file: str = "/etc/headrace.yaml", host: str = "h") -> Origin:
    return Origin(Path(file), environ, host)


def test_an_instance_is_named_after_host_and_file() -> None:
    """The name is the host's and eight digits, the same each time and another for another file."""
    one = _origin({}, "/etc/a.yaml", "host.example").instance_id
    assert re.fullmatch(r"host\.example-[0-9a-f]{8}", one)
    assert one == _origin({}, "/etc/a.yaml", "host.example").instance_id
    assert one != _origin({}, "/etc/b.yaml", "host.example").instance_id


@pytest.mark.parametrize(("host", "prefix"), [("my host/x", "my-host-x-"), ("", "localhost-")])
def test_a_strange_host_makes_a_legal_name(host: str, prefix: str) -> None:
    """Characters that a name cannot have are replaced."""
    assert _origin({}, host=host).instance_id.startswith(prefix)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/headrace", "XDG_STATE_HOME": "/x"}, "/var/lib/headrace"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/me"}, "/x/headrace"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.local/state/headrace"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/headrace"),
        ({"STATE_DIRECTORY": "", "HOME": "/home/me"}, "/home/me/.local/state/headrace"),
    ],
)
def test_state_is_kept_where_the_system_provides(environ: dict[str, str], folder: str) -> None:
    """The folder of systemd comes first, then that of the XDG convention, then its default."""
    assert _origin(environ).state_dir == Path(folder)


def test_derived_values_are_filled_in(tmp_path: Path) -> None:
    """A loaded configuration has its instance's name and its folder for state."""
    config = loaded(tmp_path, CHANNELS)
    assert config.instance_id == Origin.of(tmp_path / "headrace.yaml").instance_id
    assert config.state_dir == Path("/home/me/.local/state/headrace")


def test_null_means_derived(tmp_path: Path) -> None:
    """A null in the file is the same as leaving the field out."""
    text = f"instance_id: null\nstate_dir: null\n{CHANNELS}"
    assert loaded(tmp_path, text) == loaded(tmp_path, CHANNELS)


def test_given_values_are_kept(tmp_path: Path) -> None:
    """A name and a folder in the file take the place of the derived ones."""
    config = loaded(tmp_path, f"instance_id: reader-1\nstate_dir: /var/lib/x\n{CHANNELS}")
    assert (config.instance_id, config.state_dir) == ("reader-1", Path("/var/lib/x"))


def test_the_path_of_the_file_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name does not depend on the folder a process is started in."""
    monkeypatch.chdir(tmp_path)
    assert Origin.of(Path("sub/../a.yaml")) == Origin.of(tmp_path / "a.yaml")


def test_a_configuration_built_in_code_starts_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file, relative paths start from the current folder."""
    monkeypatch.chdir(tmp_path)
    channel = {"topics": ["a"], "group": "g", "processor": {"type": "simple"}, "sink": "a:b"}
    config = Config.model_validate({"state_dir": "state", "channels": {"a": channel}})
    assert config.state_dir == tmp_path / "state"

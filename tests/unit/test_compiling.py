"""The parts in C are compiled where they can be; where not, the package is made without them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

pytest.importorskip("hatchling")


@pytest.fixture
def build() -> ModuleType:
    """The build's hook."""
    path = Path(__file__).parents[2] / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_compiler_may_have_options(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CC is a command as make takes it, of one word or more."""
    monkeypatch.setenv("CC", f"{sys.executable} -c pass")
    assert build.compile_libraries(tmp_path) is None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "./broken"])
def test_a_compiler_that_does_not_start_is_no_failure(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """The package is made without the part in C, and the reason is printed."""
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", compiler)
    assert build.compile_libraries(tmp_path)


def _hook(build: ModuleType, folder: Path, target: str = "wheel") -> Any:
    warned: list[str] = []
    app = SimpleNamespace(display_warning=warned.append, warned=warned)
    for library in build.LIBRARIES:
        (folder / library.parent).mkdir(parents=True)
    return build.CompileHook(str(folder), {}, None, None, str(folder), target, app)


def _built(hook: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", data)
    return data


def test_a_wheel_bears_the_platforms_that_it_was_compiled_for(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named where CC compiles for others than this machine."""
    monkeypatch.setenv("CC", f"{sys.executable} -c pass")
    monkeypatch.setenv(build.PLATFORM_VARIABLE, "macosx_11_0_arm64")
    data = _built(_hook(build, tmp_path))
    assert data["tag"] == "py3-none-macosx_11_0_arm64"
    assert data["artifacts"] == [f"/{each.as_posix()}" for each in build.LIBRARIES]


def test_a_wheel_for_any_platform_has_nothing_compiled(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler is asked, and none is missed."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv(build.PLATFORM_VARIABLE, "any")
    hook = _hook(build, tmp_path)
    assert _built(hook) == {"artifacts": []}
    assert hook.app.warned == []


def test_a_wheel_that_is_to_have_the_part_in_c_is_not_made_without(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing compiler fails the build; where no platform is named it is a warning."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv(build.PLATFORM_VARIABLE, "manylinux2014_x86_64")
    hook = _hook(build, tmp_path)
    with pytest.raises(RuntimeError, match="no wheel for manylinux2014_x86_64: there is no C"):
        _built(hook)
    monkeypatch.delenv(build.PLATFORM_VARIABLE)
    assert _built(hook) == {"artifacts": []}
    assert "without columns from Kafka" in hook.app.warned[0]

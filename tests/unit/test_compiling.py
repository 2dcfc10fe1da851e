"""The part in C is compiled where it can be, and where it cannot the package is made without it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    assert build.compile_library(tmp_path) is None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "./broken"])
def test_a_compiler_that_does_not_start_is_no_failure(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """The package is made without the part in C, and somebody is told why."""
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", compiler)
    assert build.compile_library(tmp_path)

"""Published packages match their names."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

_ROOT = Path(__file__).parents[3]

_ELF = {machine: b"\x7fELF" + bytes(14) + struct.pack("<H", machine) for machine in (0x3E, 0xB7)}
_MACH_O = {machine: struct.pack("<II", 0xFEEDFACF, machine) for machine in (0x1000007, 0x100000C)}

_OLD_X86 = "manylinux2014_x86_64.manylinux_2_17_x86_64"


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script."""
    monkeypatch.syspath_prepend(str(_ROOT / "scripts"))
    import dist  # noqa: PLC0415 - where it is only now known

    return dist


def _wrong(dist: ModuleType, folder: Path, platform: str, *libraries: bytes) -> list[str]:
    wheel = folder / f"headrace-1-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("headrace/__init__.py", "")
        for number, library in enumerate(libraries):
            archive.writestr(f"headrace/{number}.so", library)
    return list(dist.wrong(wheel))


@pytest.mark.parametrize(
    ("platform", "libraries", "told"),
    [
        ("any", [], None),
        ("any", [_ELF[0x3E]], "has 1 compiled parts"),
        (_OLD_X86, [], "has 0 compiled parts"),
        (_OLD_X86, [_ELF[0x3E]], "has 1 compiled parts"),
        (_OLD_X86, [_ELF[0xB7]] * 2, "manylinux, aarch64"),
        ("macosx_11_0_arm64", [_MACH_O[0x100000C]] * 2, None),
        ("macosx_11_0_arm64", [_MACH_O[0x100000C], _MACH_O[0x1000007]], "macosx, x86_64"),
        ("macosx_10_15_x86_64", [_MACH_O[0x1000007]] * 2, None),
        ("macosx_10_15_x86_64", [_ELF[0x3E]] * 2, "manylinux, x86_64"),
        ("macosx_10_15_x86_64", [b"#!/bin/sh"] * 2, "nothing that is known"),
    ],
)
def test_the_compiled_part_is_of_the_platform_in_the_name(
    dist: ModuleType, tmp_path: Path, platform: str, libraries: list[bytes], told: str | None
) -> None:
    """The first bytes tell the platform; a pure wheel has no compiled parts, others have two."""
    found = _wrong(dist, tmp_path, platform, *libraries)
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


@pytest.mark.parametrize(
    ("said", "is_fine"),
    [
        ("manylinux_2_17_x86_64", True),
        ("manylinux_2_5_x86_64", True),
        ("manylinux_2_34_x86_64", False),
        ("linux_x86_64", False),
        ("manylinux_2_17_aarch64", False),
    ],
)
def test_a_wheel_for_newer_systems_than_its_name_says_is_refused(
    dist: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_fine: bool
) -> None:
    """The finding of auditwheel counts, whose exit code is 0 in any case."""
    shown = f'x.whl\nis consistent with the following platform\ntag: "{said}".\n'
    monkeypatch.setattr(dist, "python", lambda *_: shown)
    found = _wrong(dist, tmp_path, _OLD_X86, _ELF[0x3E], _ELF[0x3E])
    assert bool(found) is not is_fine
    assert is_fine or said in found[0]


def test_the_page_on_the_index_has_no_relative_link() -> None:
    """The README's lead into the repository there, to files that it has."""
    command = [sys.executable, "-m", "hatchling", "metadata", "readme"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", done.stdout.replace("\\n", "\n"))
    assert len(links) == len(re.findall(r"\]\(", readme)) > 15
    assert [each for each in links if not each.startswith(("https://", "#"))] == []
    files = "https://github.com/headrace/headrace/blob/main/"
    inside = [each.removeprefix(files) for each in links if each.startswith(files)]
    assert [each for each in inside if not (_ROOT / each.partition("#")[0]).exists()] == []


def test_no_distribution_has_examples_or_demos() -> None:
    """They are programs of a checkout: with them a wheel would bring servers' data and daemons."""
    targets = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert targets["targets"]["wheel"]["packages"] == ["headrace"]
    assert "/examples" not in targets["targets"]["sdist"]["include"]
    assert [str(path) for path in (_ROOT / "headrace").rglob("*demo*.py")] == []
    importing = [
        str(path)
        for path in (_ROOT / "headrace").rglob("*.py")
        if re.search(r"^\s*(from|import) examples\b", path.read_text(), re.MULTILINE)
    ]
    assert importing == []

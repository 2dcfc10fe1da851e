from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from headrace.core.errors import StartError
from headrace.core.extras import Extra, required

_PYPROJECT = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")


def _brought(extra: str) -> set[str]:
    """Return the libraries that an extra brings, and those of the extras that it has."""
    (listed,) = re.findall(rf"^{extra} = (\[.*\])$", _PYPROJECT, re.MULTILINE)
    others = ",".join(re.findall(r'"headrace\[([\w,]+)\]"', listed))
    named = set(re.findall(r'"([\w-]+)', listed))
    return named.union(*map(_brought, filter(None, others.split(","))))


@pytest.mark.parametrize("extra", Extra)
def test_an_extra_brings_its_library(extra: Extra) -> None:
    """pyproject.toml has it by this name, with each library that is looked for."""
    assert set(extra.libraries.values()) <= _brought(extra.extra)


def test_all_has_every_extra() -> None:
    """The extra ``all`` of ``pip install 'headrace[all]'`` has every other one."""
    _, _, section = _PYPROJECT.partition("[project.optional-dependencies]")
    names = re.findall(r"^(\w+) = \[", section.partition("\n[")[0], re.MULTILINE)
    (brought,) = re.findall(r'^all = \["headrace\[(.*)\]"\]$', _PYPROJECT, re.MULTILINE)
    assert {*brought.split(","), "all"} == set(names)


@pytest.mark.parametrize("extra", Extra)
def test_an_installed_library_is_seen(extra: Extra, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is found by its module; the tests have all of them."""
    assert extra.installed
    for module, library in extra.libraries.items():
        with monkeypatch.context() as context:
            context.setitem(sys.modules, module, None)
            assert extra.missing == [library]
            assert f"takes {library}, which is not installed" in extra.advice


def test_a_module_whose_package_is_missing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of OpenTelemetry that is asked for is in a package that others bring as well."""
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert not Extra.OTEL.installed


def test_the_error_names_the_library_and_its_command() -> None:
    """The sentence ends with what Python said."""
    sentence = (
        r"the sink of table t takes deltalake, which is not installed; "
        r"pip install 'headrace\[delta\]' \(No module named 'deltalake'\)"
    )
    with pytest.raises(StartError, match=sentence), required(Extra.DELTA, "the sink of table t"):
        raise ModuleNotFoundError("No module named 'deltalake'")


def test_other_errors_pass() -> None:
    """An imported module may have errors of its own."""
    with pytest.raises(ZeroDivisionError), required(Extra.SQL, "a sink"):
        raise ZeroDivisionError

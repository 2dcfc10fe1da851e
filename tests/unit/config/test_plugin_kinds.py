"""Kinds of sinks and processors that packages offer, by the type of a section."""

from __future__ import annotations

import json
import py_compile
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import SinkConfig, load
from headrace.config.models.sink import SINKS
from headrace.core.errors import ConfigError
from tests.unit.config.test_plugins import offer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.config import ChannelConfig

_SINK = """
from typing import Literal

from headrace.kinds import Count, LocalPath, Restarts, SecretValue, SinkConfig


class Lake(SinkConfig):
    \"\"\"A lake.\"\"\"

    type: Restarts[Literal["TYPE"]] = "TYPE"
    \"\"\"This sink.\"\"\"

    path: Restarts[LocalPath]
    \"\"\"The folder.\"\"\"

    depth: Restarts[Count] = 3
    \"\"\"How deep it is.\"\"\"

    password: Restarts[SecretValue | None] = None
    \"\"\"The password.\"\"\"

    @property
    def place(self):
        return self.path


def factory():
    return None
"""

_PROCESSOR = """
from typing import Literal

from headrace.kinds import ProcessorConfig, Restarts


class Router(ProcessorConfig):
    \"\"\"A router.\"\"\"

    type: Restarts[Literal["TYPE"]] = "TYPE"
    \"\"\"This processor.\"\"\"

    def build(self, site):
        return "no processor"
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A type that no other test has, whose package is in a folder on the import path."""
    found = f"lake{uuid4().hex[:8]}"
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield found
    sys.modules.pop(f"{found}_code", None)


def install(folder: Path, name: str, code: str, *, attribute: str = "Lake", tag: str = "") -> None:
    """Install a package that offers a sink of this name."""
    offer(folder / "site", f"{name}-package", f"{name} = {name}_code:{attribute}")
    (folder / "site" / f"{name}_code.py").write_text(code.replace("TYPE", tag or name))


def channel(
    folder: Path, sink: str, processor: str = "{type: arrow, reducer: 'a:b'}"
) -> ChannelConfig:
    """Load a configuration of one channel."""
    file = folder / "headrace.yaml"
    file.write_text(
        "kafka: {bootstrap_servers: b}\nchannels:\n  c:\n    group: g\n    topics: [t]\n"
        f"    processor: {processor}\n    sink: {sink}\n"
    )
    return load(file).channels["c"]


def refusal(folder: Path, sink: str) -> str:
    """Return the one problem of a sink."""
    with pytest.raises(ConfigError) as caught:
        channel(folder, sink)
    (problem,) = caught.value.problems
    return problem


def test_a_section_of_a_package_has_its_fields_checked(name: str, tmp_path: Path) -> None:
    """Values, unknown keys and secrets are as in a section of Headrace."""
    install(tmp_path, name, _SINK)
    sink = channel(tmp_path, f"{{type: {name}, path: x, password: p}}").sink
    assert isinstance(sink, SinkConfig)
    assert (sink.type, sink.place) == (name, tmp_path / "x")
    assert "'p'" not in repr(sink)
    told = refusal(tmp_path, f"{{type: {name}, path: x, depth: 0}}")
    assert told.startswith("channels.c.sink.depth (line 7): 0 is not a whole number from 1")
    told = refusal(tmp_path, f"{{type: {name}, path: x, dept: 1}}")
    assert "sink.dept (line 7): is not a known key; did you mean depth?" in told
    assert "sink.path (line 7): is missing; give a path" in refusal(tmp_path, f"{{type: {name}}}")


def test_a_section_of_a_package_is_one_of_several_outputs(name: str, tmp_path: Path) -> None:
    """Two of them need places of their own."""
    install(tmp_path, name, _SINK)
    outputs = f"{{a: {{type: {name}, path: x}}, b: {{type: {name}, path: PATH}}}}"
    sink = f"{{type: several, outputs: {outputs}}}"
    assert channel(tmp_path, sink.replace("PATH", "y")).sink is not None
    told = refusal(tmp_path, sink.replace("PATH", "x"))
    assert "sink.outputs.b (line 7): goes where a goes" in told


def test_a_section_of_a_package_is_in_the_schema(name: str, tmp_path: Path) -> None:
    """With the text below each field, whether or not a configuration names the type."""
    install(tmp_path, name, _SINK)
    schema = json.loads(CliRunner().invoke(app, ["schema"]).output)
    assert schema["$defs"]["Lake"]["properties"]["depth"]["description"] == "How deep it is."


def test_a_section_without_its_source_is_in_the_schema(name: str, tmp_path: Path) -> None:
    """A package may install compiled files alone: then fields have no text."""
    install(tmp_path, name, _SINK)
    source = tmp_path / "site" / f"{name}_code.py"
    py_compile.compile(str(source), str(source.with_suffix(".pyc")), doraise=True)
    source.unlink()
    schema = json.loads(CliRunner().invoke(app, ["schema"]).output)
    found = [each for each in schema["$defs"].values() if _has_type(each, name)]
    assert [sorted(each["properties"]) for each in found] == [["depth", "password", "path", "type"]]


def _has_type(section: dict[str, Any], name: str) -> bool:
    return bool(section.get("properties", {}).get("type", {}).get("const") == name)


def test_an_unknown_type_names_those_of_packages_as_well(name: str, tmp_path: Path) -> None:
    """The sentence names kinds of packages without importing them."""
    install(tmp_path, name, _SINK)
    told = refusal(tmp_path, f"{{type: {name}x}}")
    assert told.startswith(
        f"channels.c.sink.type (line 7): '{name}x' is not delta, sql, duckdb, kafka,"
    )
    assert told.endswith(f"or {name}; did you mean {name}?")
    assert f"{name}_code" not in sys.modules


@pytest.mark.parametrize(
    ("code", "options", "told"),
    [
        (
            _SINK,
            {"attribute": "factory"},
            "is no SinkConfig, but a factory; write type: custom",
        ),
        (_SINK, {"attribute": "Missing"}, "cannot be used: importing"),
        ("import nothing_of_this_name", {}, "ModuleNotFoundError: No module named"),
        (_SINK, {"tag": "other"}, "whose type is 'other'; the entry point and the default"),
        (_SINK.replace("LocalPath]", "Unknown]"), {}, "NameError: name 'Unknown'"),
        (
            _SINK.replace("depth: Restarts[Count]", "depth: Count"),
            {},
            "does not say what a reload does with a new value of depth; annotate the field with",
        ),
    ],
)
def test_a_package_whose_section_cannot_be_used_is_named(
    name: str, tmp_path: Path, code: str, options: dict[str, str], told: str
) -> None:
    """The problem is at the type, with what is wrong and whose it is."""
    install(tmp_path, name, code, **options)
    problem = refusal(tmp_path, f"{{type: {name}, path: x}}")
    assert problem.startswith(f"channels.c.sink.type (line 7): '{name}' of package {name}-package")
    assert told in problem


def test_a_type_that_two_packages_offer_is_refused(name: str, tmp_path: Path) -> None:
    """Which of them is meant cannot be said in the file."""
    install(tmp_path, name, _SINK)
    offer(tmp_path / "site", "other-package", f"{name} = other:Lake")
    told = refusal(tmp_path, f"{{type: {name}, path: x}}")
    assert f"is offered by {name}-package and other-package; uninstall one" in told


def test_a_built_in_type_is_never_that_of_a_package(tmp_path: Path, name: str) -> None:
    """A package cannot take the place of a sink of Headrace."""
    offer(tmp_path / "site", f"{name}-package", "noop = elsewhere:Lake")
    sink = channel(tmp_path, "noop").sink
    assert type(sink) is SINKS["noop"]


def test_a_processor_of_a_package_is_read_and_held_to_its_contract(
    name: str, tmp_path: Path
) -> None:
    """It needs no sink; what it builds has to be a processor."""
    offer(tmp_path / "site", f"{name}-package", processor=f"{name}_code:Router")
    entry = tmp_path / "site" / f"{name}-package-1.2.dist-info" / "entry_points.txt"
    entry.write_text(entry.read_text().replace("router =", f"{name} ="))
    (tmp_path / "site" / f"{name}_code.py").write_text(_PROCESSOR.replace("TYPE", name))
    found = channel(tmp_path, "null", f"{{type: {name}}}")
    assert (found.processor.type, found.max_in_flight, found.rejects.failing) == (name, 1, "fail")
    from headrace.core.errors import ImportPathError  # noqa: PLC0415 - for this test only
    from headrace.processors.factory import build_processor  # noqa: PLC0415

    with pytest.raises(ImportPathError, match=f"type {name} returned a str; it must return"):
        build_processor(found, lambda: None, "member")

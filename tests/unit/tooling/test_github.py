"""Workflows, forms and addresses: what the repository's host reads agrees with what is in it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.go_tools import go_tool

_ROOT = Path(__file__).parents[3]
_GITHUB = _ROOT / ".github"
_WORKFLOWS = sorted((_GITHUB / "workflows").glob("*.yml"))
_CONTACTS = _GITHUB / "ISSUE_TEMPLATE" / "config.yml"
_FORMS = sorted({*_CONTACTS.parent.glob("*.yml")} - {_CONTACTS})


def _loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{file.stem}.{name}", job)
        for file in _WORKFLOWS
        for name, job in _loaded(file)["jobs"].items()
    ]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    return project


def test_a_weakness_is_reported_by_the_repository_s_own_form() -> None:
    """The address in SECURITY.md is of the project that the package names."""
    address = f"{_project()['urls']['Homepage']}/security/advisories/new"
    assert f"<{address}>" in (_ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_workflows_run_targets_that_there_are() -> None:
    """Tests, lines and distributions are made by make, and by nothing that only a workflow has."""
    made = {
        name: re.findall(r"\bmake ([a-z-]+)", step["run"])
        for name, job in _jobs()
        for step in job["steps"]
        if "make " in step.get("run", "")
    }
    assert set(made) == {"test.test", "test.check", "lines.lines", "lines.slow", "release.dist"}
    targets = re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {target for found in made.values() for target in found} <= set(targets)


def test_the_slow_tests_have_the_checkers_that_are_built() -> None:
    """Else all tests of the chart are skipped, and no run says that it is wrong."""
    steps = [step.get("run", "") for step in dict(_jobs())["lines.slow"]["steps"]]
    built, tested = steps.index("python3 scripts/go_tools.py"), steps[-1]
    assert tested.startswith("make test-all")
    assert built < len(steps) - 1


def test_each_line_and_each_python_has_its_job() -> None:
    """The lines are those of scripts/lines.py; what is stated as supported is tested."""
    jobs = dict(_jobs())
    source = (_ROOT / "scripts" / "lines.py").read_text(encoding="utf-8")
    rows = jobs["lines.lines"]["strategy"]["matrix"]["include"]
    assert [row["line"] for row in rows] == re.findall(
        r'^    "([a-z0-9.-]+)": Line', source, re.MULTILINE
    )
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(_project()["classifiers"]))
    tested = {*jobs["test.test"]["strategy"]["matrix"]["python"], *(row["python"] for row in rows)}
    assert tested == set(stated)


def test_only_the_job_that_publishes_may_do_more_than_read() -> None:
    """It publishes tags alone, what another job made, as the index trusts it: with no secret."""
    for file in _WORKFLOWS:
        assert _loaded(file)["permissions"] == {"contents": "read"}
        assert "secrets." not in file.read_text(encoding="utf-8")
    jobs = dict(_jobs())
    assert [name for name, job in jobs.items() if "permissions" in job] == ["release.publish"]
    publish = jobs["release.publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["needs"] == "dist"
    assert all("run" not in step for step in publish["steps"])
    assert all(job["timeout-minutes"] for name, job in jobs.items() if name != "release.publish")


def test_a_release_is_refused_whose_tag_is_not_the_version(tmp_path: Path) -> None:
    """Or which the changelog has no section for: the step that says so is run."""
    (step,) = [s for s in dict(_jobs())["release.dist"]["steps"] if "name" in s]
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "version.py").write_text('VERSION = "1.2.0"\n')

    def accepted(tag: str, changelog: str) -> bool:
        (tmp_path / "CHANGELOG.md").write_text(changelog)
        command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        environment = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        return done.returncode == 0

    section = "# Changelog\n\n## 1.2.0, 2026-12-01\n"
    assert accepted("v1.2.0", section)
    assert not accepted("v1.3.0", section)
    assert not accepted("v1.2.0", "# Changelog\n\n## Unreleased\n")
    assert not accepted("v1.2", section)


@pytest.mark.parametrize("form", _FORMS, ids=lambda file: file.stem)
def test_a_form_asks_for_what_an_answer_takes(form: Path) -> None:
    """Every form has what the host demands of one, ids of its own, and asks for the version."""
    document = _loaded(form)
    assert set(document) == {"name", "description", "labels", "body"}
    kinds = {"textarea", "input", "dropdown"}
    assert {field["type"] for field in document["body"]} <= kinds
    ids = [field["id"] for field in document["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in document["body"])
    assert any(field.get("validations", {}).get("required") for field in document["body"])
    if form.stem != "feature":
        text = form.read_text(encoding="utf-8")
        assert "headrace --version" in text
        assert "headrace check --show" in text


def test_addresses_are_of_one_repository_and_files_in_it_are_there() -> None:
    """The package's, and those of the forms; the template's own link leads to a heading."""
    urls = _project()["urls"]
    home = urls["Homepage"]
    contacts = _loaded(_CONTACTS)["contact_links"]
    for url in (*urls.values(), *(contact["url"] for contact in contacts)):
        assert url.startswith(home)
        inside = url.removeprefix(f"{home}/blob/main/")
        assert inside == url or (_ROOT / inside).is_file()
    template = (_GITHUB / "PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    (link,) = re.findall(r"\]\((.*?)\)", template)
    page, _, anchor = link.removeprefix(f"{home}/blob/main/").partition("#")
    headings = re.findall(r"^## (.*)$", (_ROOT / page).read_text("utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_workflows_are_in_order() -> None:
    """Actionlint finds nothing."""
    program = go_tool("actionlint")
    done = subprocess.run(
        [program, "-no-color", "-shellcheck=", "-pyflakes=", *_WORKFLOWS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")

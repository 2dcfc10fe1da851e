from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_program

_ROOT = Path(__file__).parents[3]

#: The distributions whose commands the Makefile calls, and that of Headrace's own command.
_TOOLS = {
    "headrace": "headrace",
    "lint-imports": "import-linter",
    "mkdocs": "mkdocs",
    "mypy": "mypy",
    "ruff": "ruff",
}

#: Sides of a comparison that run in environments of their own.
_PEERS = ("aiokafka", "arroyo", "celery", "faststream", "faust", "quix", "temporal")

#: Hides all distributions but those named in the first argument, be they installed or not.
_HIDE = """
import importlib.metadata as metadata
import re
import sys

allowed = set(sys.argv.pop(1).split(","))

def has(name):
    return re.sub(r"[-_.]+", "-", name).lower() in allowed

hidden = {
    module
    for module, names in metadata.packages_distributions().items()
    if not any(map(has, names))
}
installed = metadata.distributions

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hiding)
metadata.distributions = lambda **kwargs: (d for d in installed(**kwargs) if has(d.name))
"""


@cache
def _bootstrap() -> Any:
    spec = importlib.util.spec_from_file_location("bootstrap", _ROOT / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _locked(purpose: str) -> set[str]:
    """Return the distributions that the set-up for a purpose installs."""
    steps = [step for step in _bootstrap().STEPS[purpose] if step not in _bootstrap().SOURCES]
    text = "\n".join((_ROOT / "requirements" / f"{step}.lock").read_text() for step in steps)
    return {"headrace", *re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


def _targets() -> dict[str, tuple[str, str]]:
    """Return for each target that sets something up its purpose and its recipe."""
    text = (_ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    set_up = {name: (re.findall(r"\$\(SET_UP\) ([\w-]+)", lines), lines) for name, lines in recipes}
    return {name: (purposes[0], lines) for name, (purposes, lines) in set_up.items() if purposes}


def _run_with(purpose: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program where only the distributions of a purpose can be imported."""
    locked = ",".join(sorted(_locked(purpose)))
    return subprocess.run(
        [sys.executable, "-c", _HIDE + program, locked, *arguments],
        cwd=_ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
    )


def _modules(*folders: str) -> list[str]:
    files = [path for folder in folders for path in sorted((_ROOT / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(_ROOT).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def test_every_target_but_the_two_that_need_nothing_sets_something_up() -> None:
    """The targets are those that the tests below look at."""
    names = {"demo", "test", "test-all", "test-lines", "check", "fix", "docs"}
    names |= {"bench", "dist", "lock"}
    assert _targets().keys() == names


@pytest.mark.parametrize("target", sorted(_targets()))
def test_each_command_of_a_target_is_in_its_locks(target: str) -> None:
    """A tool that a target calls comes with the locks that the target installs."""
    purpose, recipe = _targets()[target]
    called = set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe)) - {"python"}
    assert {tool for tool in called if _TOOLS[tool] not in _locked(purpose)} == set()


def test_the_set_up_itself_needs_the_standard_library_only() -> None:
    """Without any installed package the set-up says how it is called."""
    command = [sys.executable, "-I", "-S", str(_ROOT / "scripts" / "bootstrap.py")]
    done = run_program(command)
    assert (done.returncode, done.stderr) == (2, "")


def test_modules_of_the_demo_are_imported_with_its_locks_alone() -> None:
    """The demos, their daemons with the sink, and the table's reader are covered."""
    modules = ["headrace.cli", "headrace.daemon", *_modules("examples/harness", "examples/demo")]
    modules += _modules(
        "examples/collector", "examples/elements", "examples/streams", "examples/workflow"
    )
    modules += _modules("headrace/extensions/delta")
    done = _run_with("run", "for name in sys.argv[1:]: __import__(name)", *modules)
    assert done.stderr == ""


def test_the_benchmarks_are_imported_with_their_locks_alone() -> None:
    """Each benchmark, and the sides of a comparison that run in the same environment."""
    modules = [name for name in _modules("benchmarks") if not name.endswith(_PEERS)]
    done = _run_with("bench", "for name in sys.argv[1:]: __import__(name)", *modules)
    assert done.stderr == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "purpose", ["test", pytest.param("test-all", marks=pytest.mark.slow)], ids=str
)
def test_all_tests_are_collected_with_the_locks_of_their_target_alone(purpose: str) -> None:
    """No test's module fails to be imported, also not the modules whose tests are slow."""
    program = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("--collect-only", "-qq", "-p", "no:cacheprovider", "tests")
    done = _run_with(purpose, program, *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_each_module_that_a_test_runs_as_a_program_is_in_the_locks() -> None:
    """Modules that a test starts with ``-m`` are installed by make test-all."""
    files = (_ROOT / "tests").rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    run = {name.partition(".")[0] for name in re.findall(r'"-m",\s+"([\w.]+)"', text)}
    ours = {"benchmarks", "examples", "headrace", "tests"}
    assert {"mypy", "pytest"} <= run
    assert run - ours - sys.stdlib_module_names - _locked("test-all") == set()


def test_a_hidden_distribution_is_one_that_cannot_be_imported() -> None:
    """The tests above would fail for a missing lock: pytest is not among those of the demo."""
    assert "No module named 'pytest'" in _run_with("run", "import pytest").stderr

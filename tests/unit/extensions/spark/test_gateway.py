"""How spark-submit gets the properties, shown by a stand-in that says what it was given."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkRuntimeError

from headrace.core.errors import StartError
from headrace.extensions.spark.gateway import Jvm
from tests.unit.channel.in_memory import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

# pyspark leaves the pipe of a launcher that failed to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

#: Writes down its arguments and the files they name, then fails as where there is no Java.
_SUBMIT = """#!/bin/sh
printf '%s\\n' "$@" > "$SPARK_HOME/arguments"
stat --dereference --format=%a "$2" > "$SPARK_HOME/mode"
cat "$2" > "$SPARK_HOME/properties"
options=$(sed -n 's/^spark.driver.extraJavaOptions=//p' "$2")
cat "/proc/self/fd/${options##*/}" > "$SPARK_HOME/options"
exit 1
"""


#: Reads its file only when it is told to.
_HANGING_SUBMIT = """#!/bin/sh
touch "$SPARK_HOME/hangs"
read -r _ < "$SPARK_HOME/gate"
cat "$2" > "$SPARK_HOME/late"
exit 1
"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Spark whose launcher writes down what it is given; return the folder it writes to."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    _write_script(script, _SUBMIT)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    yield tmp_path
    gc.collect()


def _write_script(script: Path, text: str) -> None:
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)


def _memory_files() -> list[str]:
    """Return the files in memory that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself has one, closed by now
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(("/memfd:spark-", "/memfd:java-"))]


def test_properties_are_in_a_file_and_on_no_command_line(submit: Path) -> None:
    """The launcher is given files of mode 0600; they are gone once the start has failed."""
    with pytest.raises(PySparkRuntimeError):
        Jvm({"spark.hadoop.key": "s3 cret=\\\n€😀", "spark.driver.extraJavaOptions": "-Da=b"})
    arguments = (submit / "arguments").read_text(encoding="utf-8").split()
    assert arguments[0] == "--properties-file"
    assert arguments[2:] == ["--load-spark-defaults", "pyspark-shell"]
    assert (submit / "mode").read_text(encoding="utf-8").strip() == "600"
    properties = (submit / "properties").read_text(encoding="utf-8").splitlines()
    assert properties[0] == (r"spark.hadoop.key=s3\u0020cret\u003d\u005c\u000a\u20ac\ud83d\ude00")
    assert _memory_files() == []
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_jvm_options_are_shown_only_where_they_hold_no_value(submit: Path) -> None:
    """Options that set sizes stay visible; those that set properties go to the other file."""
    options = {
        "spark.driver.defaultJavaOptions": "-Xms1g -Dfirst=1",
        "spark.driver.extraJavaOptions": """-XX:+UseZGC "-Dtrust=a \\"b" @/etc/more""",
    }
    with pytest.raises(PySparkRuntimeError):
        Jvm(options)
    (line,) = (submit / "properties").read_text(encoding="utf-8").splitlines()
    shown = line.replace(r"\u0020", " ").replace(r"\u003a", ":")
    assert shown.split("=", 1)[0] == "spark.driver.extraJavaOptions"
    assert shown.split()[1:3] == [r"-XX:\u002bUseZGC", r"\u0040/etc/more"]
    hidden = (submit / "options").read_text(encoding="utf-8").splitlines()
    assert hidden == ['"-Dfirst=1"', r'''"-Dtrust=a \"b"''']


def test_arguments_of_the_surroundings_come_after_ours(
    submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYSPARK_SUBMIT_ARGS still counts, and is what it was afterwards."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name mine pyspark-shell")
    with pytest.raises(PySparkRuntimeError):
        Jvm({})
    arguments = (submit / "arguments").read_text(encoding="utf-8").split()
    assert arguments[2:] == ["--load-spark-defaults", "--name", "mine", "pyspark-shell"]
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--name mine pyspark-shell"


def test_another_file_of_properties_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher reads one, so the start says where to put what is in the other."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--properties-file /etc/mine pyspark-shell")
    with pytest.raises(StartError, match=r"name those of the file in spark\.properties"):
        Jvm({})


def test_a_start_that_hangs_leaves_the_next_one_alone(
    submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its files for as long as it takes, and the environment is the user's meanwhile."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name mine pyspark-shell")
    os.mkfifo(submit / "gate")
    gate = os.open(submit / "gate", os.O_RDWR)
    script = submit / "bin" / "spark-submit"
    _write_script(script, _HANGING_SUBMIT)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(Jvm, {"spark.number": "first"})
        try:
            eventually((submit / "hangs").exists)
            environment = os.environ["PYSPARK_SUBMIT_ARGS"]
            script.unlink()
            _write_script(script, _SUBMIT)
            with pytest.raises(PySparkRuntimeError):
                Jvm({"spark.number": "second"})
        finally:
            os.write(gate, b"go on\n")
        with pytest.raises(PySparkRuntimeError):
            first.result(timeout=30)
    os.close(gate)
    assert environment == os.environ["PYSPARK_SUBMIT_ARGS"] == "--name mine pyspark-shell"
    assert (submit / "properties").read_text(encoding="utf-8").startswith("spark.number=second\n")
    assert (submit / "late").read_text(encoding="utf-8").startswith("spark.number=first\n")
    assert _memory_files() == []


def test_an_open_quotation_mark_in_options_is_named() -> None:
    """The launcher would say so without the property's name."""
    with pytest.raises(StartError, match=r"spark\.driver\.extraJavaOptions cannot be divided"):
        Jvm({"spark.driver.extraJavaOptions": '-Da="b'})

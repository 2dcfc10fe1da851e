"""``headrace streams rows``, asking a process without a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.extensions.keyed.restore import RestoreProgress
from headrace.ops.admin.client import AnswerError
from headrace.ops.streams.rows import rows_of_key, rows_of_store
from tests.unit.ops.admin.test_state import asked, kept, printed
from tests.unit.ops.admin.test_stores import STORES, copied, shown

if TYPE_CHECKING:
    from tests.unit.ops.admin.scene import Scene
    from tests.unit.ops.admin.test_state import Kept

__all__ = ["copied", "kept", "shown"]


@pytest.mark.usefixtures("shown")
def test_the_command_shows_rows_for_people_and_for_scripts(
    bare: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key has its place and its windows; with JSON each line is a document of the API."""
    printed(capsys)
    assert rows_of_key("shop", "minutes", "a", as_json=False)(asked(bare)) == 0
    lines, _ = printed(capsys)
    assert lines[0] == (
        "a · partition 0 · of the records before 5 of events · operator time 1970-01-01T00:02:01Z"
    )
    assert lines[1].split() == ["partition", "key", "window", "row"]
    window = "1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z"
    text = '{"url":"a","begin":60000,"clicks":2}'
    assert lines[2].strip().split(maxsplit=2)[2].split("  ") == [window, text]
    wanted = {"from": "60001", "to": None}
    assert rows_of_key("shop", "minutes", "a", as_json=True, **wanted)(asked(bare)) == 0
    (line,) = printed(capsys)[0]
    assert json.loads(line) == bare.get(f"{STORES}/minutes/a?from=60001").json()["rows"][0]
    with pytest.raises(AnswerError, match="store totals has no row of key b"):
        rows_of_key("shop", "totals", "b", as_json=False)(asked(bare))


@pytest.mark.usefixtures("shown", "copied")
def test_the_command_says_how_far_the_copy_is_that_rows_are_of(
    bare: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a key, and after a list on the other output, so that scripts read rows alone."""
    place = "a copy as of offset 80 of the changelog, 12 offsets behind"
    printed(capsys)
    assert rows_of_key("shop", "totals", "d", as_json=False, stale="true")(asked(bare)) == 0
    assert printed(capsys)[0][0] == f"d · partition 1 · {place}"
    assert rows_of_store("shop", "totals", 9, as_json=True, stale="true")(asked(bare)) == 0
    lines, errors = printed(capsys)
    assert [json.loads(line)["key"] for line in lines] == ["a", "ab", "d"]
    assert f"partition 1 is another member's: {place}" in errors


@pytest.mark.usefixtures("shown")
def test_the_command_lists_rows_page_after_page(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the limit; what is not in the list is said, and restoring is another exit code."""
    monkeypatch.setattr("headrace.ops.streams.rows._PAGE", 1)
    for limit, names in ((2, ["a", "ab"]), (9, ["a", "ab", "d"])):
        printed(capsys)
        assert rows_of_store("shop", "totals", limit, as_json=True)(asked(bare)) == 0
        lines, errors = printed(capsys)
        assert [json.loads(line)["key"] for line in lines] == names
        assert ("there are more; say --limit" in errors) == (limit == 2)
    kept.state.release(1)
    kept.restoring[1] = RestoreProgress(34, 100, 12.2)
    assert rows_of_store("shop", "totals", 9, as_json=False, prefix="ab")(asked(bare)) == 4
    lines, errors = printed(capsys)
    assert lines[0].split() == ["partition", "key", "row"]
    assert lines[1].split() == ["0", "ab", '{"url":"ab","clicks":1}']
    assert "partition 1 is not in it: restoring 34 %, 12 s left" in errors
    assert rows_of_key("shop", "totals", "d", as_json=False)(asked(bare)) == 4
    assert "restoring 34 %, 12 s left" in printed(capsys)[1]
    kept.held = {0}
    rows_of_store("shop", "totals", 9, as_json=True)(asked(bare))
    assert "1 partitions are not this process's" in printed(capsys)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "1"], "choose windows of a KEY"),
        (["a", "--prefix", "b"], "leave KEY out"),
        (["a", "--window", "1"], "leave KEY out"),
    ],
)
def test_options_of_a_key_and_of_all_rows_do_not_go_together(options: list[str], said: str) -> None:
    """The command asks nobody; the error says what to leave out or to name."""
    words = ["streams", "rows", "shop", "totals", *options, "--url", "http://localhost:1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert said in done.output

"""Records that ``headrace local up`` writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.devstack import cli, records

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("only_new", [False, True])
def test_an_existing_topic_gets_records_only_on_request(
    only_new: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new topic gets them in any case."""
    sent: list[str] = []

    def producer(_: Any, topic: str) -> Any:
        return SimpleNamespace(send=lambda *_: sent.append(topic), flush=lambda _: None)

    catalog = SimpleNamespace(create=lambda topic, _: topic.name == "new", close=lambda: None)
    monkeypatch.setattr(records, "KafkaTopicCatalog", lambda *_: catalog)
    monkeypatch.setattr(records, "TopicProducer", producer)
    for name in ("new", "old"):
        (tmp_path / f"{name}.jsonl").write_text("1\n", encoding="utf-8")
    said = [file.stem for file, _ in records.produce_records(tmp_path, "b:1", only_new=only_new)]
    assert said == sent == (["new"] if only_new else ["new", "old"])


def test_a_folder_of_records_that_is_named_has_to_exist(tmp_path: Path) -> None:
    """No server is started, and the error names the folder."""
    absent = tmp_path / "absent"
    result = CliRunner().invoke(
        cli.app, ["up", "--dir", str(tmp_path / "stack"), "--records", str(absent)]
    )
    assert result.exit_code == 2
    assert "does not exist" in result.output
    assert not (tmp_path / "stack").exists()

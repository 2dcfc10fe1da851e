"""Skipped and dead-lettered records, until an operator acknowledges them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import SYSTEM_CLOCK
from headrace.ops.admin.rejects import Rejects

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.ops.admin.scene import Scene

CHANNEL = "member"


def _reject(scene: Scene, letters: int = 0, skipped: int = 0, left_out: int = 0) -> None:
    metrics = scene.controller.metrics
    metrics.dead_lettered.labels(CHANNEL, "events").inc(letters)
    metrics.skipped.labels(CHANNEL, "events", "undecodable").inc(skipped)
    metrics.skipped.labels(CHANNEL, "events", "operator").inc(left_out)


def _open(rejects: Rejects) -> tuple[int, int]:
    found = rejects.of(CHANNEL)
    return found.dead_letters, found.skipped_records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "rejects.json"


def test_rejects_are_open_until_they_are_acknowledged(scene: Scene, path: Path) -> None:
    """Records that an operator skipped do not count; later rejects are open again."""
    rejects = Rejects(path, scene.controller, SYSTEM_CLOCK)
    _reject(scene, letters=6134, skipped=8291, left_out=4)
    assert _open(rejects) == (6134, 8291)
    done = rejects.acknowledge(CHANNEL, {"dead_letters": None, "skipped_records": None}, "ann")
    assert done == {"dead_letters": 6134, "skipped_records": 8291}
    assert _open(rejects) == (0, 0)
    _reject(scene, letters=1)
    found = rejects.of(CHANNEL)
    assert (found.dead_letters, found.skipped_records) == (1, 0)
    assert (found.acknowledged, found.acknowledged_by) == (14425, "ann")


def test_an_acknowledgement_is_bounded_by_its_count(scene: Scene, path: Path) -> None:
    """The rest stays open, and no more is acknowledged than exists."""
    rejects = Rejects(path, scene.controller, SYSTEM_CLOCK)
    _reject(scene, letters=5, skipped=2)
    assert rejects.acknowledge(CHANNEL, {"dead_letters": 3}, "ann") == {"dead_letters": 3}
    assert _open(rejects) == (2, 2)
    assert rejects.acknowledge(CHANNEL, {"dead_letters": 9}, "ann") == {"dead_letters": 2}
    _reject(scene, letters=1)
    assert _open(rejects) == (1, 2)


def test_a_restart_forgets_nothing(scene: Scene, path: Path) -> None:
    """Open and acknowledged counts survive a restart."""
    before = Rejects(path, scene.controller, SYSTEM_CLOCK)
    _reject(scene, letters=5, skipped=2)
    before.acknowledge(CHANNEL, {"dead_letters": 3}, "ann")
    before.sample()
    scene.controller.metrics.dead_lettered.clear()
    scene.controller.metrics.skipped.clear()
    after = Rejects(path, scene.controller, SYSTEM_CLOCK)
    assert _open(after) == (2, 2)
    assert after.of(CHANNEL).acknowledged_by == "ann"
    _reject(scene, letters=4)
    assert _open(after) == (6, 2)


def test_a_counter_that_begins_again_adds_up(scene: Scene, path: Path) -> None:
    """A channel that starts again within the process counts from 0."""
    rejects = Rejects(path, scene.controller, SYSTEM_CLOCK)
    _reject(scene, letters=5)
    rejects.sample()
    scene.controller.metrics.dead_lettered.clear()
    _reject(scene, letters=2)
    assert _open(rejects) == (7, 0)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"member": {"by": null}}'])
def test_a_file_that_cannot_be_read_is_no_end(scene: Scene, path: Path, text: str) -> None:
    """It is said, and counting begins again."""
    path.write_text(text)
    with capture_logs() as logs:
        rejects = Rejects(path, scene.controller, SYSTEM_CLOCK)
    assert [line["event"] for line in logs] == ["rejects_not_read"]
    _reject(scene, letters=1)
    rejects.sample()
    assert json.loads(path.read_text())[CHANNEL]["dead_letters"]["total"] == 1


def test_an_acknowledgement_that_is_not_saved_fails(scene: Scene, tmp_path: Path) -> None:
    """The error reaches the caller, and the count stays open."""
    rejects = Rejects(tmp_path / "missing" / "rejects.json", scene.controller, SYSTEM_CLOCK)
    _reject(scene, letters=1)
    with pytest.raises(FileNotFoundError):
        rejects.acknowledge(CHANNEL, {"dead_letters": None}, "ann")
    assert _open(rejects) == (1, 0)
    with capture_logs() as logs:
        rejects.sample()
    assert [line["event"] for line in logs] == ["rejects_not_saved"]


def test_the_api_acknowledges_and_returns_the_rest(scene: Scene) -> None:
    """A count or all can be acknowledged, with the token only, and the log has it."""
    _reject(scene, letters=5, skipped=2)
    path = f"/api/v1/channels/{CHANNEL}/acknowledge"
    assert scene.client.post(path, json={}).status_code == 401
    with capture_logs() as logs:
        answer = scene.post(path, by="ann", dead_letters=4).json()
    assert answer["acknowledged"] == {"dead_letters": 4}
    (line,) = [each for each in logs if each["event"] == "admin_change"]
    assert (line["action"], line["by"], line["requested"]) == (
        "acknowledge",
        "ann",
        {"dead_letters": 4},
    )
    channel = scene.get(f"/api/v1/channels/{CHANNEL}").json()
    channel = channel.get("channel", channel)
    rejects = channel["rejects"]
    assert (rejects["dead_letters"], rejects["skipped_records"]) == (1, 2)
    assert rejects["acknowledged_by"] == "ann"
    assert scene.post(path).json()["acknowledged"] == {
        "dead_letters": 1,
        "skipped_records": 2,
        "rejected_facts": 0,
    }
    assert scene.post("/api/v1/channels/none/acknowledge").status_code == 404
    assert scene.post(path, dead_letters=-1).status_code == 422

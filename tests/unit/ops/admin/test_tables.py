"""Words of the status."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from headrace.ops.admin.tables import show

if TYPE_CHECKING:
    from tests.unit.ops.admin.scene import Scene


def said(status: Any, **totals: Any) -> str:
    """Return what is printed of a channel with these totals."""
    out = StringIO()
    (channel,) = status["channels"]
    changed = {**channel, "totals": {**channel["totals"], **totals}}
    show(status, [changed], Console(file=out, width=300))
    return out.getvalue()


@pytest.mark.parametrize(
    ("totals", "words"),
    [
        ({"lag": 200, "catch_up_s": 600.0, "lag_per_s": -0.3}, "lag 200 · catches up in 10m 0s · "),
        ({"lag": 200, "catch_up_s": None, "lag_per_s": 2.5}, "falls back by 2.5 records/s · "),
        ({"lag": 200, "catch_up_s": None, "lag_per_s": 0.0}, "lag 200 · "),
        ({"lag": 0, "catch_up_s": None, "lag_per_s": 0.0}, "lag 0 · "),
        ({"lag": 200, "catch_up_s": 0, "lag_per_s": -9.0}, "lag 200 · "),
    ],
)
def test_a_channel_says_when_it_will_have_caught_up(
    scene: Scene, totals: dict[str, Any], words: str
) -> None:
    """It falls back only while its lag grows, and says nothing of a lag that is gone or stands."""
    found = said(scene.get("/api/v1/status").json(), **totals)
    assert words in found
    assert ("catches up" in found) is ("catches up" in words)
    assert ("falls back" in found) is ("falls back" in words)


def test_a_status_of_a_version_that_knew_no_trend_is_shown(scene: Scene) -> None:
    """Members of two versions share a group."""
    status = scene.get("/api/v1/status").json()
    del status["channels"][0]["totals"]["catch_up_s"], status["channels"][0]["totals"]["lag_per_s"]
    assert f"lag 7 · {status['channels'][0]['delivery']}" in said(status, lag=7)

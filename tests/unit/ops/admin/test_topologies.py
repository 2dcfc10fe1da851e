"""The plans of topologies that run, as the API answers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.config import Config
from headrace.ops.admin.topologies import TopologyPlan, topologies_of
from tests.unit.extensions.streams import programs

#: Where the programs are.
_CODE = programs.__name__


def planned(**topologies: str) -> dict[str, TopologyPlan]:
    """Return the plans of programs by the topologies' names, with all of their channels."""
    sections = {
        name: {"code": f"{_CODE}:{program}", "group": name} for name, program in topologies.items()
    }
    document: dict[str, Any] = {"instance_id": "one", "topologies": sections}
    found = Config.model_validate(document).channels
    channels: list[Any] = [SimpleNamespace(config=each) for each in found.values()]
    return {each.name: each for each in topologies_of(channels).topologies}


def test_a_plan_has_its_parts_in_the_order_of_the_data() -> None:
    """Each with its operators, what these read, write and keep; parts are called as channels."""
    plan = planned(shop="top_pages")["shop"]
    assert [each.channel for each in plan.parts] == ["shop.clicks", "shop.pages", "shop.top"]
    assert [(each.reads, each.writes) for each in plan.parts] == [
        (["clicks"], ["shop.pages.by-key"]),
        (["shop.pages.by-key"], ["shop.top.by-key"]),
        (["shop.top.by-key"], ["top-pages"]),
    ]
    first, *others = plan.parts[0].operators
    assert (first.kind, first.reads, first.writes, first.inputs) == ("stream", "clicks", None, [])
    assert [each.writes for each in others] == ["shop.pages.by-key"]
    stores = {each.name: each.store for part in plan.parts for each in part.operators if each.store}
    assert stores == {"pages": "windows", "top": "rows"}
    assert plan.parts[2].operators[-1].writes == "top-pages"


def test_plans_are_by_name_and_of_channels_that_run() -> None:
    """Each of two topologies has a plan; without channels there is none."""
    assert list(planned(b="top_pages", a="word_count")) == ["a", "b"]
    assert topologies_of([]).topologies == []
    other: Any = SimpleNamespace(config=SimpleNamespace(processor=SimpleNamespace(type="keyed")))
    assert topologies_of([other]).topologies == []

"""Channels of a kind of processor that works in tasks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.coordinators.coordinator import member_info
from headrace.coordinators.member_info import AssignmentMode
from tests.kinds import TasksConfig
from tests.unit.config.support import channel


def pairs(*topics: str, **fields: Any) -> Any:
    """Build a channel of that kind."""
    return channel(
        topics=topics or ("payments", "orders"), processor=TasksConfig(), sink=None, **fields
    )


@pytest.mark.parametrize(
    ("coordinator", "mode"),
    [
        ({"type": "dynamic", "weight": 2}, AssignmentMode.DYNAMIC),
        ({"type": "fixed_count", "partitions_per_topic": 2}, AssignmentMode.FIXED_COUNT),
        ({"type": "static", "partitions": {"orders": [1]}}, AssignmentMode.STATIC),
    ],
)
def test_a_channel_publishes_that_it_works_in_tasks(
    coordinator: dict[str, Any], mode: AssignmentMode
) -> None:
    """With any coordinator the member says so, and a member of another kind does not."""
    info = member_info(pairs(coordinator=coordinator), ["orders", "payments"])
    assert (info.together, info.mode) == (True, mode)
    flights = {"topics": ["orders"], "coordinator": coordinator}
    assert not member_info(channel(**flights), ["orders"]).together


def test_the_list_of_the_first_topic_is_published_for_all() -> None:
    """A member of other topics, whose first one is another, finds the list there as well."""
    lists = {"type": "static", "partitions": {"orders": [0, "2-3"]}}
    info = member_info(pairs(coordinator=lists), ["orders", "payments"])
    assert info.lists == {"orders": (0, 2, 3), "payments": (0, 2, 3)}


@pytest.mark.parametrize(
    ("topics", "lists", "sentence"),
    [
        (
            ("orders", "payments"),
            {"orders": [0, 1], "payments": [0]},
            (
                "coordinator.partitions.payments is 0, orders has 0-1, and the tasks processor "
                "works on the same partitions of all its topics; leave it out, or list the same"
            ),
        ),
        (
            ("orders", "payments"),
            {"payments": [0]},
            (
                "coordinator.partitions has no list of orders, and the tasks processor works on "
                "the same partitions of all its topics; list those of orders, the first one by name"
            ),
        ),
        (("orders", "^pay"), None, "topics has patterns"),
    ],
)
def test_tasks_with_differing_partitions_or_patterns_are_refused(
    topics: tuple[str, ...], lists: dict[str, Any] | None, sentence: str
) -> None:
    """Lists that differ, that lack the first topic, and patterns have a message of their own."""
    static = {} if lists is None else {"coordinator": {"type": "static", "partitions": lists}}
    with pytest.raises(ValidationError) as refused:
        pairs(*topics, **static)
    assert sentence in str(refused.value)


def test_equal_lists_are_taken() -> None:
    """A list of another topic may be there if it is the same."""
    lists = {"type": "static", "partitions": {"orders": [0, 1], "payments": ["0-1"]}}
    assert pairs(coordinator=lists).together

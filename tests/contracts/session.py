"""The contract of every ZooKeeper session, on real servers or in memory."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest

from headrace.zookeeper.errors import BadVersionError, NodeExistsError, NoNodeError, ZooKeeperError
from headrace.zookeeper.nodes import Check, Create, Delete, SetData

if TYPE_CHECKING:
    from headrace.zookeeper.protocol import Session

WAIT = 20.0


class SessionContract:
    """Subclasses provide the fixtures ``session`` and ``other``, which share an empty tree."""

    def test_nodes_are_created_read_changed_and_deleted(self, session: Session) -> None:
        """Every operation does what it says."""
        session.ensure("/a/b")
        session.ensure("/a/b")
        created = session.create("/a/b/c", b"1", ephemeral=True)
        assert created.owner_session == session.session_id
        assert session.get("/a/b/c").data == b"1"
        assert session.set("/a/b/c", b"2", 0).version == 1
        assert session.exists("/a/b/c") == session.get("/a/b/c").stat
        assert session.exists("/a/b/x") is None
        assert session.children("/a/b") == ["c"]
        assert [node and node.data for node in session.get_many(["/a/b/c", "/x"])] == [b"2", None]
        assert session.get_many([]) == []
        session.delete("/a/b/c", 1)
        assert session.children("/a/b") == []

    def test_refusals_have_names(self, session: Session) -> None:
        """Each kind of refusal is an error of its own."""
        session.ensure("/a/b")
        with pytest.raises(NodeExistsError):
            session.create("/a")
        with pytest.raises(NoNodeError):
            session.create("/x/y")
        with pytest.raises(NoNodeError):
            session.get("/x")
        with pytest.raises(BadVersionError):
            session.set("/a", b"", 7)
        with pytest.raises(ZooKeeperError):
            session.delete("/a")

    def test_transactions_are_all_or_nothing(self, session: Session) -> None:
        """A refused operation undoes the others, and its error names its own node."""
        session.ensure("/a")
        results = session.multi(
            [SetData("/a", b"1", 0), Create("/b", ephemeral=True), Check("/a", 1)]
        )
        assert [r.version if r else None for r in results] == [1, None, None]
        with pytest.raises(BadVersionError, match="/a"):
            session.multi([Delete("/b"), SetData("/a", b"2", 0), Create("/c")])
        with pytest.raises(NodeExistsError, match="/b"):
            session.multi([SetData("/a", b"2", 1), Create("/b")])
        assert session.get("/a").data == b"1"
        assert session.exists("/b") is not None

    def test_of_several_transactions_each_is_executed_as_a_whole_or_not(
        self, session: Session
    ) -> None:
        """A refused one changes nothing and says why; those before and after it are executed."""
        session.ensure("/x")
        session.create("/x/a", b"0")
        first, second, third = session.multi_each(
            [
                [SetData("/x/a", b"1", 0), Create("/x/b")],
                [Create("/x/c"), SetData("/x/a", b"2", 0)],
                [Delete("/x/b"), Create("/x/d", ephemeral=True)],
            ]
        )
        assert (first, third) == (None, None)
        assert isinstance(second, BadVersionError)
        assert second.path == "/x/a"
        assert session.get("/x/a").data == b"1"
        assert sorted(session.children("/x")) == ["a", "d"]
        assert session.multi_each([]) == []

    def test_watches_call_once_after_the_next_change(
        self, session: Session, other: Session
    ) -> None:
        """A watch is called on the next change, and once, however often it was asked for."""
        session.ensure("/a")
        calls: queue.Queue[str] = queue.Queue()

        def data_changed() -> None:
            calls.put("data")

        def children_changed() -> None:
            calls.put("children")

        for _ in range(3):
            session.get("/a", data_changed)
            session.children("/a", children_changed)
        other.create("/a/b")
        assert calls.get(timeout=WAIT) == "children"
        other.set("/a", b"x")
        assert calls.get(timeout=WAIT) == "data"
        other.set("/a", b"y")
        session.get("/a")
        assert calls.empty()

"""Alternating rounds: both sides meet the same state of the machine, and the median counts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What one round of one side measured.
Measured = dict[str, Any]

#: Seconds that a round has to take. What a process does once, and the machine's own noise, are a
#: large part of a shorter one.
SHORTEST = 3.0

#: A round whose length is to be repeated takes that much longer than the shortest, as the next ones
#: may be faster.
MARGIN = 1.5


#: A side is warm when a round is not this much faster than those before it.
STEADY = 1.1

#: The same where a JVM is next to ours: it goes on compiling after a round that was no faster, so
#: two such rounds in a row count, and each takes that much longer than the shortest.
PEERS_STEADY, PEERS_MARGIN = 2, 2.0


class ShortRoundError(Exception):
    """A round was too short to say anything; the text has the side and what to do."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What each side measured, round by round."""

    results: Mapping[str, Sequence[Measured]]

    def values(self, side: str, key: str) -> list[float]:
        """Return one figure of a side in the order of the rounds."""
        return [result[key] for result in self.results[side]]

    def median(self, side: str, key: str) -> float:
        """Return the median of one figure of a side."""
        return median(self.values(side, key))

    def ratios(self, one: str, other: str, key: str) -> list[float]:
        """Return ``one`` divided by ``other``, round by round."""
        pairs = zip(self.values(one, key), self.values(other, key), strict=True)
        return [a / b for a, b in pairs]

    def ratio(self, one: str, other: str, key: str) -> float:
        """Return the median of the rounds' ratios.

        The sides of one round ran one after the other, so a neighbour who slows the machine for a
        minute slows both; medians taken first would compare different minutes.
        """
        return median(self.ratios(one, other, key))


def alternate(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    *,
    say: Callable[[str], None],
    shortest: float = SHORTEST,
) -> Rounds:
    """Run ``rounds`` rounds of each side; who begins changes from round to round.

    ``shortest`` is in seconds: 0 for rounds that do not count, or whose length was chosen.

    Raises:
        ShortRoundError: a round took less.
    """
    results: dict[str, list[Measured]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            measured = sides[name]()
            results[name].append(measured)
            say(f"round {number + 1} {name}: {_line(measured)}")
            if shortest:
                require_long(name, measured, shortest)
    return Rounds(results)


def require_long(name: str, measured: Measured, shortest: float = SHORTEST) -> None:
    """Return if a round took as long as one has to.

    Raises:
        ShortRoundError: it took less.
    """
    if measured["seconds"] < shortest:
        raise ShortRoundError(
            f"a round of {name} took {measured['seconds']} s, which is less than "
            f"{shortest:g} s and says nothing; give its plan more records"
        )


class Lengths(Protocol):
    """How long a topic is to be: ``probe`` and ``most`` in records, the others in seconds."""

    @property
    def probe(self) -> int:
        """The first topic that is read."""

    @property
    def most(self) -> int:
        """The longest one."""

    @property
    def seconds(self) -> float:
        """About what a round is to take."""

    @property
    def shortest(self) -> float:
        """What it has to take."""


class Work(Protocol):
    """What a round is of, as a topic."""

    @property
    def records(self) -> int:
        """How much that is."""


_Work = TypeVar("_Work", bound=Work)


def long_enough(
    name: str,
    round_of: Callable[[_Work], Measured],
    topic_of: Callable[[float], _Work],
    lengths: Lengths,
    *,
    say: Callable[[str], None],
) -> _Work:
    """Return a topic that a side takes long enough to read, as a round of it has just shown.

    The first one only says where to look: a process does in it what it does once. ``topic_of``
    returns one of about so many records.
    """
    topic, is_cold = topic_of(lengths.probe), True
    while True:
        probed = round_of(topic)
        heat = "cold" if is_cold else "warm"
        say(f"{heat} probe, not counted: {name} {probed['rate']:,} a second")
        if not is_cold and (
            probed["seconds"] >= lengths.shortest * MARGIN or topic.records > lengths.most / 2
        ):
            return topic
        wanted = topic_of(probed["rate"] * lengths.seconds)
        if not is_cold and wanted.records <= topic.records:
            wanted = topic_of(2 * topic.records)
        topic, is_cold = wanted, False


def warmed(
    name: str,
    round_of: Callable[[_Work], Measured],
    topic_of: Callable[[float], _Work],
    lengths: Lengths,
    *,
    warm_ups: int,
    say: Callable[[str], None],
    steady: int = 1,
    margin: float = MARGIN,
) -> _Work:
    """Return a topic that a side takes long enough to read, once it reads it no faster than before.

    ``steady`` rounds in a row have to be no faster; after ``warm_ups`` rounds it is returned in any
    case. It is made longer where a round takes less than ``margin`` times the shortest.
    """
    topic = long_enough(name, round_of, topic_of, lengths, say=say)
    fastest, same = 0.0, 0
    for _ in range(warm_ups):
        warm = round_of(topic)
        say(f"warm-up, not counted: {name} {warm['rate']:,} a second")
        if warm["seconds"] < lengths.shortest * margin and topic.records <= lengths.most / 2:
            topic = topic_of(2 * topic.records)
        elif warm["rate"] < fastest * STEADY:
            same += 1
            if same >= steady:
                break
        else:
            same = 0
        fastest = max(fastest, warm["rate"])
    return topic


def _line(measured: Measured) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in measured.items())

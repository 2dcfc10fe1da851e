from __future__ import annotations

import os

import pytest

from benchmarks.growth import Sample, Sampler, more_of, percent_an_hour, usual
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for


def _samples(*sizes: float, every: float = 60.0) -> list[Sample]:
    return [Sample(number * every, int(size), 10, 20) for number, size in enumerate(sizes)]


def test_steady_growth_is_told_in_percent_of_the_mean_an_hour() -> None:
    """100 MB that grow by 1 MB a minute grow by 60 % of the mean in an hour."""
    sizes = [100e6 + 1e6 * minute for minute in range(-10, 11)]
    assert percent_an_hour(_samples(*sizes)) == pytest.approx(60.0)


def test_a_saw_is_no_growth() -> None:
    """A series that ends where it began has a slope near zero."""
    assert abs(percent_an_hour(_samples(*[100e6, 110e6, 120e6, 110e6, 100e6] * 20))) < 1.0


def test_one_look_is_no_growth() -> None:
    """A run that was interrupted at once has one sample."""
    assert percent_an_hour(_samples(100e6)) == 0.0


def test_the_usual_number_is_the_median() -> None:
    """One thread more for a moment does not count."""
    samples = [Sample(float(n), 1, threads, 7) for n, threads in enumerate([20, 20, 25, 20, 19])]
    assert usual(samples) == (20, 7)


def test_names_that_grew_are_listed() -> None:
    """Medians decide on a name's growth, and unchanged names are left out."""
    before = [{"rdk:main": 2, "python": 1}]
    after = [{"rdk:main": 3, "python": 1}]
    assert more_of(before, before) == {}
    assert more_of(before, after) == {"rdk:main": 1}
    assert more_of(before, [{"python": 1}, {"python": 1}, *after]) == {"rdk:main": -2}


def test_a_process_is_looked_at_until_told_otherwise() -> None:
    """The sampler sees this very process, and names one that is not there any more."""
    sampler = Sampler({"this": os.getpid()}, 0.01)
    sampler.start()
    assert wait_for(lambda: len(sampler.samples["this"]) > 1, Deadline.after(10))
    sampler.stop()
    first = sampler.samples["this"][0]
    assert first.rss > 1 << 20
    assert first.threads >= 1
    assert first.descriptors >= 1
    assert sum(first.names.values()) >= 1
    assert sum(first.kinds.values()) >= 1
    assert not any(
        "[" in kind and kind.endswith("]") and kind[-2].isdigit() for kind in first.kinds
    )
    assert sampler.gone == set()

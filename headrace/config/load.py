"""From a file to a :class:`Config`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from headrace.config.document import parse, read
from headrace.config.expand import Expansion
from headrace.config.model.root import Config
from headrace.config.origin import Origin
from headrace.config.problems import problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.config.wording import Problem

#: Mistakes that are put into words, of which the first are told: each takes a moment.
_MOST_FORMULATED = 1000


def load(
    path: Path | str,
    environ: Mapping[str, str] | None = None,
    *,
    reads: Callable[[Path], None] = lambda _: None,
    also: Callable[[Config], Iterable[Problem]] = lambda _: (),
) -> Config:
    """Return the configuration in ``path``, checked as a whole and with all defaults filled in.

    ``environ`` takes the place of the process's environment; ``reads`` is told the path of each
    file before it is read; ``also`` may find more that is wrong with what was read. Blocks while it
    reads the file and those that it refers to. Raises ConfigError with every mistake that could be
    found; nothing outside the files is touched, and no import path is imported.
    """
    origin = Origin.of(Path(path), environ)
    reads(origin.file)
    document = parse(read(origin.file), origin.file)
    expansion = Expansion(origin.environ, origin.folder, reads)
    values = expansion.expand(document.values)
    try:
        config = Config.model_validate(values, context=origin)
    except ValidationError as error:
        found = _without_consequences(
            expansion.failures, islice(problems(error, Config), _MOST_FORMULATED)
        )
        count = max(len(found), error.error_count()) if len(found) >= _MOST_FORMULATED else None
        raise document.error(found, count) from None
    found = expansion.failures or list(also(config))
    if found:
        raise document.error(found)
    return config


def _without_consequences(failures: list[Problem], others: Iterable[Problem]) -> list[Problem]:
    """Leave out what else is wrong with a value that could not be expanded."""
    failed = tuple(steps for steps, _ in failures)
    return failures + [
        problem for problem in others if not any(problem[0][: len(f)] == f for f in failed)
    ]

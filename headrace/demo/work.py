"""Where the demo works: a folder that the user named and that stays, or one that is removed."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, final

import structlog

from headrace.demo.errors import DemoError

if TYPE_CHECKING:
    from types import TracebackType


@final
class WorkDirectory:
    """The folder of one run. Leaving it as a context manager removes a folder that was made.

    It stays with ``keep``, if the user named it, and after an error, whose message then names it;
    Ctrl-C is no error. The demo's own log goes to a file in it.

    Raises:
        DemoError: the named folder has something in it already, or cannot be made.
    """

    def __init__(self, chosen: Path | None) -> None:
        self.path = _made() if chosen is None else _empty(chosen.absolute())
        self.keep = chosen is not None
        self._log = (self.path / "demo.log").open("w", encoding="utf-8")
        self._logged_before = structlog.get_config()
        structlog.configure(
            logger_factory=structlog.PrintLoggerFactory(self._log),
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        )

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.path / "table"

    @property
    def stack(self) -> Path:
        """The folder of ZooKeeper and Kafka."""
        return self.path / "stack"

    def __enter__(self) -> WorkDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        structlog.configure(**self._logged_before)
        self._log.close()
        if not self.keep and not isinstance(error, Exception):
            # a JVM that has lost its parent may still be removing its own files
            shutil.rmtree(self.path, ignore_errors=True)


def _made() -> Path:
    return Path(tempfile.mkdtemp(prefix="headrace-demo-"))


def _empty(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        used = any(path.iterdir())
    except OSError as error:
        raise DemoError(f"{path} cannot be used: {error.strerror}; choose another --dir") from error
    if used:
        raise DemoError(f"{path} is not empty; choose another --dir, or delete it")
    return path

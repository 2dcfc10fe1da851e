"""The session that all channels on an engine share, opened by the engine's extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.extras import Extra, required
from headrace.core.imports import load_own

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.core.clock import Deadline

#: The functions of the extension: a configuration in; the settings, and a session of these, out.
_SETTINGS = "headrace.extensions.spark.settings:settings_of"
_OPEN = "headrace.extensions.spark.runtime:SparkRuntime"


@dataclass(frozen=True, slots=True)
class SparkSnapshot:
    """The session at one moment. ``generation`` counts the JVMs.

    ``cores`` tasks of a channel run at once.
    """

    running: bool
    pid: int | None
    generation: int
    cores: int


class EngineSession(Protocol):
    """A session as the controller sees it. Channels take what else they need from it."""

    def snapshot(self) -> SparkSnapshot:
        """Return what metrics and the status page show of it. Any thread."""
        ...

    def replace(self, settings: Any, deadline: Deadline) -> bool:
        """Build it again with other settings between two jobs; False: no job ended in time."""
        ...

    def retire(self) -> None:
        """End the session after the running job, because its driver is to be replaced."""
        ...

    def stop(self, deadline: Deadline) -> None:
        """End it, and what it runs."""
        ...


def session_settings(desired: Config) -> Any:
    """Return the settings of the session that a configuration asks for; equal where it may stay.

    Raises:
        ConfigError: they cannot be used.
    """
    with required(Extra.SPARK, "a channel of type spark"):
        return load_own(_SETTINGS)(desired)


def open_session(desired: Config) -> EngineSession:
    """Return a session, which starts when a channel first needs it.

    Raises:
        ConfigError: its settings cannot be used.
        StartError: Spark is not installed.
    """
    with required(Extra.SPARK, "a channel of type spark"):
        session: EngineSession = load_own(_OPEN)(session_settings(desired))
    return session

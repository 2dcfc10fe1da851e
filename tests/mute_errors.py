"""Errors of users' code that cannot be asked for what they say."""

from __future__ import annotations

from typing import Any

from typing_extensions import override


class _Meta(type):
    """A class of classes that says nothing of them."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("name")

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise SystemExit("module")


class Mute(Exception, metaclass=_Meta):  # noqa: N818 - says nothing, not even that
    """An exception of which whatever is asked raises ``how``."""

    def __init__(self, how: type[BaseException]) -> None:
        super().__init__()
        self.how = how

    def _raise(self) -> Any:
        raise self.how("x")

    @override
    def __str__(self) -> str:
        return str(self._raise())

    @override
    def __repr__(self) -> str:
        return str(self._raise())

    @override
    def __reduce__(self) -> Any:
        return self._raise()

    __class__ = property(_raise)
    __notes__ = property(_raise)


class MuteExit(BaseException, metaclass=_Meta):
    """The same of one that is no Exception."""

    def __init__(self, how: type[BaseException]) -> None:
        super().__init__()
        self.how = how

    @override
    def __str__(self) -> str:
        raise self.how("x")


#: What an error's own code may raise.
WAYS = [ValueError, SystemExit, KeyboardInterrupt, RecursionError]

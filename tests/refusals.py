"""Assert which refusal a request to a running process is answered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import Refusal, RefusedError

if TYPE_CHECKING:
    from _pytest.raises import RaisesExc


def raises_refused(refusal: Refusal, match: str | None = None) -> RaisesExc[RefusedError]:
    """Return the block that has to raise this refusal, with a text that matches."""
    return pytest.raises(RefusedError, match=match, check=lambda error: error.refusal is refusal)

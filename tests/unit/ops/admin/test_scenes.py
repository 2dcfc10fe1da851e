from __future__ import annotations

import pytest

from tests.web.scenes import SCENES


@pytest.mark.parametrize("name", sorted(SCENES))
def test_what_the_page_is_tested_with_is_what_the_api_answers(name: str) -> None:
    """The made-up processes of the browser's tests fit the API's models as they are now."""
    process = SCENES[name]()
    for answer in (process.status, process.recent, process.members, process.history):
        assert answer()

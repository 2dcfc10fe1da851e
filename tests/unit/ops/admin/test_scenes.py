from __future__ import annotations

import pytest

from tests.web.scenes import SCENES


@pytest.mark.parametrize("name", sorted(SCENES))
def test_scenes_of_the_page_fit_the_api_s_models(name: str) -> None:
    """The processes of the browser's tests are valid answers of the present API."""
    process = SCENES[name]()
    for answer in (process.status, process.recent, process.members, process.history):
        assert answer()

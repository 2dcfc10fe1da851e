"""Take the pictures of the documentation: python -m tests.web.screenshots docs/images."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.web.browser import chromium
from tests.web.scenes import SCENES
from tests.web.stage import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.web.stage import Stage


@dataclass(frozen=True)
class Picture:
    """One picture. ``away``: the process has gone meanwhile; ``height`` 0: the whole page."""

    name: str
    scene: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 0
    away: bool = False


PICTURES = (
    Picture("status-index", "healthy", height=720),
    Picture("status-healthy", "healthy"),
    Picture("status-failing", "failing", height=1000),
    Picture("status-failing-dark", "failing", "dark", height=1000),
    Picture("status-paused", "paused", height=1000),
    Picture("status-thousand", "large", height=1100),
    Picture("status-topology", "topology", height=900),
    Picture("status-away", "healthy", height=700, away=True),
    Picture("status-phone", "failing", width=360, height=1600),
    Picture("status-phone-dark", "large", "dark", width=360, height=1600),
)


def take(browser: Browser, stage: Stage, picture: Picture, folder: Path) -> Path:
    """Take one picture and return its file."""
    stage.process = SCENES[picture.scene]()
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height or 1000},
        color_scheme=picture.scheme,
        device_scale_factor=1.5 if picture.width < 600 else 1,
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(stage.url)
    page.wait_for_selector("#partitions tbody tr")
    page.wait_for_selector("#live[data-state=live]")
    if picture.away:
        page.route("**/api/**", lambda route: route.abort())
        page.wait_for_selector("#away:not([hidden])", timeout=60_000)
    file = folder / f"{picture.name}.png"
    page.screenshot(path=file, full_page=picture.height == 0)
    context.close()
    return file


def main(arguments: list[str]) -> int:
    """Take the pictures, or those named after the folder."""
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder, *names = arguments
    Path(folder).mkdir(parents=True, exist_ok=True)
    with chromium() as browser, serving(SCENES["healthy"]()) as stage:
        for picture in PICTURES:
            if not names or picture.name in names:
                sys.stdout.write(f"{take(browser, stage, picture, Path(folder))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

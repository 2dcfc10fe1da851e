"""A visit to the page, and everything that the browser complained of meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, BrowserContext, Page, Request

AXE = Path(__file__).parent / "vendor" / "axe.min.js"

#: Seconds after which a test gives up.
WAIT = 30.0

#: What axe looks at: WCAG 2.2 up to AA, and what is good practice beside it.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Visits:
    """Opens pages, each in a browser of its own as far as it can tell, and notes complaints."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._complaints: list[str] = []
        self._away = False

    def open(
        self,
        url: str,
        *,
        wait: str = "#live[data-state=live]",
        before: Callable[[Page], None] | None = None,
        **options: Any,
    ) -> Page:
        """Visit an address with a window of 1280 by 900 points, or other ``options``.

        ``before`` prepares the page.
        """
        options = {"viewport": {"width": 1280, "height": 900}, "timezone_id": "UTC", **options}
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        page = context.new_page()
        host = urlsplit(url).netloc
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self._complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._elsewhere(request, host))
        if before is not None:
            before(page)
        page.goto(url)
        page.wait_for_selector(wait)
        return page

    def expect_failures(self) -> None:
        """Take it as right from now on that requests fail, which the browser notes by itself."""
        self._away = True

    def _console(self, kind: str, text: str) -> None:
        foreseen = self._away and text.startswith("Failed to load resource")
        if kind in {"error", "warning"} and not foreseen:
            self._complaints.append(f"{kind}: {text}")

    def _elsewhere(self, request: Request, host: str) -> None:
        if urlsplit(request.url).netloc != host:
            self._complaints.append(f"asked for {request.url}")

    def complaints(self) -> list[str]:
        """Return errors, broken policies and requests to other hosts."""
        return self._complaints

    def close(self) -> None:
        """Leave."""
        for context in self._contexts:
            context.close()


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait until something is so; Playwright's own way needs scripts that the page forbids."""
    deadline = Deadline.after(WAIT)
    while not condition():
        assert not deadline.expired, page.inner_text("body")
        page.wait_for_timeout(50)


def accessibility(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is now."""
    # evaluated by the browser's own tools, which the page's policy does not bind
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "async (tags) => (await axe.run(document, {runOnly: tags})).violations", _RULES
    )
    return [
        f"{each['id']}: {node['target']}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


def overflow(page: Page) -> int:
    """Return how many points the page is wider than the window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def rows(page: Page) -> list[list[str]]:
    """Return the texts of the table of partitions."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    found = page.locator("#partitions tbody tr").evaluate_all(script)
    return [[str(text) for text in row] for row in found]

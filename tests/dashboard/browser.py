"""A real browser for tests of the page: Debian's chromium, driven by playwright."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright

PATIENCE_MS = 60_000  # machines may be slow and busy
CHROMIUM = os.environ.get("OUTPLAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
WIDE, NARROW = (1440, 900), (360, 740)
_ROOT = Path(__file__).parents[2]
_OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=_OPTIONS)


def find_axe() -> Path | None:
    """axe.min.js: of $OUTPLAY_AXE, of a node_modules folder, or of a Python package that has it."""
    chosen = os.environ.get("OUTPLAY_AXE")
    places = [Path(chosen)] if chosen else [_ROOT / "node_modules" / "axe-core" / "axe.min.js"]
    for name in ("axe_playwright_python", "axe_core_python"):
        found = importlib.util.find_spec(name)
        places += (
            [path for folder in (found.submodule_search_locations or []) for path in Path(folder).glob("axe*.js")]
            if found
            else []
        )
    return next((path for path in places if path.is_file()), None)


@dataclass
class Visit:
    """A page, and what went wrong on it."""

    page: Page
    url: str
    expected: str = ""  # a regular expression: errors that belong to the test
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def go(self, view: str, *runs: str, **params: object) -> None:
        """Open a view. The page is loaded again, as from a shared link."""
        pairs = [*(("run", run) for run in runs), *((name, str(value)) for name, value in params.items())]
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/#/{view}" + (f"?{query}" if query else ""))

    def watch(self) -> None:
        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.errors.append(f"{message.text} {message.location.get('url', '')}")

        self.page.on("console", note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def check(self) -> None:
        """No errors in the console, and no request to another host."""
        errors = [error for error in self.errors if not (self.expected and re.search(self.expected, error))]
        assert errors == []
        assert self.hosts - {"", urlsplit(self.url).netloc} == set()


@contextmanager
def visiting(browser: Browser, url: str, size: tuple[int, int] = WIDE, expected: str = "") -> Iterator[Visit]:
    """A new visitor: no cookies, nothing stored. The page is checked at the end."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    try:
        visit = Visit(context.new_page(), url, expected)
        visit.watch()
        yield visit
        visit.check()
    finally:
        context.close()

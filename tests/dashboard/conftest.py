"""A browser, and a dashboard with real runs and a study: for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outplay import tune
from outplay.dashboard import DashboardServer, DashboardSettings
from tests.dashboard.common import run_id, trained

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.dashboard.browser import Visit


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Skips the tests that need it, if there is none."""
    pytest.importorskip("playwright", reason="THE PAGE IS NOT TESTED: pip install playwright")
    from playwright.sync_api import sync_playwright

    from tests.dashboard.browser import CHROMIUM, launch

    if CHROMIUM is None:
        pytest.skip("THE PAGE IS NOT TESTED: no chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def _objective(config: dict[str, Any]) -> dict[str, float]:
    return {"score": -((config["x"] - 1) ** 2) + config["y"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def runs(results: Path) -> list[str]:
    """Two seeds of one configuration, another learning rate; and a study."""
    space = {"x": tune.uniform(0, 2), "y": tune.choice([0, 1])}
    tune.run(_objective, config=space, metric="score", mode="max", num_samples=4, storage_path=str(results), verbose=0)
    return [
        run_id(trained(results, iterations=8, config={"seed": 0})),
        run_id(trained(results, iterations=8, config={"seed": 1})),
        run_id(trained(results, iterations=6, name="other", config={"seed": 0, "lr": 0.01})),
    ]


@pytest.fixture(scope="module")
def server(results: Path, runs: list[str]) -> Iterator[DashboardServer]:
    with DashboardServer(DashboardSettings(results=results, port=0)) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, server: DashboardServer) -> Iterator[Visit]:
    from tests.dashboard.browser import visiting

    with visiting(browser, server.url) as found:
        yield found

"""What each view of the page shows, in a real browser with real runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.cli.common import wait_for

pytest.importorskip("playwright", reason="THE PAGE IS NOT TESTED: pip install playwright")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.browser import Visit


# Charts.


@pytest.mark.parametrize("size", [(360, 740), (600, 740), (1100, 800), (1260, 800)])
@pytest.mark.parametrize("view", ["charts", "run", "runs"])
def test_the_menu_of_metrics_is_not_cut_off(visit: Visit, runs: list[str], size: tuple[int, int], view: str) -> None:
    if view == "runs" and size[0] <= 1080:
        pytest.skip("the charts have a view of their own")
    page = visit.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit.go(view, *runs[:1])
    page.locator(".figure .u-over").first.wait_for()
    page.get_by_role("button", name="Metrics", exact=True).click()
    page.locator(".menu .option").nth(3).wait_for()
    holder, menu = page.locator("main.view").bounding_box(), page.locator(".menu").bounding_box()
    assert holder is not None
    assert menu is not None
    assert holder["x"] <= menu["x"] <= menu["x"] + menu["width"] <= holder["x"] + holder["width"]
    assert holder["y"] <= menu["y"] <= menu["y"] + menu["height"] <= holder["y"] + holder["height"]
    corners = """menu => {
        const { left, right, top, bottom } = menu.getBoundingClientRect();
        const places = [[left + 12, top + 12], [right - 12, top + 12], [left + 12, bottom - 12], [right - 12, bottom - 12]];
        return places.every(([x, y]) => menu.contains(document.elementFromPoint(x, y)));
    }"""
    assert page.locator(".menu").evaluate(corners)  # nothing clips it or lies over it


def test_the_last_chart_cannot_be_removed(visit: Visit, runs: list[str]) -> None:
    """Without a metric in the address, the usual charts would come back."""
    page = visit.page
    visit.go("charts", *runs, metric="episode_return_mean")
    page.locator(".figure .u-over").wait_for()
    remove = page.get_by_role("button", name=re.compile("Remove the chart"))
    assert remove.count() == 0
    page.get_by_role("button", name="Metrics", exact=True).click()
    page.get_by_role("checkbox", name="Episode length").check()
    wait_for(lambda: remove.count() == 2)
    page.keyboard.press("Escape")
    remove.first.click()
    wait_for(lambda: page.locator(".figure").count() == 1)
    assert remove.count() == 0


# Studies.


def test_the_figures_of_a_study_are_explained(visit: Visit, results: Path) -> None:
    study = next(path.parent.name for path in results.glob("*/study.json"))
    visit.go("study", study=study)
    history = visit.page.get_by_role("region", name="History")
    assert "Each dot is a trial." in history.locator(".note").inner_text()
    importances = visit.page.get_by_role("region", name="Importances")
    assert importances.inner_text().count("Not shown: ") == 1


# The agent plays.


def test_a_seed_that_is_no_integer_is_refused(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("watch", runs[0], seed="-3")
    page.locator(".cover").get_by_text("the seed must be an integer of at least 0").wait_for()
    again = page.locator("[data-command=restart]")
    again.click()
    page.locator(".toast").get_by_text("The seed must be an integer of at least 0.", exact=True).wait_for()
    page.locator(".transport .seed").fill("99999999999999999999")
    again.click()
    page.locator(".toast").get_by_text("The seed must be at most 9007199254740991.", exact=True).wait_for()
    assert page.url.endswith("seed=-3")  # it has no other seed that is wrong
    page.locator(".transport .seed").fill("3")
    again.click()  # the player is started
    page.locator(".counters > div", has_text="Seed").locator("dd", has_text=re.compile("^3$")).wait_for()
    assert page.url.endswith("seed=3")
    assert page.locator(".transport .seed").get_attribute("aria-invalid") is None

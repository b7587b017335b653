"""What each view of the page shows, in a real browser with real runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="THE PAGE IS NOT TESTED: pip install playwright")

if TYPE_CHECKING:
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

"""What each view of the page shows, in a real browser with real runs."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from outplay.dashboard import DashboardServer, DashboardSettings
from outplay.runs.folder import RunFolder
from tests.cli.common import wait_for

pytest.importorskip("playwright", reason="THE PAGE IS NOT TESTED: pip install playwright")

from tests.dashboard.browser import visiting

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator

    from tests.dashboard.browser import Visit


# Charts.


# Two of them here; `make test-all` runs them all.
MENUS = [
    pytest.param(view, size, marks=[] if (view, size[0]) in {("charts", 360), ("run", 1100)} else [pytest.mark.slow])
    for view in ("charts", "run", "runs")
    for size in ((360, 740), (600, 740), (1100, 800), (1260, 800))
]


@pytest.mark.parametrize(("view", "size"), MENUS)
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
        const isThere = (x, y) => menu.contains(document.elementFromPoint(x, y));
        return [left + 12, right - 12].every((x) => [top + 12, bottom - 12].every((y) => isThere(x, y)));
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


def test_a_copied_link_names_what_is_shown(visit: Visit, runs: list[str]) -> None:
    """The address of the newest runs would show others later."""
    page = visit.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.go("charts", smooth=0.5)
    page.locator(".figure .u-over").nth(1).wait_for()
    page.get_by_role("button", name="Copy a link to this view").click()
    page.locator(".toast").wait_for()
    assert "run=" not in page.url
    named = parse_qs(urlsplit(page.evaluate("navigator.clipboard.readText()")).fragment.partition("?")[2])
    assert set(named["run"]) == set(runs)
    figures = page.locator(".figure").evaluate_all("figures => figures.map(each => each.dataset.metric)")
    assert named["metric"] == figures
    assert named["smooth"] == ["0.5"]


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


@pytest.mark.parametrize("size", [(360, 740), (1260, 900), (1440, 900)])
def test_texts_of_figures_are_readable(visit: Visit, results: Path, size: tuple[int, int]) -> None:
    visit.page.set_viewport_size({"width": size[0], "height": size[1]})
    visit.go("study", study=next(path.parent.name for path in results.glob("*/study.json")))
    visit.page.locator(".drawing svg .tick").first.wait_for()
    smallest = """texts => Math.min(...texts.map((text) => {
        const drawing = text.ownerSVGElement;
        return parseFloat(getComputedStyle(text).fontSize) * drawing.clientWidth / drawing.viewBox.baseVal.width;
    }))"""
    assert visit.page.locator(".drawing svg text").evaluate_all(smallest) >= 11
    overflow = "drawings => drawings.filter(each => each.scrollWidth > each.clientWidth).length"
    scrolled = visit.page.locator(".drawing").evaluate_all(overflow)
    assert (scrolled > 0) == (size[0] < 1000)


# The machine.


def pretend_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, *each: str) -> None:
    """GPUs as nvidia-smi tells them: percent, used and all memory in MiB."""
    program = folder / "nvidia-smi"
    lines = "\n".join(f"echo {index}, NVIDIA H200, '{told}'" for index, told in enumerate(each))
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def texts(meters: Locator) -> dict[str, str]:
    return dict(text.split("\n") for text in meters.all_inner_texts())


def test_gpus_are_shown_by_name_and_only_full_memory_warns(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(tmp_path, monkeypatch, "97, 71234, 143771", "[N/A], [N/A], 143771", "3, 143000, 143771")
    (tmp_path / "results").mkdir()
    with (
        DashboardServer(DashboardSettings(results=tmp_path / "results", port=0)) as server,
        visiting(browser, server.url) as visit,
    ):
        visit.go("runs")
        meters = visit.page.locator(".side .meter")
        meters.filter(has_text="VRAM 2").wait_for()
        shown = texts(meters)
        assert list(shown) == ["CPU", "Memory", "GPU 0", "VRAM 0", "GPU 2", "VRAM 2"]
        assert (shown["GPU 0"], shown["VRAM 0"]) == ("97%", "74.7 of 151 GB")
        assert visit.page.locator(".meter[title='NVIDIA H200']").count() == 4
        hot = texts(visit.page.locator(".side .meter", has=visit.page.locator(".hot")))
        assert hot.keys() - {"Memory"} == {"VRAM 2"}
        cut = "meters => meters.filter(each => each.firstChild.scrollWidth > each.firstChild.clientWidth).length"
        assert meters.evaluate_all(cut) == 0


def test_the_machine_of_a_run_without_gpus_shows_those_that_are_there(
    browser: Browser, results: Path, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(tmp_path, monkeypatch, "40, 2000, 143771")
    folder = RunFolder(shutil.copytree(results / runs[0], tmp_path / "results" / "it" / "PPO_x"))
    used = {"cpus": 2, "cpu_percent": 50.0, "memory_used_bytes": 10**9, "memory_total_bytes": 4 * 10**9}
    own = {"run_cpu_percent": 150.0, "run_memory_bytes": 5 * 10**8, "gpus": []}
    folder.write_status({**(folder.status() or {}), "state": "running", "machine": {**used, **own}})
    folder.lock()
    try:
        with (
            DashboardServer(DashboardSettings(results=tmp_path / "results", port=0)) as server,
            visiting(browser, server.url) as visit,
        ):
            visit.go("run", "it/PPO_x")
            card = visit.page.get_by_role("region", name="Machine")
            card.get_by_text("This run uses 1.5 of 2 CPUs and 500 MB.").wait_for()
            card.get_by_text("VRAM").wait_for()
            assert texts(card.locator(".meter")) == {
                "CPU": "50%",
                "Memory": "1.0 of 4.0 GB",
                "GPU": "40%",
                "VRAM": "2.1 of 151 GB",
            }
    finally:
        folder.unlock()


def test_probabilities_are_drawn_over_time(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("watch", runs[0])
    area = page.get_by_role("region", name="Probabilities over time").locator(".u-over")
    area.wait_for()
    page.locator("[data-command=pause]").click()
    page.mouse.move(0, 0)
    area.hover()
    tip = page.get_by_role("region", name="Probabilities over time").locator(".tip-row")
    tip.nth(1).wait_for()
    rows = dict(text.split("\n") for text in tip.all_inner_texts())
    assert set(rows) == {"Action 0", "Action 1"}
    assert sum(map(float, rows.values())) == pytest.approx(1, abs=0.01)


def test_watch_leads_to_the_videos_of_the_run(visit: Visit, runs: list[str]) -> None:
    visit.go("watch", runs[0])
    visit.page.get_by_role("link", name="Videos 0").click()
    visit.page.get_by_role("region", name="Videos").get_by_text("No videos. To record one:").wait_for()
    inside = "card => card.getBoundingClientRect().top < innerHeight - 60"
    wait_for(lambda: visit.page.get_by_role("region", name="Videos").evaluate(inside))


# What is shown if the address, or the results folder, has nothing better.


def test_charts_without_runs_say_what_to_do(visit: Visit) -> None:
    visit.go("charts", run="none", x="nonsense")
    visit.page.get_by_text("No runs to draw").wait_for()
    visit.page.get_by_role("link", name="Choose runs").click()
    visit.page.wait_for_url(re.compile("#/runs"))


def test_an_unknown_axis_is_that_of_steps(visit: Visit, runs: list[str]) -> None:
    visit.go("charts", *runs, x="nonsense")
    visit.page.locator(".figure .u-over").first.wait_for()
    assert visit.page.get_by_role("button", name="Steps", exact=True).get_attribute("aria-pressed") == "true"


def test_a_comparison_names_a_run_that_is_gone(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("compare", "it/PPO_gone", runs[0])
    page.get_by_text("There is no run it/PPO_gone: it was moved or deleted").wait_for()
    page.get_by_role("combobox", name="Second run").select_option(runs[2])
    page.locator(".page .callout").wait_for(state="hidden")


# Numbers and times.


def test_neighbours_on_an_axis_have_different_labels(visit: Visit) -> None:
    program = """async () => {
        const { TIMES, axisLabels, clock } = await import(new URL("static/js/format.js", document.baseURI));
        const [steps, alike] = [[0, 1, 2, 3, 4], []];
        const check = (labels) => new Set(labels).size < labels.length && alike.push(labels);
        for (const offset of [0, 3, 99, 12345, -4]) {
            for (let power = -8; power < 12; power += 1) {
                for (const increment of [1, 2, 2.5, 5].map((factor) => factor * 10 ** power)) {
                    check(axisLabels(steps.map((step) => (offset + step) * increment), increment));
                }
            }
            for (const increment of TIMES) check(steps.map((step) => clock((offset + step) * increment, increment)));
        }
        return {
            alike,
            numbers: [[0.05, 0.6, 0.65, 0.7], [250, 0, 250, 1000], [2500, 0, 2500, 5000, 10000], [1e-5, 0, 1e-5]]
                .map(([increment, ...values]) => axisLabels(values, increment).join(" ")),
            times: [0, 30, 60, 90, 3600, 5400, 5405, 86400, 108000].map((seconds) => clock(seconds)).join(" "),
            exact: clock(5405.25, 0.05),
        };
    }"""
    visit.go("runs")
    assert visit.page.evaluate(program) == {
        "alike": [],
        "numbers": ["0.60 0.65 0.70", "0 250 1,000", "0 2.5k 5.0k 10.0k", "0 1e-5"],
        "times": "0s 30s 1m 1m30 1h 1h30 1h30m05 1d 1d06h",
        "exact": "1h30m05.25",
    }


def test_how_long_ago_something_was_stays_true(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    page.clock.install()
    visit.go("run", *runs[:1])
    written = page.get_by_role("region", name="Checkpoints").locator("time").first
    written.wait_for()
    page.clock.fast_forward("05:00:00")
    wait_for(lambda: written.inner_text() == "5 h ago")

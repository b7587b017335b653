"""The page in a real browser, with real runs: what a person does with it."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from outplay.dashboard import DashboardServer, DashboardSettings
from tests.cli.common import wait_for
from tests.dashboard.common import get

pytest.importorskip("playwright", reason="THE PAGE IS NOT TESTED: pip install playwright")

from tests.dashboard.browser import CHROMIUM, NARROW, PATIENCE_MS, WIDE, Visit, find_axe, visiting

if CHROMIUM is None:
    pytest.skip("THE PAGE IS NOT TESTED: no chromium; apt-get install chromium", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

TOKEN = "a-token-of-the-tests"
ENDLESS = """
from-the-page:
  env: CartPole-v1
  run: PPO
  stop: {timesteps_total: 100000000}
  checkpoint_at_end: true
  config: {num_workers: 0, num_envs: 4, train_batch_size: 400, sgd_minibatch_size: 200, num_sgd_iter: 1}
"""


def rows(visit: Visit) -> Locator:
    return visit.page.locator(".run-row")


def hover(visit: Visit, metric: str = "episode_return_mean") -> Locator:
    """The values under the pointer in the middle of a chart."""
    figure = visit.page.locator(f'.figure[data-metric="{metric}"]')
    visit.page.mouse.move(0, 0)
    figure.locator(".u-over").hover()
    return figure.locator(".tip:not(.hidden)")


# The list.


def test_runs_are_found_selected_and_opened_by_keyboard(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("runs")
    rows(visit).nth(2).wait_for()
    assert rows(visit).count() == 3
    assert set(rows(visit).evaluate_all("rows => rows.map(row => row.dataset.id)")) == set(runs)
    page.keyboard.press("/")
    page.keyboard.type("lr=0.01")
    wait_for(lambda: rows(visit).count() == 1)
    assert rows(visit).get_attribute("data-id") == runs[2]
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")  # all of them are selected at first
    wait_for(lambda: page.locator(".run-row.selected").count() == 0)
    selected = page.url
    page.goto("about:blank")
    page.goto(selected)  # the address has the search and the selection
    rows(visit).first.wait_for()
    assert (rows(visit).count(), page.locator(".run-row.selected").count()) == (1, 0)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/run"))
    page.locator("h1", has_text="CartPole-v1").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")


def test_the_theme_is_kept(visit: Visit) -> None:
    visit.go("runs")
    visit.page.locator(".side [data-theme-switch]").click()
    visit.page.reload()
    rows(visit).first.wait_for()
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"


# Charts.


def test_runs_are_overlaid_zoomed_and_smoothed(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("charts", *runs[:2], metric="episode_return_mean")
    wait_for(lambda: page.locator(".chip").count() == 2)
    wait_for(lambda: hover(visit).locator(".tip-row").count() == 2)
    area = page.locator(".figure .u-over").bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 40)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.75, area["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d.*to=\d"))
    page.locator(".figure .plot").focus()
    before = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: url != before)
    page.get_by_role("button", name="Reset the zoom").click()
    page.wait_for_url(lambda url: "from=" not in url)
    page.get_by_role("slider", name="Smoothing").fill("0.9")
    page.get_by_role("button", name="Log").click()
    page.get_by_role("button", name="Time").click()
    page.wait_for_url(re.compile(r"(?=.*smooth=0\.9)(?=.*log=1)(?=.*x=time_total_s)"))
    wait_for(lambda: hover(visit).locator(".tip-row").count() == 2)


def test_seeds_are_aggregated(visit: Visit, runs: list[str]) -> None:
    visit.go("charts", *runs, metric="episode_return_mean")
    wait_for(lambda: visit.page.locator(".chip").count() == 3)
    visit.page.get_by_role("switch", name="Seeds as bands").check()
    visit.page.locator(".chip", has_text="2 seeds").wait_for()
    assert visit.page.locator(".chip").count() == 2
    wait_for(lambda: hover(visit).locator(".tip-range").count() == 1)  # the bootstrap band


def test_settings_are_compared(visit: Visit, runs: list[str]) -> None:
    visit.go("compare", runs[0], runs[2])
    row = visit.page.locator("tr.differs", has=visit.page.get_by_role("rowheader", name="lr", exact=True))
    row.wait_for()
    assert row.locator("td").all_inner_texts()[1] == "0.01"


# Control.


@contextmanager
def ended(server: DashboardServer) -> Iterator[None]:
    """Processes that were started from the page end with the test, also if it fails."""
    try:
        yield
    finally:
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            for start in get(client, "/api/starts")["starts"]:
                with suppress(ProcessLookupError):
                    os.killpg(start["pid"], signal.SIGKILL)


@pytest.mark.slow
def test_a_run_is_started_grows_and_is_stopped(browser: Browser, server: DashboardServer, results: Path) -> None:
    with ended(server), visiting(browser, server.url, expected="422") as visit:
        page = visit.page
        visit.go("start", recipe="cartpole")
        page.get_by_role("button", name="cartpole-dqn").wait_for()
        editor = page.get_by_role("textbox", name="Experiment as YAML")
        wait_for(lambda: "num_env_groups" in editor.input_value())
        editor.fill("wrong: {env: CartPole-v1, run: PPOO}")
        page.locator("[data-command=start]").click()
        assert "PPOO" in page.locator("#editor-error").get_by_text("PPOO").inner_text()
        editor.fill(ENDLESS)
        page.locator("[data-command=start]").click()
        page.get_by_role("link", name="Open the run").click()
        page.locator("h1 .pill.running").wait_for()
        figure = page.locator('.figure[data-metric="episode_return_mean"]')

        def points() -> int:
            return int(figure.get_attribute("data-points") or 0)

        wait_for(lambda: points() > 2)
        before = points()
        wait_for(lambda: points() > before)  # the curve grows
        page.get_by_role("link", name="Watch", exact=True).click()
        page.get_by_role("button", name="Write a checkpoint").click()  # the run has none: it is played once it is there
        wait_for(lambda: int(page.locator("canvas.screen").get_attribute("data-frames") or 0) > 0)
        page.go_back()
        evaluation = page.get_by_role("region", name="Evaluation")
        evaluation.get_by_text("No recent evaluation.").wait_for()
        page.locator("[data-action=evaluate]").click()
        evaluation.get_by_text(re.compile(r"[\d.]+ mean return of 10 episodes")).wait_for()
        page.locator("[data-action=stop]").click()
        page.get_by_role("button", name="Cancel").click()
        page.locator("[data-action=stop]").click()
        page.get_by_role("button", name="Stop the run").click()
        page.locator(".toast").first.wait_for()
        page.locator("h1 .pill.stopped").wait_for()
        page.locator("td", has_text="checkpoint_").first.wait_for()  # it has written one first
        assert len(list(results.glob("from-the-page/*/checkpoints/*"))) >= 1


@pytest.mark.parametrize("view", ["run", "watch"])
def test_a_run_appears_on_its_page_as_soon_as_it_exists(
    visit: Visit, results: Path, runs: list[str], view: str
) -> None:
    late = results / "late" / f"PPO_{view}"
    visit.go(view, run=f"late/{late.name}")
    visit.page.get_by_text("There is no such run").wait_for()
    shutil.copytree(results / runs[0], late)
    try:
        visit.page.locator("h1", has_text="PPO").wait_for()
    finally:
        shutil.rmtree(late.parent)


# The agent plays.


def pixels(visit: Visit) -> str:
    return str(visit.page.locator("canvas.screen").evaluate("canvas => canvas.toDataURL()"))


def counter(visit: Visit, name: str) -> str:
    return visit.page.locator(".counters > div", has_text=name).locator("dd").inner_text()


def test_the_game_is_seen_moving(visit: Visit, runs: list[str]) -> None:
    page = visit.page
    visit.go("watch", runs[0])
    wait_for(lambda: int(page.locator("canvas.screen").get_attribute("data-frames") or 0) > 2)
    before = pixels(visit)
    wait_for(lambda: pixels(visit) != before)
    page.locator(".bar-row.chosen").wait_for()  # probabilities
    page.keyboard.press(" ")
    page.get_by_role("button", name="Play").wait_for()
    page.locator(".transport .seed").fill("7")
    page.locator("[data-command=restart]").click()
    wait_for(lambda: counter(visit, "Seed") == "7" and counter(visit, "Step") == "0")
    page.locator("[data-command=step]").click()
    wait_for(lambda: counter(visit, "Step") == "1")
    assert "seed=7" in page.url
    page.get_by_role("combobox", name="Checkpoint").select_option("checkpoint_000001")
    page.locator(".screen-box .badge", has_text="checkpoint_000001").wait_for()


# Studies.


def test_a_study_has_trials_and_figures(visit: Visit, server: DashboardServer, runs: list[str]) -> None:
    page = visit.page
    visit.go("studies")
    page.locator(".study-card").click()
    page.locator(".trials tbody tr").nth(3).wait_for()
    page.locator(".drawing svg").first.wait_for()
    page.get_by_role("button", name="x", exact=True).click()
    page.locator("th[aria-sort=descending]").wait_for()
    column = page.locator(".trials thead th").all_inner_texts()
    shown = [float(text) for text in page.locator(f".trials td:nth-child({column.index('x ↓') + 1})").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)


def test_figures_are_sanitized(browser: Browser, server: DashboardServer) -> None:
    html = (
        "<svg viewBox='0 0 1 1' onload='alert(1)'><script>alert(2)</script><a href='javascript:alert(3)'>x</a>"
        "<foreignObject><img src=x onerror='alert(4)'></foreignObject>"
        "<path d='M0 0' style='fill:url(//a)' class='line'/></svg>"
    )
    program = """async (html) => {
        const { sanitized } = await import(new URL("static/js/sanitize.js", document.baseURI));
        const holder = document.createElement("div");
        holder.append(sanitized(html));
        return holder.innerHTML;
    }"""
    with visiting(browser, server.url, expected="Content Security Policy") as visit:  # it refuses the rest
        visit.go("runs")
        shown = visit.page.evaluate(program, html)
    assert shown == '<svg viewBox="0 0 1 1"><path d="M0 0" class="line"></path></svg>'


# Who may do what, and what the page says if something is missing.


@contextmanager
def another_origin() -> Iterator[str]:
    """The address of an empty page of another server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title>")

        def log_message(self, *_: object) -> None:
            pass

    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{other.server_port}/"
    finally:
        other.shutdown()
        other.server_close()
        thread.join()


def test_pages_of_other_servers_are_refused(
    browser: Browser, server: DashboardServer, runs: list[str], results: Path
) -> None:
    attack = """async ([url, run]) => {
        const body = JSON.stringify({ run, action: "stop" });
        const headers = { "Content-Type": "application/json" };
        const answers = [];
        for (const options of [{ mode: "no-cors", method: "POST", body }, { method: "POST", body, headers }, {}]) {
            const path = options.method ? "/api/control" : "/api/overview";
            answers.push(await fetch(url + path, options).then((answer) => answer.type, () => "refused"));
        }
        const socket = new WebSocket(url.replace("http", "ws") + "/api/play?run=" + encodeURIComponent(run));
        answers.push(await new Promise((resolve) => {
            socket.onopen = () => resolve("open");
            socket.onerror = () => resolve("refused");
        }));
        return answers;
    }"""
    with another_origin() as address, visiting(browser, address, expected=".") as visit:
        visit.page.goto(address)
        answers = visit.page.evaluate(attack, [server.url, runs[0]])
        visit.hosts.clear()  # the attack's
    assert answers == ["refused"] * 4
    assert list((results / runs[0] / "control").glob("*")) == []
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        body = {"run": runs[0], "action": "checkpoint"}
        assert client.post("/api/control", json=body, headers={"Origin": "http://example.org"}).status_code == 403


def test_without_its_token_the_page_says_how_to_get_in(browser: Browser, results: Path, runs: list[str]) -> None:
    with (
        DashboardServer(DashboardSettings(results=results, port=0, token=TOKEN)) as server,
        visiting(browser, server.url, expected="401") as visit,
    ):
        visit.go("runs", q="lr=0.01")
        visit.page.get_by_text("This dashboard needs its token").wait_for()
        assert rows(visit).count() == 0
        visit.page.get_by_role("textbox", name="Token").fill(f"{server.url}/?token={TOKEN}")
        visit.page.get_by_role("button", name="Open").click()
        rows(visit).first.wait_for()
        assert rows(visit).count() == 1  # the view of the link
        assert TOKEN not in visit.page.url


def test_an_empty_folder_and_a_lost_connection(browser: Browser, tmp_path: Path) -> None:
    settings = DashboardSettings(results=tmp_path, port=0)
    with visiting(browser, "", expected="ERR_|Failed to load") as visit:
        with DashboardServer(settings) as server:
            visit.url = server.url
            visit.go("runs")
            visit.page.get_by_text("outplay train cartpole").wait_for()
            visit.page.locator(".side .link-state[data-state=live]").wait_for()
            port = int(server.url.rsplit(":", 1)[1])
        visit.page.locator(".banner", has_text="Reconnecting").wait_for()
        with DashboardServer(DashboardSettings(results=tmp_path, port=port)):
            visit.page.locator(".side .link-state[data-state=live]").wait_for()
            visit.page.locator(".banner").wait_for(state="hidden")


# Everyone can use it.

VIEWS = {
    "runs": ".run-row",
    "charts": ".figure .u-over",
    "run": ".stage-list",
    "watch": ".bar-row",
    "compare": "tr.differs",
    "studies": ".study-card",
    "study": ".drawing svg",
    "start": ".recipe",
}


def open_view(visit: Visit, view: str, runs: list[str], results: Path) -> None:
    chosen = {"run": runs[:1], "watch": runs[:1], "compare": [runs[0], runs[2]]}.get(view, [])
    study = next(path.parent.name for path in results.glob("*/study.json"))
    visit.go(view, *chosen, **({"study": study} if view == "study" else {}))
    visit.page.locator(VIEWS[view]).first.wait_for(timeout=PATIENCE_MS)


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_is_accessible_and_fits(
    view: str, browser: Browser, server: DashboardServer, runs: list[str], results: Path
) -> None:
    axe = find_axe()
    with visiting(browser, server.url) as visit:
        open_view(visit, view, runs, results)
        visit.page.evaluate(axe.read_text() if axe else "0")
        for (width, height), theme in [(WIDE, "light"), (NARROW, "dark")]:
            visit.page.set_viewport_size({"width": width, "height": height})
            visit.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            visit.page.wait_for_timeout(200)  # colours change within 120 ms
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
            found = visit.page.evaluate("axe.run(document, {resultTypes: ['violations']})") if axe else {}
            problems = [
                (each["id"], [node["target"] for node in each["nodes"]]) for each in found.get("violations", [])
            ]
            assert problems == [], (theme, width)
    if axe is None:
        pytest.skip("ACCESSIBILITY IS NOT TESTED: no axe-core; pip install axe-playwright-python, or set OUTPLAY_AXE")

"""`outplay report`: complete, true, self-contained, and safe against what a run folder contains."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from outplay import tune
from outplay.plotting.facts import facts_of
from outplay.plotting.report import argument_of, page, write_report
from outplay.runs.folder import RunFolder
from outplay.runs.run import Run
from tests.cli.common import Outcome
from tests.cli.conftest import cli as cli
from tests.plotting.common import recorded_run
from tests.runs.common import make

VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    """The elements of a page. Fails if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for each, text in self.texts if each == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {"evaluation_interval": 2, "evaluation_duration": 2, "seed": 7, "lr": 0.01, "info_metrics": []}
    results = tmp_path_factory.mktemp("runs")
    run = make(results, stop={"training_iteration": 4}, checkpoint_freq=2, config=config, description="A test of <it>.")
    run.train()
    return run


def test_a_report_has_what_there_is_to_know(run: Run, tmp_path: Path) -> None:
    write_report(run.folder, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    found = Page(text)
    assert found.of("h1") == ["PPO on CartPole-v1"]
    assert found.of("h2") == [
        *("Learning curve", "Metrics", "Stages", "Run", "Checkpoints"),
        *("Settings that differ from the defaults", "Commands"),
    ]
    last = run.folder.metrics().results[-1]
    tiles = dict(zip(found.of("dt"), found.of("dd"), strict=True))
    assert tiles["state"] == "finished"
    assert tiles["mean return"] == f"{last['episode_return_mean']:.1f}"
    assert tiles["mean return (evaluation)"] == f"{last['evaluation']['episode_return_mean']:.1f}"
    assert tiles["environment steps"] == "160"
    assert "A test of &lt;it&gt;." in text
    cells = found.of("td")
    assert cells[cells.index("lr") : cells.index("lr") + 3] == ["lr", "0.01", "0.001"]
    assert cells[cells.index("seed") : cells.index("seed") + 3] == ["seed", "7", "0"]
    assert cells.index("lr") < cells.index("gamma")
    assert {"checkpoint_000002", "checkpoint_000004"} <= {*cells}
    assert text.count("★ best") == 1
    assert {"policy loss", "KL divergence", "mean episode length (steps)"} <= {*found.of("figcaption")}
    assert {"collect", "learn", "act", "evaluate"} <= {*cells}
    commands = "\n".join(found.of("pre"))
    assert f"outplay evaluate {run.folder.path}" in commands
    assert f"outplay train --resume {run.folder.path} --stop timesteps_total=320" in commands


def test_a_report_needs_no_network_and_is_reproducible(run: Run, tmp_path: Path) -> None:
    text = page(facts_of(run.folder), tmp_path / "report.html")
    assert text == page(facts_of(run.folder), tmp_path / "report.html")
    assert not re.search(r"https?:|@import|url\(|<script|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_shares_of_stages_add_up(run: Run) -> None:
    stages = facts_of(run.folder).stages()
    assert sum(share for name, _, share in stages if "/" not in name) == pytest.approx(1.0, abs=0.006)
    assert {"collect", "collect/act", "learn"} <= {name for name, *_ in stages}


@pytest.mark.parametrize("name", ["game.mp4", "game.gif"])
def test_a_small_video_is_embedded(run: Run, tmp_path: Path, name: str) -> None:
    copy = RunFolder(shutil.copytree(run.folder.path, tmp_path / "results" / "it" / "run"))
    copy.videos_path.mkdir()
    (copy.videos_path / name).write_bytes(b"film")
    found = Page(page(facts_of(copy), tmp_path / "report.html"))
    (source,) = [attributes["src"] for tag, attributes in found.tags if tag in ("video", "img")]
    assert source is not None
    assert base64.b64decode(source.partition("base64,")[2]) == b"film"


def test_a_large_video_is_a_link(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = RunFolder(shutil.copytree(run.folder.path, tmp_path / "results" / "it" / "a run"))
    copy.videos_path.mkdir()
    (copy.videos_path / "the #1 game.mp4").write_bytes(b"film")
    monkeypatch.setattr("outplay.plotting.report._MOST_EMBEDDED", 4)
    found = Page(page(facts_of(copy), tmp_path / "report.html"))
    (link,) = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    assert link == "results/it/a%20run/videos/the%20%231%20game.mp4"


def test_what_a_run_contains_is_escaped(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    more = {"more": lambda i: {"learner": {evil: float(i)}, "stages_s": {evil: 1.0}}}
    folder, _ = recorded_run(tmp_path, "poles", 1, [1.0, 2.0], note=evil, run="PPO", **more)
    body = yaml.safe_load((folder / "config.yaml").read_text())["poles"]
    body |= {"env": evil, "run": evil, "description": evil, "stop": {evil: 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump({evil: body}))
    status = {"pid": 1, "host": evil, "updated": evil, "training_iteration": 2, "timesteps_total": 2000}
    (folder / "status.json").write_text(json.dumps({"state": evil, "error": evil, "workers": evil, **status}))
    (folder / "videos").mkdir()
    (folder / "videos" / '"><script>.mp4').write_bytes(b"film")
    text = page(facts_of(RunFolder(folder)), tmp_path / "report.html")
    assert "<script" not in text
    found = Page(text)
    assert found.of("h1") == [f"{evil} on {evil}"]
    assert "The algorithm" in " ".join(found.of("p"))  # it is not installed: its defaults are unknown


def test_a_run_without_results_has_a_report(tmp_path: Path) -> None:
    folder, _ = recorded_run(tmp_path, "poles", 1, [])
    text = page(facts_of(RunFolder(folder)), tmp_path / "report.html")
    found = Page(text)
    assert "No episode has ended yet." in found.of("p")
    assert "There is no checkpoint yet." in found.of("p")
    assert dict(zip(found.of("dt"), found.of("dd"), strict=True))["state"] == "unknown"
    assert "outplay plot" in text
    assert "outplay evaluate" not in text


def test_a_failed_run_shows_its_error(tmp_path: Path) -> None:
    folder, _ = recorded_run(tmp_path, "poles", 1, [1.0])
    status = {"pid": 1, "host": "far", "updated": "2026-11-18T12:00:00", "training_iteration": 1, "timesteps_total": 1}
    status |= {"state": "failed", "error": "the pole fell", "progress": 0.25}
    (folder / "status.json").write_text(json.dumps(status))
    found = Page(page(facts_of(RunFolder(folder)), tmp_path / "report.html"))
    assert "the pole fell" in found.of("pre")
    assert "failed 25%" in found.of("dd")


def test_the_command(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    folder, _ = recorded_run(tmp_path / "results", "poles", 1, [1.0, 2.0])
    assert cli("report", "poles") == (0, f"page: {folder / 'report.html'}\n", "")
    assert cli("report", "poles", "-o", "it.html") == (0, "page: it.html\n", "")
    assert argument_of(folder) == f"poles/{folder.name}"
    assert f"outplay plot poles/{folder.name} " in (tmp_path / "it.html").read_text()
    code, _, err = cli("report", "poles", "-o", "nowhere/it.html")
    assert (code, "nowhere/it.html cannot be written: No such file" in err) == (2, True)
    code, _, err = cli("report", "nothing")
    assert (code, "there is no run at nothing" in err) == (2, True)


def test_a_study_is_answered_with_its_own_command(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report({"score": config["lr"]})

    config = {"lr": tune.grid_search([1.0])}
    tune.run(train, config=config, storage_path=tmp_path / "results", name="search", verbose=0)
    code, _, err = cli("report", "search")
    assert (code, err) == (2, "outplay: search is a study; its report: outplay tune report search\n")
    code, _, err = cli("report", str(tmp_path / "results" / "search"))
    assert code == 2
    assert "outplay tune report /" in err


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_shows_the_page_without_horizontal_scrolling(run: Run, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    probe = "<script>document.title = [document.documentElement.scrollWidth, window.innerWidth].join(' ')</script>"
    path.write_text(page(facts_of(run.folder), path).replace("</body>", f"{probe}</body>"))
    command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    command += [f"--window-size={width},900", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    found = re.search(r"<title>(\d+) (\d+)</title>", shown)
    assert found is not None
    assert int(found[1]) <= int(found[2])

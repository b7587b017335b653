"""The report of a study: ranks, the CSV file, and the page."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import tune
from outplay.tune import ExperimentAnalysis
from outplay.tune.reporting import ranked, table_lines, write_csv, write_page
from outplay.tune.reporting.importance import importances
from outplay.tune.reporting.page import page
from outplay.tune.reporting.story import story_of
from outplay.tune.schedulers import Clone, Decisions, Scheduler
from outplay.tune.trial import Metrics, Trial

EVIL = "<script>alert('x')</script>"
VOID = ("meta", "link", "br", "hr", "img", "input")


class Page(HTMLParser):
    """The text, headings and elements of a page. Raises if elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    outplay.init("inline")
    yield tmp_path_factory.mktemp("studies")
    outplay.shutdown()


def search(folder: Path, function: Any, config: dict[str, Any], **options: Any) -> ExperimentAnalysis:
    name = function.__name__
    if not (folder / name).exists():
        options = {"metric": "score", "mode": "max", "verbose": 0, "raise_on_failed_trial": False, **options}
        tune.run(function, config=config, storage_path=folder, name=name, **options)
    return ExperimentAnalysis(folder / name)


def hostile(config: dict[str, Any]) -> None:
    if config["lr"] < 1e-4:
        raise ValueError(f"{EVIL} & more")
    for i in range(3):
        tune.report(score=-((math.log10(config["lr"]) + 2) ** 2) * (i + 1) + config["bonus"])


@pytest.fixture
def study(folder: Path) -> ExperimentAnalysis:
    space = {
        "lr": tune.loguniform(1e-5, 1e-1),
        EVIL: tune.choice(["a", EVIL]),
        "layers": tune.choice([[64], [64, 64]]),
        "bonus": tune.randint(0, 3),
    }
    return search(folder, hostile, space, num_samples=30)


def test_trials_by_rank(study: ExperimentAnalysis, tmp_path: Path) -> None:
    trials = ranked(study)
    scores = [trial.last_result.get("score", -math.inf) for trial in trials]
    assert len(trials) == 30
    assert scores == sorted(scores, reverse=True)
    lines = table_lines(study, 60, top=4)
    assert lines[-1] == "… 26 more"
    assert max(map(len, lines)) <= 60
    assert lines[1].split()[:4] == ["1", trials[0].id, "done", "3"]
    write_csv(study, tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == [trial.id for trial in trials]
    assert float(rows[0]["config/lr"]) == trials[0].values["lr"]
    assert float(rows[0]["score"]) == scores[0]


def test_the_page_is_whole_and_needs_nothing_else(study: ExperimentAnalysis) -> None:
    text = page(study)
    found = Page(text)
    failed = len(study.errors)
    assert found.headings == [
        f"Best trial: {ranked(study)[0].id}", "History", "Learning curves", "Parallel coordinates", "Importances",
        "Slices", f"Failed trials: {failed}", "Trials",
    ]  # fmt: skip
    assert failed > 0
    tags = [tag for tag, _ in found.elements]
    assert tags.count("script") == 1  # its own
    assert EVIL not in text
    assert not [attrs for _, attrs in found.elements if attrs.keys() & {"src", "href", "onclick"}]
    assert not re.search(r"https?://|@import|url\(", text)
    assert "ValueError: &lt;script&gt;" in text
    assert "nan" not in re.findall(r' (?:d|cx|cy|x|y|x1|y1)="([^"]*)"', text)
    assert {attrs["data-trial"] for tag, attrs in found.elements if tag == "tr" and "data-trial" in attrs} == {
        trial.id for trial in study.trials
    }


def test_the_variable_that_matters_is_the_most_important(study: ExperimentAnalysis) -> None:
    shares, method = importances(study, {})
    assert method in ("fANOVA", "PED-ANOVA")
    assert next(iter(shares)) == "lr"
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)


def single(config: dict[str, Any]) -> None:
    tune.report(score=config["x"])


def test_a_study_of_one_trial(folder: Path) -> None:
    analysis = search(folder, single, {"x": 3})
    found = Page(page(analysis))
    assert found.headings == ["Best trial: 00000", "History", "Importances", "Trials"]
    assert "importances need at least 10 trials" in page(analysis)


def broken(config: dict[str, Any]) -> None:
    raise RuntimeError("no")


def test_a_study_without_a_value(folder: Path) -> None:
    analysis = search(folder, broken, {"x": tune.uniform(0, 1)}, num_samples=3)
    assert Page(page(analysis)).headings == ["Best trial", "Importances", "Failed trials: 3", "Trials"]


def noisy(config: dict[str, Any]) -> None:
    tune.report(score=config["x"] + config["seed"] % 7)


def test_the_spread_of_seeds_and_the_report(folder: Path) -> None:
    analysis = search(folder, noisy, {"x": tune.uniform(0, 1)}, num_samples=3, seeds=3, report_seeds=4)
    text = page(analysis)
    assert "Seeds" in Page(text).headings
    assert "On 4 seeds that the search has not used" in text
    assert len(re.findall("<title>report, seed", text)) == 4


class Copying(Scheduler):
    """After iteration 3, trial 00001 continues as a copy of trial 00000 with twice its value."""

    needs_checkpoints = True
    copied = False

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        if trial.id != "00001" or result["training_iteration"] != 3 or self.copied:
            return {}
        self.copied = True
        return {"00001": Clone("00000", {"rate": 20.0})}


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.rate, self.total = config["rate"], 0.0

    def step(self) -> dict[str, Any]:
        self.total += self.rate
        return {"score": self.total}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "total").write_text(str(self.total))

    def load_checkpoint(self, folder: str) -> None:
        self.total = float(Path(folder, "total").read_text())


def test_copies_are_shown(folder: Path) -> None:
    space = {"rate": tune.grid_search([10.0, 1.0])}
    options = {"scheduler": Copying(), "stop": {"training_iteration": 6}, "max_concurrent_trials": 1}
    analysis = search(folder, Counter, space, **options)
    first, second = story_of(analysis).segments["00001"]
    assert (first.values, first.end, first.source) == ({"rate": 1.0}, 3, "")
    assert (second.values, second.start, second.source) == ({"rate": 20.0}, 6, "00000")
    text = page(analysis)
    assert [each for each in Page(text).headings if each in ("Lineage", "Values over time")] == [
        "Lineage",
        "Values over time",
    ]
    assert "iteration 6: trial 00001 copied trial 00000" in text


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_draws_the_page(study: ExperimentAnalysis, tmp_path: Path) -> None:
    write_page(study, tmp_path / "report.html")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *options, "--dump-dom", (tmp_path / "report.html").as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert 'id="tip"' in drawn  # its script ran
    assert 'data-tip="trial 00000' in drawn
    assert "<title>trial" not in drawn

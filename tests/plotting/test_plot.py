"""`outplay plot`: the files it writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from outplay.plotting.figure import COLORS, Look, rendered
from outplay.plotting.panels import Line, Panel
from tests.cli.common import Outcome
from tests.cli.conftest import cli as cli
from tests.plotting.common import recorded_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for seed in (1, 2, 3):
        for number, lr in ((seed, 0.1), (10 + seed, 0.2)):
            values = [lr * 100 * i + seed for i in range(1, 31)]
            more = {"more": lambda i: {"learner": {"kl": 0.01 * i - 0.1}}}
            recorded_run(folder, "poles", number, list(values), lr=lr, **more)
    return folder


def texts(svg: bytes | str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")]
)
def test_a_figure_is_written_and_reproducible(
    cli: Callable[..., Outcome], results: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    code, out, err = cli("plot", "poles", "-o", name)
    assert (code, out, err) == (0, f"figure: {name}\n", "")
    first = (tmp_path / name).read_bytes()
    assert first.startswith(start)
    assert cli("plot", "poles", "-o", name)[0] == 0
    assert (tmp_path / name).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "results"])


def test_the_same_bytes_in_another_process(results: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        command = [sys.executable, "-m", "outplay", "plot", "poles", "-o", name, "--results-dir", str(results)]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    text = (tmp_path / "one.svg").read_bytes()
    assert text == (tmp_path / "two.svg").read_bytes()
    assert b"dc:date" not in text


def test_text_is_text_with_units_and_a_legend(cli: Callable[..., Outcome], results: Path, tmp_path: Path) -> None:
    cli("plot", "poles", "-o", "a.svg", "--title", "Poles & <carts>")
    found = texts((tmp_path / "a.svg").read_bytes())
    assert {"environment steps", "mean return", "10k", "Poles & <carts>", "lr 0.1 (n = 3)", "lr 0.2 (n = 3)"} <= {
        *found
    }
    drawing = (tmp_path / "a.svg").read_text().lower()
    assert COLORS[0].lower() in drawing
    assert COLORS[1].lower() in drawing
    assert "fill-opacity: 0.18" in drawing


def test_several_metrics_are_several_panels(cli: Callable[..., Outcome], results: Path, tmp_path: Path) -> None:
    options = ["--metric", "episode_reward_mean", "--metric", "learner/kl", "--x", "time_total_s"]
    assert cli("plot", "poles", *options, "-o", "a.svg", "--csv", "a.csv")[0] == 0
    found = texts((tmp_path / "a.svg").read_bytes())
    assert {"mean return", "KL divergence"} <= {*found}
    assert found.count("training time (s)") == 2
    rows = [line.split(",")[0] for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert {*rows} == {"episode_return_mean", "learner/kl"}


def test_all_options_together(cli: Callable[..., Outcome], results: Path, tmp_path: Path) -> None:
    options = ["--no-bands", "--smooth", "0.9", "--log-x", "--log-y", "--points", "7", "--width", "3", "--height", "2"]
    options += ["--metric", "learner/kl", "--label", "slow", "--label", "fast", "--x", "training_iteration"]
    assert cli("plot", "poles", *options, "-o", "a.svg", "--csv", "a.csv")[0] == 0
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    assert (root.get("width"), root.get("height")) == ("216pt", "144pt")
    assert {"slow", "fast"} <= {*texts((tmp_path / "a.svg").read_text())}
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + 6 * 7


def test_numbers_need_no_matplotlib(
    cli: Callable[..., Outcome], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    code, out, err = cli("plot", "poles", "-o", "a.svg")
    assert (code, out) == (2, "")
    assert err == "outplay: figures need matplotlib: pip install 'outplay[plot]'\n"
    assert cli("plot", "poles", "--csv", "a.csv")[0] == 0
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["poles"], "give the file of the figure, as -o curve.svg"),
        (["poles", "-o", "a.jpg"], "-o a.jpg: the name of a figure ends in .svg, .png, .pdf"),
        (["poles", "-o", "svg"], "ends in .svg"),
        (["holes", "-o", "a.svg"], "there is no run at holes. Did you mean 'poles'?"),
        (["poles", "-o", "a.svg", "--metric", "lerner/kl"], "Did you mean 'learner/kl'?"),
        (["poles", "-o", "a.svg", "--smooth", "1"], "the smoothing weight must be at least 0 and less than 1, not 1"),
        (["poles", "-o", "a.svg", "--label", "one"], "--label: 2 curves, but 1 label"),
        (["poles", "-o", "a.svg", "--x", "steps"], "--x: no x-axis 'steps'; valid: episodes_total, time_total_s, "),
        (["poles", "-o", "a.svg", "--x", "timesteps"], "Did you mean 'timesteps_total'?"),
        (["poles", "-o", "nowhere/a.svg"], "nowhere/a.svg cannot be written: there is no folder nowhere"),
        (["poles", "-o", "a.svg", "--csv", "nowhere/a.csv"], "nowhere/a.csv cannot be written"),
        (["poles", "-o", "a.svg", "--csv", "results"], "results cannot be written: it is a folder"),
    ],
)
def test_bad_input_is_one_sentence(
    cli: Callable[..., Outcome], results: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = cli("plot", *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("outplay: ")
    assert err.count("\n") == 1
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_failed_figure_leaves_the_old_one(cli: Callable[..., Outcome], results: Path, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("old")
    assert cli("plot", "poles", "-o", "a.svg", "--metric", "nothing")[0] == 2
    assert (tmp_path / "a.svg").read_text() == "old"


def line(x: Any, y: Any, **options: Any) -> Line:
    values = {"label": "it", "number": 1, "low": None, "high": None, "color": 0, **options}
    return Line(x=np.array(x, float), y=np.array(y, float), **values)


@pytest.mark.parametrize("look", [Look(), Look(log_x=True), Look(log_y=True), Look(log_x=True, log_y=True)])
@pytest.mark.parametrize(
    "panel",
    [
        Panel("y", "timesteps_total", (line([5], [3]),)),  # a single point
        Panel("y", "timesteps_total", (line([0, 1, 2], [-1, 2, 2]), line([1], [1], color=None))),
        Panel("y", "timesteps_total", (line([1, 1e9], [1e-7, 1e12]),)),
        Panel("y", "time_total_s", (line([1, 2], [7, 7], low=np.array([-1.0, 0.0]), high=np.array([7.0, 8.0])),)),
    ],
)
def test_odd_curves_are_drawn(panel: Panel, look: Look) -> None:
    for kind in ("svg", "png"):
        assert rendered([panel], look, kind)


def test_a_logarithmic_axis_needs_positive_values(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    recorded_run(tmp_path / "results", "poles", 1, [-1.0, 0.0])
    code, _, err = cli("plot", "poles", "-o", "a.svg", "--log-y")
    assert (code, err) == (2, "outplay: --log-y: episode_return_mean by timesteps_total has no positive values\n")


@pytest.mark.parametrize("text", ["$x", r"$\alpha$ & $$", "学習率 α", "a\x01\nb", "_hidden", ""])
def test_any_text_can_be_a_label_or_title(text: str) -> None:
    lines = (line([0, 1], [0, 1], label=text), line([0, 1], [1, 2], label="it", color=1))
    for kind in ("svg", "pdf", "png"):
        figure = rendered([Panel(text or "y", "timesteps_total", lines)], Look(title=text), kind)
        if kind == "svg" and text.isprintable():
            assert text in [*texts(figure), ""]


def test_many_labels_fit_the_figure(tmp_path: Path) -> None:
    from PIL import Image

    lines = tuple(line([0, 1], [i, i + 1], label=f"a rather long label {i}", color=i) for i in range(7))
    with Image.open(
        io.BytesIO(rendered([Panel("y", "timesteps_total", lines)], Look(width=4, height=4), "png"))
    ) as image:
        assert image.size == (1200, 1200)
        edges = [image.convert("L").crop(box) for box in ((0, 0, 8, 1200), (1192, 0, 1200, 1200))]
        assert all(edge.getextrema()[0] > 200 for edge in edges)  # no text runs over the edge


def test_the_command_line_does_not_import_what_it_does_not_need() -> None:
    text = "import sys, outplay.cli; assert not {'matplotlib', 'torch', 'numpy'} & {*sys.modules}, 'imported'"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=100)
    text = "import sys, outplay.plotting.panels; assert not {'matplotlib', 'torch'} & {*sys.modules}, 'imported'"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=100)

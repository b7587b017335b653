"""The live panel: its figures, its curve, its layout. tests/cli/test_terminal.py shows it in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from outplay.cli.curve import Curve
from outplay.cli.panel import Panel, TimeLeft, key_figures
from outplay.formatting import duration
from outplay.machine import Usage
from outplay.runs.experiments import experiment
from outplay.runs.run import Run
from outplay.runs.stopping import StopConditions
from tests.cli.common import wait_for
from tests.runs.common import make


def drawn(panel: Panel, columns: int, lines: int = 50, is_last: bool = False) -> list[str]:
    console = Console(width=columns, height=lines, record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
    console.print(panel.render(os.terminal_size((columns, lines)), is_last))
    console.file.close()
    return console.export_text().splitlines()


def trained(tmp_path: Path, iterations: int = 6) -> tuple[Run, Panel]:
    run = make(tmp_path, stop={"training_iteration": 10, "episode_return_mean": 500})
    panel = Panel(run)
    for _ in range(iterations):
        panel.show(run.step())
    return run, panel


def test_what_the_panel_shows(tmp_path: Path) -> None:
    run, panel = trained(tmp_path)
    text = "\n".join(drawn(panel, 200))
    result = run.last_result
    for figure in (
        "PPO on CartPole-v1",
        "iteration 7",
        "60%",
        "left",
        "training_iteration ≥ 10   or episode_return_mean ≥ 500",
        f"mean {result['episode_return_mean']:.1f}",
        f"best {result['episode_return_max']:.1f}",
        f"worst {result['episode_return_min']:.1f}",
        f"length {result['episode_len_mean']:.1f}",
        "240   ",
        "steps/s",
        "policy_loss",
        "entropy",
        "grad_norm",
        "learn ",
        "none: the main process collects",
        "CPU ",
        "memory ",
        "MiB",
        str(run.folder),
        "240 steps",
    ):
        assert figure in text, figure
    run.close()


def test_between_iterations_it_shows_the_stage_and_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    now = 1000.0
    monkeypatch.setattr("outplay.cli.panel.time.monotonic", lambda: now)
    panel = Panel(run)
    with run.algorithm.timers("collect"):
        first = drawn(panel, 80)[1]
        assert "iteration 1: collect" in first
        now += 12
        second = drawn(panel, 80)[1]
        assert "iteration 1: collect 12 s" in second
        assert first[2] != second[2]  # the spinner
    with run.algorithm.timers("learn"):
        drawn(panel, 80)
        now += 3
        assert "iteration 1: learn 3 s (15 s in all)" in drawn(panel, 80)[1]
    run.request_stop("stopped by Ctrl-C")
    assert "the last one: stopping" in drawn(panel, 80)[1]
    run.end("stopped by Ctrl-C")
    assert drawn(panel, 80, is_last=True)[1].strip("│ ") == "stopped by Ctrl-C"


@pytest.mark.parametrize("columns", [30, 60, 80, 120, 200])
def test_it_fits_the_terminal_and_uses_its_width(tmp_path: Path, columns: int) -> None:
    run, panel = trained(tmp_path)
    lines = drawn(panel, columns)
    assert {len(line) for line in lines} == {columns}
    (axis,) = [line for line in lines if "└" in line]
    assert axis.index("└") < 10
    assert axis.endswith("steps │")
    for rows in (6, 12, 24):
        assert len(drawn(panel, columns, rows)) < rows  # and a line for the cursor
    run.close()


def test_a_resumed_run_continues_its_curve(tmp_path: Path) -> None:
    run, _ = trained(tmp_path)
    run.pause()
    resumed = Run.resume(run.folder)
    text = "\n".join(drawn(Panel(resumed), 80))
    assert "iteration 7" in text
    assert "240 steps" in text
    assert "60%" in text
    resumed.close()


def test_key_figures() -> None:
    assert key_figures({"kl": 0.01234, "other": 1.0, "policy_loss": -0.5}) == ["policy_loss -0.500", "kl 0.012"]
    assert key_figures({"alpha": 0.2, "beta": None}) == ["alpha 0.200", "beta –"]


def test_the_curve_has_a_scale_and_bounded_memory() -> None:
    curve = Curve()
    assert curve.lines(40, 4) == []
    for i in range(1, 10_001):
        curve.add(100 * i, i / 100)
    assert len(curve) <= 1000
    lines = curve.lines(60, 4)
    assert len(lines) == 5
    assert max(map(len, lines)) == 60
    assert 99 < float(lines[0].partition("┤")[0]) <= 100
    assert lines[0].endswith("█")
    assert 0 < float(lines[3].partition("┤")[0]) < 1
    assert lines[3].partition("┤")[2].startswith("▁")
    assert lines[4].strip().startswith("└0 ─")
    assert lines[4].endswith(" 1,000,000 steps")
    assert [row[7:].count("█") > 0 for row in lines[:4]] == [True] * 4
    assert curve.lines(5, 4) == []  # no room


def test_the_time_left_is_that_of_the_nearest_condition() -> None:
    left = TimeLeft()
    assert left.seconds(0) is None
    left.add({"steps": 0.0, "return": 0.0}, is_start=True, now=0.0)
    left.add({"steps": 0.1, "return": 0.0}, now=20.0)  # with the start of the workers
    assert left.seconds(20.0) == pytest.approx(180)
    left.add({"steps": 0.2, "return": 0.5}, now=30.0)
    assert left.seconds(30.0) == pytest.approx(10)  # the return would be reached first
    assert left.seconds(34.0) == pytest.approx(6)
    left.add({"steps": 0.3, "return": 0.0}, now=40.0)
    assert left.seconds(40.0) == pytest.approx(70)
    assert left.seconds(1000.0) == 0


def test_progress_of_a_negative_return_starts_at_its_first_value() -> None:
    stop = {"episode_return_mean": 18, "timesteps_total": 1000}
    conditions = StopConditions(experiment({"env": "CartPole-v1", "stop": stop}, "the test"))
    assert conditions.progress({}) == 0
    assert conditions.progress({"episode_return_mean": float("nan"), "timesteps_total": 10}) == 0.01
    assert conditions.progress({"episode_return_mean": -21.0, "timesteps_total": 100}) == 0.1
    half = {"episode_return_mean": -1.5, "timesteps_total": 200}
    assert conditions.fractions(half) == {"episode_return_mean": 0.5, "timesteps_total": 0.2}
    assert conditions.progress({"episode_return_mean": 18.5, "timesteps_total": 300}) == 1


def test_cpu_and_memory_are_those_of_the_process_and_its_children() -> None:
    alone = Usage()
    program = "data = bytearray(300 * 2**20); data[::4096] = bytes([1]) * len(data[::4096]); print('ready', flush=True)"
    loop = "\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program + loop], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        usage = Usage()
        assert usage.memory > alone.memory + 250 * 2**20

        def is_seen() -> bool:
            before = sum(psutil.Process(child.pid).cpu_times()[:2])
            wait_for(lambda: sum(psutil.Process(child.pid).cpu_times()[:2]) > before + 0.1)
            usage.sample()
            return usage.cpu_percent > 1

        wait_for(is_seen)
        child.kill()
    usage.sample()
    assert usage.memory < alone.memory + 250 * 2**20


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (0, 59.4, 60, 61, 3600, 3661, 90_000, 86_400)]
    assert shown == ["0 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 h 1 min", "1 d 1 h", "1 d"]

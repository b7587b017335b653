"""The progress of a study: what is shown, that it fits the screen, and what it costs."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import outplay
from outplay import tune
from outplay.tune.display import StudyDisplay
from outplay.tune.objective import Objective
from outplay.tune.text import table, value_text
from outplay.tune.trial import Status, Trial
from tests.cli.terminal import Screen, Terminal


def shown(trials: list[Trial], total: int | None = 100, out: io.StringIO | None = None, **info: object) -> StudyDisplay:
    display = StudyDisplay(out or io.StringIO())
    objective = Objective.of("score", "max")
    settings = {"objective": objective, "total": total, "time_budget_s": None, "seconds": 0.0, **info}
    display.setup(study="poles", folder="/results/poles", **settings)
    if trials:
        display.on_trial_start(0, trials, trials[-1])
    return display


def trial(index: int, status: Status = Status.RUNNING, score: float = 1.0, seconds: float = 2.0) -> Trial:
    values = {"config/lr": 0.001 * (index + 1), "config/act": "relu", "layers": [64] * 40, "名前": "值" * 30}
    result = {"score": score, "training_iteration": index} if score == score else {}
    return Trial(f"{index:05d}", index, values, dict(values), status, result, seconds=seconds)


@pytest.mark.parametrize(("columns", "lines"), [(40, 6), (60, 10), (80, 24), (200, 50)])
def test_the_table_never_exceeds_the_screen(columns: int, lines: int) -> None:
    display = shown([trial(i) for i in range(60)])
    console = Console(file=io.StringIO(), width=columns, height=lines, color_system=None)
    with console.capture() as captured:
        console.print(display.render(os.terminal_size((columns, lines))))
    drawn = captured.get().splitlines()
    assert len(drawn) <= lines - 1
    from rich.cells import cell_len

    assert max(map(cell_len, drawn)) <= columns
    if lines >= 10:
        assert any("… " in line and " more" in line for line in drawn)
    display.on_experiment_end([])


def test_what_is_shown() -> None:
    done = [trial(0, Status.TERMINATED, 3.0), trial(1, Status.ERROR, float("nan")), trial(2, Status.PAUSED, 2.0)]
    display = shown([*done, trial(3, Status.RUNNING, 1.5)], total=10)
    console = Console(file=io.StringIO(), width=150, height=40, color_system=None)
    with console.capture() as captured:
        console.print(display.render(os.terminal_size((150, 40))))
    text = captured.get()
    assert "2 of 10 trials" in text
    assert "1 running, 6 pending, 1 paused, 1 done, 1 failed" in text
    assert "score 3 (trial 00000)" in text
    assert "lr 0.001, act relu" in text
    header, row = (next(line for line in text.splitlines() if word in line) for word in ("iteration", "00003"))
    assert header.split()[1:7] == ["trial", "iteration", "score", "time", "lr", "act"]
    assert row.split()[1:8] == ["00003", "3", "1.5", "2.0", "s", "0.004", "relu"]
    display.on_experiment_end([])


def test_the_time_left_is_unknown_until_a_trial_ends_and_follows_the_rate() -> None:
    first, second = trial(0), trial(1)
    display = shown([first, second], total=20)
    assert display.time_left() is None
    assert "? left" in display.line()
    display._started -= 10.0  # ten seconds have passed; both slots work on trials of ten seconds
    first.status, first.seconds, second.seconds = Status.TERMINATED, 10.0, 5.0
    display.on_trial_complete(1, [first, second], first)
    left = display.time_left()
    assert left is not None
    assert left == pytest.approx(18.5 * 10 / 1.5, rel=0.01)  # 1.5 trials in ten seconds
    display.on_experiment_end([])
    limited = shown([], total=None, time_budget_s=60.0)
    assert limited.time_left() == pytest.approx(60.0, abs=1.0)
    limited.on_experiment_end([])


def test_an_error_of_many_trials_is_printed_once() -> None:
    out = io.StringIO()
    display = shown([], out=out)
    for i in range(30):
        failed = trial(i, Status.ERROR)
        failed.error = f'Traceback (most recent call last):\n  File "x.py"\nValueError: {i / 7} is\x1b[2J too large\n'
        display.on_trial_error(i, [failed], failed)
    display.on_experiment_end([])
    assert out.getvalue().count("too large") == 1
    assert out.getvalue().startswith("trial 00000 failed: ValueError: 0.0 is [2J too large\n")


def test_a_result_costs_less_than_a_tenth_of_a_millisecond() -> None:
    trials = [trial(i) for i in range(1000)]
    display = shown(trials)
    started = time.thread_time()
    for i, each in enumerate(trials):
        display.on_trial_start(i, trials, each)
        display.on_trial_result(i, trials, each, each.last_result)
        display.on_trial_complete(i, trials, each)
    assert (time.thread_time() - started) / len(trials) < 1e-4
    display.on_experiment_end([])


def test_tables_and_values() -> None:
    assert table(["a", "long"], [["1", "x"], ["22", "y"]], 80) == [" a  long", " 1     x", "22     y"]
    assert table(["a", "long"], [["1", "x"], ["22", "y"]], 6) == [" a  …", " 1  …", "22  …"]
    assert value_text("a\nb\x1b") == "a b "
    assert len(value_text("x" * 500)) <= 40
    assert value_text({"kind": "adam", "lr": tune.uniform(0, 1)}) == "{'kind': 'adam', 'lr': …}"


# Whole studies.


@pytest.fixture
def inline() -> Iterator[None]:
    outplay.init("inline")
    yield
    outplay.shutdown()


def square(config: dict[str, float]) -> None:
    if config["x"] == 3:
        raise ValueError("three")
    tune.report(score=config["x"] ** 2)


@pytest.mark.usefixtures("inline")
def test_a_study_prints_its_result_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"x": tune.grid_search([1, 2, 3])}
    options = {"metric": "score", "mode": "max", "storage_path": tmp_path, "raise_on_failed_trial": False}
    tune.run(square, config=grid, name="shown", **options)
    error, counts, best, hint = capsys.readouterr().out.splitlines()[-4:]
    assert error == "trial 00002 failed: ValueError: three"
    assert counts.startswith("2 done, 1 failed in ")
    assert counts.endswith(f"; the study is in {tmp_path / 'shown'}")
    assert best == "best: score 4 (trial 00001): x 2"
    assert hint == f"to see all trials: outplay tune report {tmp_path / 'shown'}"
    tune.run(square, config=grid, name="silent", verbose=0, **options)
    assert capsys.readouterr() == ("", "")


SCRIPT = """
import time
from outplay import tune

def train(config):
    for i in range(8):
        time.sleep(0.25)
        if config["x"] == 1 and i == 3:
            raise ValueError("one")
        tune.report(score=config["x"] * i)

tune.run(train, config={"x": tune.grid_search([1, 2, 3])}, metric="score", mode="max", name="live",
         max_concurrent_trials=2, raise_on_failed_trial=False, resources_per_trial={"cpu": 0.5})
"""


def frames(screen: Screen) -> tuple[int, int]:
    return screen.text.count("╭"), screen.text.count("╰")


def test_the_table_in_a_terminal_is_redrawn_in_place(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(SCRIPT)
    with Terminal(tmp_path, columns=72, lines=16) as terminal:
        terminal.type(f"{sys.executable} study.py\n")
        terminal.wait_for(
            lambda screen: "trial 00000 failed: ValueError: one" in screen.text and "00001" in screen.text
        )
        terminal.wait_for("of 3 trials")
        assert frames(terminal.screen) == (1, 1)
        assert "failed: ValueError" in terminal.screen.text.partition("╭")[0]
        assert not terminal.screen.is_cursor_visible
        terminal.wait_for("outplay tune report live")
        assert frames(terminal.screen) == (0, 0)
        assert "best: score 21 (trial 00002): x 3" in terminal.screen.text
        assert terminal.screen.is_cursor_visible


class Interrupts(tune.Callback):
    def on_trial_complete(self, iteration: int, trials: object, trial: Trial, **info: object) -> None:
        raise KeyboardInterrupt


@pytest.mark.usefixtures("inline")
def test_an_interrupted_study_says_how_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"config": {"x": tune.grid_search([1, 2])}, "storage_path": tmp_path, "name": "cut"}
    with pytest.raises(KeyboardInterrupt):
        tune.run(square, callbacks=[Interrupts()], **options)
    out = capsys.readouterr().out
    assert "\ninterrupted; to resume: the same call with name='cut', resume=True\n" in out
    try:
        raise ValueError
    except ValueError:  # a study within a handler is not interrupted
        tune.run(square, resume=True, **options)
    out = capsys.readouterr().out
    assert "2 done" in out
    assert "to resume" not in out


PRINTING = """
import os, sys, time
import outplay
from outplay import tune

def train(config):
    for i in range(8):
        time.sleep(0.15)
        print("python", config["x"], i)
        os.write(1, b"library\\n")
        print("a warning", i, file=sys.stderr)
        tune.report(score=config["x"] * i)

class Says(tune.Callback):
    def on_trial_complete(self, iteration, trials, trial, **info):
        print("callback", trial.id)

outplay.init(ENGINE)
for name in "ab":
    print("before", name)
    tune.run(train, config={"x": tune.grid_search([1, 2])}, metric="score", mode="max", name=name, callbacks=[Says()],
             max_concurrent_trials=2, resources_per_trial={"cpu": 0.5})
    print("after", name)
"""


@pytest.mark.parametrize(
    ("engine", "columns", "lines"),
    [
        ("process", 80, 24),
        pytest.param("process", 50, 10, marks=pytest.mark.slow),
        pytest.param("inline", 80, 24, marks=pytest.mark.slow),
    ],
)
def test_what_trials_print_appears_above_the_table(tmp_path: Path, engine: str, columns: int, lines: int) -> None:
    """The engine was started before the studies, with the terminal as its output."""
    (tmp_path / "study.py").write_text(PRINTING.replace("ENGINE", repr(engine)))
    with Terminal(tmp_path, columns=columns, lines=lines) as terminal:
        terminal.type(f"{sys.executable} study.py\n")
        terminal.wait_for(lambda screen: "python 1 4" in screen.text and screen.text.endswith("╯"))
        assert frames(terminal.screen) == (1, 1)
        assert "python 1 4" in terminal.screen.text.partition("╭")[0]
        terminal.wait_for("after b")
        assert frames(terminal.screen) == (0, 0)
        lines_shown = [line.removeprefix("$ ").strip() for line in terminal.screen.text.splitlines()]
        for x in (1, 2):
            printed = [line for line in lines_shown if line.startswith(f"python {x} ")]
            assert printed == 2 * [f"python {x} {i}" for i in range(8)]
        assert lines_shown.count("library") == 32
        assert lines_shown.count("a warning 3") == 4
        assert lines_shown.count("callback 00000") == 2
        heads = [line.split()[0] for line in lines_shown if line.startswith(("before", "2 done", "after"))]
        assert heads == 2 * ["before", "2", "after"]
        assert not [line for line in lines_shown if "━" in line or "│" in line]
        assert terminal.screen.is_cursor_visible
    assert not list(tmp_path.rglob("*.fifo"))


ENV = """
import gymnasium

class Prints(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        print("a new episode")
        return self.observation_space.low, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low, 1.0, self.steps == 32, False, {}
"""

WITH_WORKERS = """
import outplay
from outplay import tune

outplay.init("process", num_cpus=2)
config = {"env": "printing:Prints", "num_workers": 2, "num_envs": 2, "train_batch_size": 64}
tune.run("A2C", config=config, stop={"training_iteration": 10}, metric="episode_return_mean", mode="max", name="run")
"""


def test_what_environments_print_in_workers_of_trials_appears_above_the_table(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(ENV)
    (tmp_path / "study.py").write_text(WITH_WORKERS)
    with Terminal(tmp_path, columns=80, lines=24) as terminal:
        terminal.type(f"{sys.executable} study.py\n")
        terminal.wait_for("outplay tune report run")
        assert "1 done" in terminal.screen.text
        assert terminal.screen.text.count("a new episode") >= 10 * 2  # iterations, environments
        assert frames(terminal.screen) == (0, 0)
        assert not [line for line in terminal.screen.text.splitlines() if "━" in line or "│" in line]

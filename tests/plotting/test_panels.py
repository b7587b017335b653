"""From run folders to curves: groups, labels, bands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import tune
from outplay.curves import iqm
from outplay.errors import CheckpointError, ConfigError
from outplay.plotting.figure import COLORS
from outplay.plotting.panels import MOST_COLORED, Drawing, Panel, panels_of
from outplay.plotting.sources import Source, find_sources, study_folder, translated
from outplay.plotting.table import as_csv
from outplay.plotting.words import labels_of, metric_words, time_unit, value_words
from tests.plotting.common import recorded_run

RETURNS = "episode_return_mean"


def panel_of(results: Path, *names: str, metric: str = RETURNS, **options: Any) -> Panel:
    (panel,), _ = panels_of(find_sources(names, results), Drawing(metrics=(metric,), **options))
    return panel


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path: Path) -> None:
    values = [[1.0, 2.0, 3.0], [2.0, 4.0, 9.0], [6.0, 6.0, 6.0]]
    for seed, returns in enumerate(values, 1):
        recorded_run(tmp_path, "poles", seed, list(returns), num_workers=seed)
    (line,) = panel_of(tmp_path, "poles").lines
    assert line.number == 3
    assert line.x.tolist() == [1000, 2000, 3000]
    np.testing.assert_allclose(line.y, iqm(np.array(values), axis=0))
    assert line.low is not None
    assert line.high is not None
    assert line.low.tolist() == [1, 2, 3]
    assert line.high.tolist() == [6, 6, 9]


def test_only_what_all_runs_have_is_in_a_band(tmp_path: Path) -> None:
    recorded_run(tmp_path, "poles", 1, [1.0, 2.0, 3.0, 4.0])
    recorded_run(tmp_path, "poles", 2, [None, 4.0, 5.0])
    (line,) = panel_of(tmp_path, "poles").lines
    assert line.x.tolist() == [2000, 3000]
    assert line.y.tolist() == [3, 4]


def test_each_run_is_drawn_without_bands(tmp_path: Path) -> None:
    for seed in (2, 1, 3):
        recorded_run(tmp_path, "poles", seed, [seed, 5.0])
    lines = panel_of(tmp_path, "poles", bands=False).lines
    assert [line.label for line in lines] == ["seed 1", "seed 2", "seed 3"]  # by the date of their start
    assert [line.y[0] for line in lines] == [1, 2, 3]
    assert all(line.low is None and line.number == 1 for line in lines)
    assert [line.color for line in lines] == [0, 1, 2]


def test_runs_of_one_group_share_a_color_without_bands(tmp_path: Path) -> None:
    for number, lr in enumerate([0.1, 0.1, 0.2, 0.2]):
        recorded_run(tmp_path, "poles", number, [1.0, 2.0], lr=lr)
    lines = panel_of(tmp_path, "poles", bands=False).lines
    assert [line.color for line in lines] == [0, 0, 1, 1]
    assert [line.in_legend for line in lines] == [True, False, True, False]
    assert [line.label for line in lines] == ["lr 0.1", "lr 0.1", "lr 0.2", "lr 0.2"]
    given = panel_of(tmp_path, "poles", bands=False, labels=("slow", "fast")).lines
    assert [line.label for line in given] == ["slow", "slow", "fast", "fast"]


def test_one_run_given_twice_is_drawn_once(tmp_path: Path) -> None:
    folder, _ = recorded_run(tmp_path, "poles", 1, [1.0])
    assert len(find_sources(["poles", str(folder), folder.name], tmp_path)) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([{"run": "PPO"}, {"run": "DQN", "lr": 0.5, "gamma": 0.9}], ["PPO", "DQN"]),
        ([{"env": "A-v1"}, {"env": "B-v1"}], ["A-v1", "B-v1"]),
        ([{"lr": 0.1}, {"lr": 0.01}, {"lr": 0.01, "gamma": 0.5}], None),
        ([{"model": {"use_lstm": True}}, {"model": {"use_lstm": False}}], ["model.use_lstm on", "model.use_lstm off"]),
        ([dict.fromkeys("abcd", 1), dict.fromkeys("abcd", 2)], ["experiment-0", "experiment-1"]),
    ],
)
def test_labels_say_what_differs(tmp_path: Path, settings: list[dict[str, Any]], expected: list[str] | None) -> None:
    for number, each in enumerate(settings):
        recorded_run(tmp_path, f"experiment-{number}", number, [1.0], **each)
    sources = find_sources([f"experiment-{number}" for number in range(len(settings))], tmp_path)
    labels = labels_of([[source] for source in sources])
    assert labels == (expected or ["lr 0.1, gamma none", "lr 0.01, gamma none", "lr 0.01, gamma 0.5"])


def test_smoothing_and_points(tmp_path: Path) -> None:
    recorded_run(tmp_path, "poles", 1, [4.0, 5.0, 0.0, 0.0])
    (line,) = panel_of(tmp_path, "poles", smooth=0.5).lines
    np.testing.assert_allclose(line.y[:3], [4, 14 / 3, 2])
    (line,) = panel_of(tmp_path, "poles", points=2).lines
    assert line.y.tolist() == [4.5, 0]
    with pytest.raises(ConfigError, match="smoothing weight"):
        panel_of(tmp_path, "poles", smooth=1.5)


def test_many_curves_are_grey_but_for_the_best(tmp_path: Path) -> None:
    for number in range(12):
        recorded_run(tmp_path, "poles", number, [1.0, float(number)], lr=0.1 + number)
    lines = panel_of(tmp_path, "poles").lines
    colored = [line for line in lines if line.color is not None]
    assert len(colored) == MOST_COLORED == len(COLORS)
    assert sorted(line.y[-1] for line in colored) == list(range(5, 12))


def test_a_run_without_the_metric_is_left_out_with_a_remark(tmp_path: Path) -> None:
    more = {"more": lambda i: {"evaluation": {RETURNS: 10.0 * i}} if i % 2 == 0 else {}}
    recorded_run(tmp_path, "poles", 1, [1.0, 2.0, 3.0, 4.0], **more)
    recorded_run(tmp_path, "poles", 2, [1.0, 2.0])
    metric = f"evaluation/{RETURNS}"
    (panel,), remarks = panels_of(find_sources(["poles"], tmp_path), Drawing(metrics=(metric,)))
    assert panel.lines[0].y.tolist() == [20, 40]
    assert remarks == ["1 run of 'PPO' left out: no evaluation/episode_return_mean"]


@pytest.mark.parametrize(
    ("metric", "x", "message"),
    [
        ("episode_return_maen", "timesteps_total", "Did you mean 'episode_return_mean'"),
        (f"evaluation/{RETURNS}", "timesteps_total", "set evaluation_interval"),
        ("episode_return_max", "timesteps_total", "no value yet in poles/"),
        (RETURNS, "steps", "choose another x-axis: --x timesteps_total or time_total_s"),
    ],
)
def test_a_missing_metric_is_one_sentence(tmp_path: Path, metric: str, x: str, message: str) -> None:
    recorded_run(tmp_path, "poles", 1, [1.0], more=lambda i: {"episode_return_max": None})
    with pytest.raises(ConfigError, match=message):
        panel_of(tmp_path, "poles", metric=metric, x=x)


def test_runs_without_results_or_a_common_x(tmp_path: Path) -> None:
    recorded_run(tmp_path, "empty", 1, [])
    with pytest.raises(ConfigError, match="there are no results yet in empty/PPO"):
        panel_of(tmp_path, "empty")
    recorded_run(tmp_path, "apart", 1, [1.0, None])
    recorded_run(tmp_path, "apart", 2, [None, 2.0])
    with pytest.raises(ConfigError, match=r"no timesteps_total in common.*--no-bands draws each run"):
        panel_of(tmp_path, "apart")
    with pytest.raises(CheckpointError, match="there is no run at nothing"):
        panel_of(tmp_path, "nothing")


def test_labels_that_are_too_few_are_refused(tmp_path: Path) -> None:
    recorded_run(tmp_path, "poles", 1, [1.0])
    with pytest.raises(ConfigError, match="1 curve, but 2 labels; give one for each curve"):
        panel_of(tmp_path, "poles", labels=("a", "b"))


def test_damaged_lines_and_values_are_skipped(tmp_path: Path) -> None:
    folder, _ = recorded_run(tmp_path, "poles", 1, [1.0, 2.0], more=lambda i: {"odd": {"text": "x", "large": 10**400}})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('no JSON\n{"training_iteration": 3}\n{"training_iter')
    (line,) = panel_of(tmp_path, "poles").lines
    assert line.y.tolist() == [1, 2]
    columns = find_sources(["poles"], tmp_path)[0].read(["odd/text", "odd/large", "odd", "odd/text/more"])
    assert all(np.isnan(column).all() and len(column) == 2 for column in columns.values())


def test_results_before_a_restart_are_void() -> None:
    parts = [([{"y": 1}, {"y": 2}], True), ([{"y": 3}], False), ([{"y": 7}], True)]
    source = Source("it", "it", {}, "", lambda: iter(parts))
    assert source.read(["y"])["y"].tolist() == [7]


def test_trials_of_a_function_are_curves(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for i in range(3):
            tune.report({"score": config["lr"] * i})

    config = {"lr": tune.grid_search([1.0, 2.0])}
    tune.run(train, config=config, storage_path=tmp_path, name="search", verbose=0)
    assert study_folder("search", tmp_path) == tmp_path / "search"
    assert study_folder("poles", tmp_path) is None
    panel = panel_of(tmp_path, "search", metric="score", x="training_iteration")
    assert [(line.label, line.y.tolist()) for line in panel.lines] == [("lr 1", [0, 1, 2]), ("lr 2", [0, 2, 4])]
    with pytest.raises(ConfigError, match="--x time_total_s or training_iteration"):
        panel_of(tmp_path, "search", metric="score")


def test_names_of_other_libraries_are_translated() -> None:
    assert translated("episode_reward_mean") == RETURNS
    assert translated("my_metric") == "my_metric"


def test_words() -> None:
    assert metric_words("learner/kl") == "KL divergence"
    assert metric_words("info/coins_mean") == "coins mean"
    assert [time_unit(seconds) for seconds in (10.0, 600.0, 36_000.0, 1e6)] == [
        ("s", 1.0),
        ("min", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
    ]
    assert [value_words(value) for value in (0.1234567, "relu", None)] == ["0.1235", "relu", "none"]


def test_the_table_has_the_plotted_numbers(tmp_path: Path) -> None:
    recorded_run(tmp_path, "poles", 1, [1.0, 2.5], lr=0.1)
    for seed in (2, 3):
        recorded_run(tmp_path, "poles", seed, [seed, 4.0], lr=0.2)
    assert as_csv([panel_of(tmp_path, "poles")]).splitlines() == [
        "metric,curve,runs,timesteps_total,value,low,high",
        "episode_return_mean,lr 0.1,1,1000,1,,",
        "episode_return_mean,lr 0.1,1,2000,2.5,,",
        "episode_return_mean,lr 0.2,2,1000,2.5,2,3",
        "episode_return_mean,lr 0.2,2,2000,4,4,4",
    ]

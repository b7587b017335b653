"""The setting info_metrics: metrics from the environments' info."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from outplay import PPO, ConfigError, EnvError
from outplay.envs import EnvSpec, make_vector
from outplay.envs.native import info_of_lane
from outplay.envs.recorder import info_number
from outplay.runs.run import Run
from outplay.testing.algorithm import running
from tests.cli.common import Outcome
from tests.cli.conftest import cli  # noqa: F401 - a fixture
from tests.runs.common import CONFIG, lines, make, until


class Goals(gymnasium.Env[np.ndarray, int]):
    """An episode has 4 to 7 steps. Its info counts the ones among the actions."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = self.length = int(self.np_random.integers(4, 8))
        self.ones = 0
        return self._observe(), {"ones": -1000}  # of a reset: not read

    def _observe(self) -> np.ndarray:
        return np.array([self.left / 8, self.length / 8], np.float32)

    def step(self, action: int) -> Any:
        self.left -= 1
        self.ones += int(action)
        info: dict[str, Any] = {
            "ones": self.ones,
            "deep": {"length": np.int64(self.length)},
            "is_long": self.length > 5,
        }
        if self.length == 4:
            info["only_short"] = 4.0
        if self.value is not None:
            info["value"] = self.value
        return self._observe(), float(action), self.left == 0, False, info


KEYS = ["ones", "deep/length", "is_long", "only_short"]


def goals(tmp_path: Path, **body: Any) -> Run:
    config = {"info_metrics": KEYS, "metrics_num_episodes": 20, **body.pop("config", {})}
    return make(tmp_path, env=Goals, config=config, **body)


def test_they_are_means_over_the_window_of_episodes_and_in_every_sink(tmp_path: Path) -> None:
    run = goals(tmp_path, loggers=["csv"])
    run.train()
    for line in lines(run):
        assert line["info"]["ones_mean"] == line["episode_return_mean"]
        assert line["info"]["deep/length_mean"] == line["episode_len_mean"]
        assert 0 < line["info"]["is_long_mean"] < 1
        assert line["info"]["only_short_mean"] in (4.0, None)  # episodes without a value do not count
    assert lines(run)[-1]["info"]["only_short_mean"] == 4.0
    with (run.folder.path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["info/ones_mean"]) for row in rows] == [line["info"]["ones_mean"] for line in lines(run)]
    assert "info/deep/length_mean" in rows[0]


@pytest.mark.slow
def test_they_reach_tensorboard_and_the_services(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="outplay[wandb] is not installed")
    pytest.importorskip("mlflow", reason="outplay[mlflow] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tests.runs.test_tracking import OFFLINE, mlflow_history, wandb_history

    run = goals(tmp_path, loggers=["tensorboard", OFFLINE, "mlflow"])
    run.train()
    folder, expected = run.folder.path, [line["info"]["ones_mean"] for line in lines(run)]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("info/ones_mean")] == pytest.approx(expected)
    assert [row["info/ones_mean"] for row in wandb_history(folder)] == expected
    assert [value for _, value in mlflow_history(folder, "info/ones_mean")] == expected
    assert len(mlflow_history(folder, "info/deep.length_mean")) == 4


def infos_of(num_workers: int, **config: Any) -> list[dict[str, float]]:
    with PPO(Goals, {**CONFIG, "info_metrics": KEYS[:3], "num_workers": num_workers, **config}) as trainer:
        return [trainer.train()["info"] for _ in range(2)]


def test_they_are_the_same_on_every_placement() -> None:
    assert infos_of(2) == infos_of(0)


@pytest.mark.slow
def test_they_are_the_same_on_every_placement_with_complete_episodes() -> None:
    assert infos_of(1, batch_mode="complete_episodes") == infos_of(0, batch_mode="complete_episodes")


EVALUATED = {"evaluation_interval": 1, "evaluation_duration": 12, "evaluation_explore": True}


@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
@pytest.mark.parametrize("limit", [100, 3])
def test_evaluations_have_them_too(unit: str, limit: int) -> None:
    """An episode that is truncated by `evaluation_max_episode_steps` counts with its last info."""
    config = {**CONFIG, **EVALUATED, "evaluation_duration_unit": unit, "evaluation_duration": 60}
    with PPO(Goals, {**config, "info_metrics": KEYS, "evaluation_max_episode_steps": limit}) as trainer:
        found = trainer.train()["evaluation"]
    assert found["info"]["ones_mean"] == pytest.approx(found["episode_return_mean"], abs=1e-9)
    assert 4 <= found["info"]["deep/length_mean"] <= 7
    assert found["info"]["only_short_mean"] == 4.0
    if limit == 100:
        assert found["info"]["deep/length_mean"] == pytest.approx(found["episode_len_mean"], abs=1e-9)


def test_those_of_evaluations_are_in_metrics_and_stop_conditions(tmp_path: Path) -> None:
    config = {**EVALUATED, "info_metrics": ["ones", "nowhere"]}
    run = make(tmp_path, env=Goals, config=config, stop={"evaluation/info/ones_mean": 0.1}, loggers=["csv"])
    assert run.train() == "evaluation/info/ones_mean reached 0.1"
    assert lines(run)[-1]["evaluation"]["info"]["nowhere_mean"] is None
    with (run.folder.path / "progress.csv").open() as file:
        assert float(next(csv.DictReader(file))["evaluation/info/ones_mean"]) > 0
    with pytest.raises(ConfigError, match=r"'evaluation/info/one_mean'\. Did you mean 'evaluation/info/ones_mean'"):
        make(tmp_path, env=Goals, config=config, stop={"evaluation/info/one_mean": 1})
    without = {**config, "info_metrics": []}
    with pytest.raises(ConfigError, match="'evaluation/info/ones_mean'; list its key in info_metrics"):
        make(tmp_path, env=Goals, config=without, stop={"evaluation/info/ones_mean": 1})


def test_outplay_evaluate_prints_them(tmp_path: Path, cli: Callable[..., Outcome]) -> None:  # noqa: F811
    run = goals(tmp_path, stop={"training_iteration": 1}, config={"info_metrics": ["deep/length"]})
    run.train()
    evaluate = ("evaluate", str(run.folder.path), "--trust", "--episodes", "6")
    metrics = json.loads(cli(*evaluate, "--json")[1])
    assert metrics["info"]["deep/length_mean"] == metrics["episode_len_mean"]
    code, out, _ = cli(*evaluate)
    assert code == 0
    assert f", deep/length_mean {metrics['episode_len_mean']:.3f}\n" in out


def test_a_checkpoint_has_those_of_an_evaluation_beside_training(tmp_path: Path) -> None:
    beside = {
        **EVALUATED,
        "evaluation_interval": 2,
        "evaluation_num_workers": 1,
        "evaluation_parallel_to_training": True,
    }
    config = {**CONFIG, **beside, "info_metrics": ["ones", "nowhere"]}
    with running("inline"):
        with PPO(Goals, config) as whole:
            for _ in range(3):
                whole.train()
            path = whole.save(tmp_path)
            expected = whole.train()["evaluation"]
        with PPO(Goals, config) as resumed:
            resumed.restore(path)
            found = resumed.train()["evaluation"]
    assert found["info"]["ones_mean"] == expected["info"]["ones_mean"] == found["episode_return_mean"]
    assert math.isnan(found["info"]["nowhere_mean"])


def test_they_are_saved_with_the_window(tmp_path: Path) -> None:
    body = {"checkpoint_freq": 2, "checkpoint_at_end": False}
    run = goals(tmp_path, stop={"training_iteration": 3}, **body)
    run.train()
    resumed = Run.resume(run.folder, until({"training_iteration": 4}), env=Goals)
    resumed.train()
    alone = goals(tmp_path, stop={"training_iteration": 4})
    alone.train()
    assert [line["info"] for line in lines(resumed)] == [line["info"] for line in lines(alone)]


def test_a_checkpoint_without_them_can_be_resumed_with_them(tmp_path: Path) -> None:
    run = goals(tmp_path, stop={"training_iteration": 2}, config={"info_metrics": []})
    run.train()
    assert "info" not in lines(run)[0]
    more = {"stop": {"training_iteration": 3.0}, "config": {**run.experiment.config, "info_metrics": ["ones"]}}
    resumed = Run.resume(run.folder, lambda recorded: recorded.model_copy(update=more), env=Goals)
    resumed.train()
    assert list(lines(resumed)[-1]["info"]) == ["ones_mean"]


def test_a_key_that_is_never_there_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make(tmp_path, config={"info_metrics": ["sucess"], "train_batch_size": 200})
    run.train()
    said = [record.getMessage() for record in caplog.records if "sucess" in record.getMessage()]
    assert said == [
        "info_metrics: the info of environment 'CartPole-v1' has no 'sucess' at the end of its episodes so far; check "
        "the key"
    ]
    assert [line["info"] for line in lines(run)] == [{"sucess_mean": None}] * 4


@pytest.mark.parametrize("value", ["high", [1, 2], {"x": 1}])
def test_a_value_that_is_no_number_is_an_error(tmp_path: Path, value: Any) -> None:
    config = {**CONFIG, "info_metrics": ["value"], "env_config": {"value": value}}
    trainer = PPO(Goals, config)
    with (
        trainer,
        pytest.raises(EnvError, match=r"info_metrics has 'value', but info\['value'\] at the end .* not a num"),
    ):
        trainer.train()


def test_numbers_of_an_info() -> None:
    info = {"a": {"b": 2, "c/d": True}, "a/b": 3.5, "x": np.array([4]), "n": float("nan")}
    assert info_number(info, "a/b", "e") == 3.5  # a key with a slash comes first
    assert info_number({"a": {"b": 2}}, "a/b", "e") == 2
    assert info_number(info, "x", "e") == 4
    assert all(np.isnan(info_number(info, key, "e")) for key in ("n", "missing", "x/y", "a/b/c"))


def test_the_info_of_vector_environments() -> None:
    info = {
        "score": np.array([1.0, 2.0]),
        "_score": np.array([True, False]),
        "episode": {"r": np.array([5.0, 6.0]), "_r": np.array([True, True])},
        "_episode": np.array([True, True]),
        "size": 3,
    }
    assert info_of_lane(info, 0) == {"score": 1.0, "episode": {"r": 5.0}}
    assert info_of_lane(info, 1) == {"episode": {"r": 6.0}}


@pytest.mark.parametrize("separate", [False, True])
def test_the_info_of_atari_games(separate: bool) -> None:
    vector = make_vector(EnvSpec("ALE/Breakout-v5"), 2, separate=separate)
    vector.reset(np.ones(2, bool), [1, 2])
    vector.step(np.zeros(2, np.int64))
    infos = [vector.info(lane) for lane in range(2)]
    vector.close()
    assert [info["lives"] for info in infos] == [5, 5]
    assert all(info_number(info, "frame_number", "Breakout") > 0 for info in infos)


def test_a_run_can_stop_by_one(
    cli: Callable[..., Outcome],  # noqa: F811
    tmp_path: Path,
) -> None:
    run = goals(tmp_path, stop={"info/ones_mean": 0.1})
    assert run.train() == "info/ones_mean reached 0.1"
    code, _, err = cli("train", "--env", "CartPole-v1", "--stop", "info/goal_mean=1")
    assert (code, err) == (2, "outplay: stop: there is no metric 'info/goal_mean'; list its key in info_metrics\n")
    with pytest.raises(ConfigError, match=r"there is no metric 'info/one_mean'\. Did you mean 'info/ones_mean'"):
        goals(tmp_path, stop={"info/one_mean": 1})
    with pytest.raises(ConfigError, match="info_metrics: 'a' is listed twice"):
        PPO(Goals, info_metrics=["a", "a"])


def test_the_panel_shows_them(tmp_path: Path) -> None:
    from outplay.cli.panel import Panel
    from tests.cli.test_panel import drawn

    run = goals(tmp_path)
    panel = Panel(run)
    panel.show(run.step())
    text = "\n".join(drawn(panel, 120))
    run.close()
    assert f"ones_mean {run.last_result['info']['ones_mean']:.3f}" in text

"""Curricula: levels, tasks by a function, and the promises with both of them."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import outplay
from outplay import A2C, DQN, PG, PPO, Algorithm, CallbackError, ConfigError, EnvError, TaskSettableEnv
from outplay.algorithms.curriculum import Level, next_level
from outplay.envs.examples import Maze
from outplay.groups import CurriculumConfig
from tests import probes
from tests.cli.common import Outcome
from tests.cli.conftest import cli  # noqa: F401 - a fixture

SMALL = {
    "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 20, "sgd_minibatch_size": 20,
    "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}, "seed": 3,
}  # fmt: skip
OF_PPO = ("num_sgd_iter", "sgd_minibatch_size")


class Ladder(TaskSettableEnv[Any, Any]):
    """The return of an episode is its task. Episodes of 7 steps: they do not end with the Fragments of 5."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.task = 0.0

    def get_task(self) -> float:
        return self.task

    def set_task(self, task: float) -> None:
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        is_over = self.steps == 7
        return np.zeros(1, np.float32), self.task * is_over, is_over, False, {}


def curriculum(levels: list[Any], promote: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"curriculum": {"levels": levels, "promote_when": promote, "min_episodes": 1, **more}}


# When the level changes.


@pytest.mark.parametrize(
    ("level", "metrics", "expected"),
    [
        (Level(0), {"episode_return_mean": 0.8}, Level(1)),
        (Level(0), {"episode_return_mean": 0.79}, Level(0, 1)),
        (Level(1, 5), {"episode_return_mean": 0.5}, Level(1, 6)),
        (Level(1), {"episode_return_mean": 0.2}, Level(0)),
        (Level(0), {"episode_return_mean": 0.1}, Level(0, 1)),
        (Level(2), {"episode_return_mean": 0.9}, Level(2, 1)),
        (Level(1), {"episode_return_mean": math.nan}, Level(1, 1)),
        (Level(1), {}, Level(1, 1)),
    ],
)
def test_levels_go_up_and_down(level: Level, metrics: dict[str, float], expected: Level) -> None:
    config = CurriculumConfig(
        levels=["a", "b", "c"], promote_when={"episode_return_mean": 0.8}, demote_when={"episode_return_mean": 0.2}
    )
    assert next_level(config, level, metrics, has_episodes=True) == expected
    assert next_level(config, level, metrics, has_episodes=False) == Level(level.number, level.iterations + 1)


def test_all_conditions_must_hold_and_names_may_be_nested_and_those_of_rllib() -> None:
    conditions = {"evaluation/episode_reward_mean": 1.0, "learner/entropy": 0.5}
    config = CurriculumConfig(levels=[1, 2], promote_when=conditions, min_iterations=3)
    both = {"evaluation": {"episode_return_mean": 1.5}, "learner": {"entropy": 0.6}}
    one = {"evaluation": {"episode_return_mean": 1.5}, "learner": {"entropy": 0.4}}
    assert next_level(config, Level(0, 2), both, True) == Level(1)
    assert next_level(config, Level(0, 1), both, True) == Level(0, 2)
    assert next_level(config, Level(0, 2), one, True) == Level(0, 3)
    both["evaluation"]["curriculum_level"] = 0  # of an evaluation that was reported later
    assert next_level(config, Level(0, 2), both, True) == Level(1)
    both["evaluation"]["curriculum_level"] = 1
    assert next_level(config, Level(0, 2), both, True) == Level(0, 3)


@pytest.mark.parametrize("kind", [PPO, PG, DQN])
def test_only_episodes_that_started_on_a_level_count_for_it(kind: type[Algorithm]) -> None:
    """Each level is left after its first episodes; those that began before are counted, but not averaged."""
    settings = {**SMALL, **curriculum([1.0, 2.0, 3.0, 4.0, 5.0], {"episode_return_mean": 0.5})}
    if kind is not PPO:
        settings = {name: value for name, value in settings.items() if name not in OF_PPO}
    seen, ended = [], 0
    with kind(Ladder, settings) as trainer:
        for _ in range(12):
            result = trainer.train()
            ended += result["episodes_this_iter"]
            assert result["episodes_total"] == ended
            if not math.isnan(result["episode_return_mean"]):
                assert result["episode_return_min"] == result["episode_return_max"] == result["curriculum_level"] + 1.0
            seen.append(result["curriculum_level"])
    assert seen[0] == 0
    assert seen[-1] == 4
    assert all(0 <= after - before <= 1 for before, after in pairwise(seen))
    if kind is PPO:  # an episode that straddles the change would have ended in the iteration after it
        assert min(seen.count(level) for level in range(4)) >= 2


def test_a_level_lasts_for_its_episodes_and_iterations() -> None:
    more = curriculum([1.0, 2.0], {"episode_return_mean": 0.5}, min_episodes=9)
    with PPO(Ladder, {**SMALL, **more}) as trainer:
        levels = {}
        while not (result := trainer.train())["curriculum_level"]:
            levels[result["training_iteration"]] = result["episodes_total"]
        assert [total >= 9 for total in levels.values()] == [False] * (len(levels) - 1) + [True]
    more = curriculum([1.0, 2.0], {"episode_return_mean": 0.5}, min_iterations=5)
    with PPO(Ladder, {**SMALL, **more}) as trainer:
        assert [trainer.train()["curriculum_level"] for _ in range(6)] == [0] * 5 + [1]


def test_the_first_level_is_the_task_from_the_start_and_demotion_goes_back() -> None:
    more = curriculum([5.0, 1.0], {"episode_return_mean": 4.0}, demote_when={"episode_return_mean": 2.0})
    with PPO(Ladder, {**SMALL, **more}) as trainer:
        assert trainer.task == 5.0
        assert trainer.evaluate()["episode_return_mean"] == 5.0
        levels = [trainer.train()["curriculum_level"] for _ in range(10)]
    assert 1 in levels
    assert 0 in levels[levels.index(1) :]


# Evaluation uses the level.


def test_evaluation_uses_the_level(tmp_path: Path) -> None:
    more = curriculum([1.0, 2.0, 3.0], {"evaluation/episode_return_mean": 0.5})
    more |= {"evaluation_interval": 2, "evaluation_duration": 2, "train_batch_size": 40}
    with PPO(Ladder, {**SMALL, **more}) as trainer:
        results = [trainer.train() for _ in range(6)]
        assert [r["curriculum_level"] for r in results] == [0, 0, 1, 1, 2, 2]
        assert [r["evaluation"]["episode_return_mean"] for r in results[1::2]] == [1.0, 2.0, 3.0]
        assert [r["evaluation"]["curriculum_level"] for r in results[1::2]] == [0, 1, 2]
        path = trainer.save(tmp_path)
    from outplay.runs.playing import SavedPolicy, play

    saved = SavedPolicy.find(path, tmp_path, env=Ladder)
    assert play(saved, {"evaluation_duration": 2}).metrics["episode_return_mean"] == 3.0


# The promises.

MAZE = {
    **SMALL, "num_env_groups": 4, "train_batch_size": 128, "lr": 5e-3, "env_config": {"size": 3, "max_steps": 12},
    **curriculum([1, 2, 3, 4, 5, 6], {"episode_return_mean": 0.6}, demote_when={"episode_return_mean": 0.1}),
}  # fmt: skip


def levels_and_weights(trainer: Algorithm, iterations: int) -> tuple[list[int], bytes]:
    levels = [trainer.train()["curriculum_level"] for _ in range(iterations)]
    return levels, trainer.policy.flat.numpy().tobytes()


@pytest.fixture(scope="module")
def whole() -> tuple[list[int], bytes]:
    """Ten iterations in the main process, without an interruption."""
    with PPO(Maze, MAZE) as trainer:
        levels, weights = levels_and_weights(trainer, 10)
    assert levels[4] != levels[0]
    assert levels[-1] != levels[4]
    return levels, weights


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_and_a_resume_do_not_change_the_result(
    engine: str, num_workers: int, whole: tuple[list[int], bytes], tmp_path: Path
) -> None:
    """Interrupted in the middle of the curriculum; without workers before, and with workers after."""
    if engine == "ray" and num_workers == 1:
        pytest.skip("workers on Ray start slowly")
    with PPO(Maze, {**MAZE, "num_workers": num_workers}) as first:
        levels, _ = levels_and_weights(first, 5)
        path = first.save(tmp_path)
    state = json.loads((Path(path) / "state.json").read_text())
    assert state["level"]["number"] == first.level.number > 0
    with PPO.from_checkpoint(path, env=Maze, config={"num_workers": 0 if engine == "inline" else num_workers}) as again:
        assert again.task == first.task
        later, weights = levels_and_weights(again, 5)
    assert (levels + later, weights) == whole


def test_a_worker_that_dies_does_not_change_the_result(process_engine: None, whole: tuple[list[int], bytes]) -> None:
    with PPO(Maze, {**MAZE, "num_workers": 2}) as trainer:
        levels, _ = levels_and_weights(trainer, 5)
        os.kill(trainer.workers.foreach_worker(lambda worker: worker.process()[1])[1], signal.SIGKILL)
        later, weights = levels_and_weights(trainer, 5)
        assert (levels + later, weights) == whole


@pytest.mark.parametrize("kind", [A2C, PG, DQN])
def test_other_algorithms_resume_in_a_curriculum(kind: type[Algorithm], tmp_path: Path) -> None:
    config = {key: value for key, value in MAZE.items() if key not in OF_PPO}
    if kind is DQN:
        config |= {"learning_starts": 64, "buffer_size": 512, "sgd_minibatch_size": 8, "train_batch_size": 32}
    with kind(Maze, config) as trainer:
        expected = levels_and_weights(trainer, 8)
    with kind(Maze, config) as first:
        levels, _ = levels_and_weights(first, 4)
        path = first.save(tmp_path)
    with kind(Maze, config) as second:
        second.restore(path)
        later, weights = levels_and_weights(second, 4)
    assert (levels + later, weights) == expected
    assert expected[0][-1] > 0


def test_an_asynchronous_run_has_a_curriculum(process_engine: None) -> None:
    """Fragments that were requested on the old level arrive on the new one."""
    config = {
        "num_envs": 2, "num_workers": 2, "async": True, "rollout_fragment_length": 3, "train_batch_size": 32,
        "learning_starts": 16, "sgd_minibatch_size": 8, "buffer_size": 256, "model": {"fcnet_hiddens": [8]},
        **curriculum([1.0, 2.0, 3.0], {"episode_return_mean": 0.5}),
    }  # fmt: skip
    with DQN(Ladder, config) as trainer:
        for _ in range(100):
            result = trainer.train()
            if not math.isnan(result["episode_return_mean"]):
                assert result["episode_return_min"] == result["episode_return_max"] == result["curriculum_level"] + 1.0
                if result["curriculum_level"] == 2:
                    break
        assert result["curriculum_level"] == 2


def test_other_levels_at_a_resume(tmp_path: Path) -> None:
    more = curriculum([1.0, 2.0, 3.0], {"episode_return_mean": 0.5})
    with PPO(Ladder, {**SMALL, **more}) as first:
        while first.train()["curriculum_level"] < 2:
            pass
        path = first.save(tmp_path)
    fewer = curriculum([1.0, 7.0], {"episode_return_mean": 0.5})
    with PPO.from_checkpoint(path, env=Ladder, config=fewer) as second:
        assert (second.level.number, second.task) == (1, 7.0)
    with PPO.from_checkpoint(path, env=Ladder, config={"curriculum": None}) as third:
        assert third.task == 3.0  # it goes on with the task that it had
        assert "curriculum_level" not in third.train()


# What is refused.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"env_task_fn": print, **curriculum([1], {})}, "curriculum and env_task_fn both set the task"),
        (curriculum([1, 2], {}), "curriculum.promote_when is missing"),
        (curriculum([], {}), "curriculum.levels must be a list of tasks"),
        ({"curriculum": {}}, "curriculum.levels must be a list of tasks"),
        (curriculum([1, None], {"episode_return_mean": 1}), "none of them null"),
        (curriculum([1, 2], {"episode_retrn_mean": 1}), "curriculum: there is no metric 'episode_retrn_mean'. Did you"),
        (curriculum([1, 2], {"time_total_s": 1}), "time_total_s depends on the machine"),
        (curriculum([1, 2], {"evaluation/episode_return_mean": 1}), "needs evaluation_interval"),
        (curriculum([1, 2], {"info/won_mean": 1}), "curriculum: there is no metric 'info/won_mean'; list its key in"),
        (
            {"info_metrics": ["won"], **curriculum([1, 2], {"info/won_mean": 1}, demote_when={"info/wo_mean": 0})},
            "curriculum: there is no metric 'info/wo_mean'. Did you mean 'info/won_mean'?",
        ),
        (
            {"evaluation_interval": 1, **curriculum([1, 2], {"evaluation/info/won_mean": 1})},
            "curriculum: there is no metric 'evaluation/info/won_mean'; list its key in info_metrics",
        ),
        (curriculum([1, 2], {"curriculum_level": 1}), "a condition on curriculum_level is never reached on level 0"),
        (
            curriculum([1, 2], {"episode_return_mean": 1}, demote_when={"episode_return_mean": 1.5}),
            r"demote_when.episode_return_mean must be less than promote_when.episode_return_mean \(1\), not 1.5",
        ),
        ({"env_task_fn": "nowhere:task"}, "no module 'nowhere' for env_task_fn 'nowhere:task'"),
        ({"env_task_fn": "math"}, r"env_task_fn: expected an import path \(module:function\), not 'math'"),
        ({"env_task_fn": "outplay.files:replace_fil"}, "has no 'replace_fil'. Did you mean 'replace_file'"),
        ({"env_task_fn": "math:pi"}, "'math:pi' is a float, not a function"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        PPO(Ladder, {**SMALL, **settings})


class Unfinished(TaskSettableEnv[Any, Any], probes.OneStep):  # type: ignore[misc]
    """Without set_task()."""


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", probes.OneStep, Unfinished])
@pytest.mark.parametrize("settings", [{"env_task_fn": print}, curriculum([1, 2], {"episode_return_mean": 1})])
def test_an_environment_without_tasks_is_refused_before_training(env: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match=rf"{min(settings)} is set, but environment .* has no set_task\(task\); add"):
        PPO(env, {**SMALL, **settings})


class Picky(Ladder):
    """Its first task must be a number."""

    def set_task(self, task: float) -> None:
        super().set_task(float(task))


def test_the_first_task_is_tried_before_anything_is_written(
    cli: Callable[..., Outcome],  # noqa: F811
    tmp_path: Path,
) -> None:
    env = "tests.algorithms.test_curriculum:Picky"
    code, _, err = cli("train", "--env", env, "--config", "curriculum={levels: [easy]}", "--timesteps", "100")
    assert (code, err.count("\n")) == (2, 1)
    assert f"environment '{env}' raised in set_task(): ValueError: could not convert string to float: 'easy'" in err
    assert list(tmp_path.iterdir()) == []


def two_arguments(train_results: Any, task_settable_env: Any) -> None:
    """The third argument is missing."""


@pytest.mark.parametrize("function", [two_arguments, "tests.algorithms.test_curriculum:two_arguments", lambda: None])
def test_a_function_with_other_arguments_is_refused(function: Any) -> None:
    wanted = r"must take \(train_results, task_settable_env, env_ctx\), but it takes \("
    with pytest.raises(ConfigError, match=rf"^env_task_fn: .*(two_arguments|lambda).* {wanted}"):
        PPO(Ladder, {**SMALL, "env_task_fn": function})


# env_task_fn.


def curriculum_fn(train_results: Any, task_settable_env: Any, env_ctx: Any) -> float:
    """As in RLlib's documents: the difficulty rises with the steps."""
    time_steps = train_results.get("timesteps_total")
    assert env_ctx == {}
    assert task_settable_env.get_task() == max(0, time_steps - 20) // 40  # the task before
    return float(time_steps // 40)


_PATH = "tests.algorithms.test_curriculum"


@pytest.mark.parametrize("function", [curriculum_fn, f"{_PATH}:curriculum_fn", f"{_PATH}.curriculum_fn"])
def test_a_function_or_its_import_path_sets_the_task(function: Any, tmp_path: Path) -> None:
    def play(trainer: Algorithm, iterations: int) -> list[Any]:
        return [(trainer.train()["episode_return_max"], trainer.task) for _ in range(iterations)]

    with PPO(Ladder, {**SMALL, "env_task_fn": function}) as trainer:
        expected, weights = play(trainer, 8), trainer.policy.flat.clone()
        assert [task for _, task in expected] == [i * 20 // 40 for i in range(1, 9)]
    with PPO(Ladder, {**SMALL, "env_task_fn": function}) as first:
        begun = play(first, 4)
        path = first.save(tmp_path)
    if isinstance(function, str):
        sentence = f"names env_task_fn '{function}', which would be imported; .* or trust=True"
        with pytest.raises(outplay.CheckpointError, match=sentence):
            PPO.from_checkpoint(path, env=Ladder)
    with PPO.from_checkpoint(path, env=Ladder, config={"env_task_fn": function}) as second:
        assert np.array_equal(begun + play(second, 4), expected, equal_nan=True)
        assert second.policy.flat.equal(weights)
    if isinstance(function, str):
        with PPO.from_checkpoint(path, trust=True) as third:
            assert third.config.env_task_fn == function


def test_a_function_that_raises_is_named_and_the_iteration_is_rolled_back() -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("difficulty")

    with PPO(Ladder, {**SMALL, "env_task_fn": broken}) as trainer:
        with pytest.raises(CallbackError, match=r"env_task_fn raised KeyError: 'difficulty' \(test_curriculum"):
            trainer.train()
        assert trainer.iteration == 0


class Harder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with tasks around an environment without them."""

    factor = 0.0

    def set_task(self, task: float) -> None:
        self.factor = task

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, self.factor * float(reward), *rest


def test_a_wrapper_may_have_the_tasks() -> None:
    def made() -> Any:
        return gymnasium.wrappers.TimeLimit(Harder(probes.OneStep()), 10)

    more = curriculum([1.0, 3.0], {"episode_return_mean": 0.5})
    with PPO(made, {**SMALL, **more}) as trainer:
        assert [trainer.train()["episode_return_max"] for _ in range(2)] == [1.0, 3.0]


def test_task_settable_env_says_what_is_missing() -> None:
    for call in (Unfinished.get_task, lambda env: Unfinished.set_task(env, 1)):
        with pytest.raises(NotImplementedError, match="Unfinished does not define"):
            call(Unfinished())

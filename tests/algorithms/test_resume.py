"""Promise 2: a run that is interrupted and resumed ends with the same bytes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import A2C, PG, PPO, Algorithm, ConfigError, EnvError
from outplay.algorithms import iteration
from outplay.envs import group
from tests import probes

SMALL = {"num_envs": 6, "num_workers": 0, "train_batch_size": 120, "seed": 3}
CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "native": (PPO, "CartPole-v1", {}),
    "Python": (PPO, probes.Walk, {"env_config": {"length": 33}}),
    "normalised": (A2C, probes.Walk, {"normalize_observations": True}),
    "whole episodes": (PG, probes.Walk, {"env_config": {"length": 21}}),
    "whole episodes, native": (PPO, "CartPole-v1", {"batch_mode": "complete_episodes"}),
    "continuous": (PPO, "Pendulum-v1", {"max_episode_steps": 33}),
    "schedules": (PPO, probes.Walk, {"lr_schedule": [[0, 1e-3], [800, 0.0]], "kl_coeff": 0.2, "kl_target": 1e-5}),
    "optimizer": (A2C, probes.Walk, {"optimizer": {"type": "rmsprop"}}),
    "stacked": (PPO, probes.Walk, {"frame_stack": 3}),
    "nested": (PPO, probes.Nested, {}),
    "old": (PPO, probes.Old, {"env_config": {"cut": True}}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_goes_on_exactly(case: str, tmp_path: Path) -> None:
    algorithm, env, config = CASES[case]
    settings = {**SMALL, **config}
    with algorithm(env=env, config=settings) as whole:
        results = [whole.train() for _ in range(6)]
        weights, optimizer = whole.policy.flat.clone(), whole.learner.optimizer.first_moment.clone()

    with algorithm(env=env, config=settings) as first:
        for _ in range(3):
            first.train()
        path = first.save(tmp_path)
    with algorithm(env=env, config=settings) as second:
        second.restore(path)
        resumed = [second.train() for _ in range(3)]
    assert second.policy.flat.equal(weights)
    assert second.learner.optimizer.first_moment.equal(optimizer)
    for ours, theirs in zip(resumed, results[3:], strict=True):
        for key in ("training_iteration", "timesteps_total", "episodes_total", "episode_return_mean", "learner"):
            assert ours[key] == theirs[key] or np.isnan(ours[key])


def test_a_stopped_trainer_can_go_on() -> None:
    with PPO(env=probes.Walk, config=SMALL) as whole, PPO(env=probes.Walk, config=SMALL) as stopped:
        for _ in range(4):
            whole.train()
            stopped.train()
            stopped.stop()
        assert whole.policy.flat.equal(stopped.policy.flat)


class Failing(probes.Walk):
    """Raises once, when it is told to."""

    fails = False

    def step(self, action: Any) -> Any:
        if Failing.fails:
            Failing.fails = False
            raise RuntimeError("once")
        return super().step(action)


def test_an_iteration_that_fails_can_be_tried_again() -> None:
    """Even in the middle, with some Fragments collected: nothing of it counts."""
    config = {**SMALL, "rollout_fragment_length": 5}
    with PPO(env=Failing, config=config) as whole, PPO(env=Failing, config=config) as failing:
        for _ in range(3):
            whole.train()
        failing.train()
        collect = failing.workers.collect
        calls: list[int] = []

        def second_fails(weights: Any) -> Any:
            calls.append(1)
            Failing.fails = len(calls) == 2
            return collect(weights)

        failing.workers.collect = second_fails  # type: ignore[method-assign]
        with pytest.raises(EnvError, match="RuntimeError: once"):
            failing.train()
        for _ in range(2):
            failing.train()
        assert failing.policy.flat.equal(whole.policy.flat)


@pytest.mark.parametrize(("env", "more"), [("ALE/Pong-v5", {}), ("ALE/Breakout-v5", {"fire_on_reset": True})])
def test_atari_is_rebuilt_from_its_actions(tmp_path: Path, env: str, more: dict[str, Any]) -> None:
    config = {
        **more,
        "num_envs": 2, "num_env_groups": 1, "num_workers": 0, "train_batch_size": 40, "num_sgd_iter": 1,
        "learner_threads": 1,
        "model": {"conv_filters": [[8, 8, 4], [8, 4, 2]], "fcnet_hiddens": [16], "precision": "bfloat16"},
        "normalize_observations": True,
        "max_episode_steps": 70,
    }  # fmt: skip
    with PPO(env=env, config=config) as whole:
        for _ in range(6):
            whole.train()
    with PPO(env=env, config=config) as first:
        for _ in range(4):
            first.train()
        path = first.save(tmp_path)
    with PPO(env=env, config=config) as second:
        second.restore(path)
        for _ in range(2):
            second.train()
        assert second.policy.flat.equal(whole.policy.flat)


@pytest.mark.slow
def test_atari_games_that_share_a_seed_are_rebuilt(tmp_path: Path) -> None:
    """Without sticky actions only every 32nd episode is seeded: a lane in its second or third one is led up to it."""
    config = {
        "num_envs": 2, "num_env_groups": 1, "num_workers": 0, "train_batch_size": 60, "num_sgd_iter": 1,
        "learner_threads": 1, "model": {"conv_filters": [[4, 8, 8]], "fcnet_hiddens": [8]},
        "env_config": {"repeat_action_probability": 0.0}, "max_episode_steps": 25,
    }  # fmt: skip
    with PPO(env="ALE/Pong-v5", config=config) as whole:
        for _ in range(5):
            whole.train()
        assert whole.workers.states[0].episodes.tolist() == [6, 6]
    with PPO(env="ALE/Pong-v5", config=config) as first:
        for _ in range(3):
            first.train()
        path = first.save(tmp_path)
        assert first.workers.states[0].lengths.tolist() != [0, 0]
    with PPO(env="ALE/Pong-v5", config=config) as second:
        second.restore(path)
        for _ in range(2):
            second.train()
        assert not second.inexact
        assert second.policy.flat.equal(whole.policy.flat)


def test_tasks_are_restored(tmp_path: Path) -> None:
    def harder(result: dict[str, Any], env: Any, context: Any) -> float:
        assert isinstance(env, probes.Walk)
        return result["training_iteration"] * 0.1

    config = {**SMALL, "env_task_fn": harder}
    with PPO(env=probes.Walk, config=config) as whole:
        for _ in range(6):
            whole.train()
    with PPO(env=probes.Walk, config=SMALL) as never:
        for _ in range(6):
            never.train()
    with PPO(env=probes.Walk, config=config) as first:
        for _ in range(3):
            first.train()
        path = first.save(tmp_path)
    with PPO(env=probes.Walk, config=config) as second:
        second.restore(path)
        for _ in range(3):
            second.train()
        assert second.policy.flat.equal(whole.policy.flat)
        assert not never.policy.flat.equal(whole.policy.flat)


@pytest.mark.parametrize("changed", [{}, {"num_envs": 4}])
def test_a_restored_trainer_evaluates_and_trains_on_the_saved_task(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Before anything is collected; and also where the environments begin anew."""
    config = {**SMALL, "env_task_fn": lambda *_: 2.9}  # near the goal: the reward is 1 from the start
    with PPO(env=probes.Walk, config=config) as first:
        untouched = first.evaluate()
        first.train()
        path = first.save(tmp_path)
        expected = first.evaluate()
    assert expected["episode_len_mean"] < untouched["episode_len_mean"]
    with PPO(env=probes.Walk, config={**config, **changed}) as second:
        second.restore(path)
        assert second.evaluate() == expected
        if changed:
            (fragment, *_) = iteration.collect(second)
            assert fragment.observations[0][0, :, 0].mean() > 1.5  # the first episodes are about it, too
            assert [state.tasks for state in second.workers.states] == [[2.9]] * 4


@pytest.mark.parametrize("task", [(1.0, 2.0), np.float64(0.5), None])
def test_tasks_of_all_kinds(tmp_path: Path, task: Any) -> None:
    """A task is what comes back from a checkpoint: a list for a tuple; None leaves things as they are."""

    def sometimes(result: dict[str, Any], env: Any, context: Any) -> Any:
        return {1: 0.7, 2: task}.get(result["training_iteration"])

    class Tasked(probes.Walk):
        def set_task(self, task: Any) -> None:
            assert isinstance(task, (float, list))
            super().set_task(sum(task) if isinstance(task, list) else task)

    config = {**SMALL, "env_task_fn": sometimes}
    with PPO(env=Tasked, config=config) as whole:
        for _ in range(6):
            whole.train()
    with PPO(env=Tasked, config=config) as first:
        for _ in range(4):
            first.train()
        path = first.save(tmp_path)
    with PPO.from_checkpoint(path, env=Tasked, config={"env_task_fn": sometimes}) as second:
        for _ in range(2):
            second.train()
        assert second.policy.flat.equal(whole.policy.flat)


def test_a_task_that_cannot_be_saved_is_refused() -> None:
    config = {**SMALL, "env_task_fn": lambda *_: object()}
    with (
        PPO(env=probes.Walk, config=config) as trainer,
        pytest.raises(
            ConfigError, match=r"^env_task_fn returned <object .*>: the task is an object, which cannot be saved"
        ),
    ):
        trainer.train()


class Leaky(probes.Walk):
    """Something stays over from the episode before: looks deterministic at first, and is not."""

    def step(self, action: Any) -> Any:
        self.worn = getattr(self, "worn", 0) + 1
        observation, *rest = super().step(action)
        return observation + np.float32(self.worn > 1100), *rest


def test_what_was_rebuilt_wrongly_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {**SMALL, "env_config": {"length": 10_000}, "train_batch_size": 6 * 1150}
    with PPO(env=Leaky, config=config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    with PPO(env=Leaky, config=config) as again:
        again.restore(path)
        again.train()
    assert "could not be rebuilt exactly" in caplog.text
    assert again.inexact


def test_an_environment_that_is_not_deterministic_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PPO(env=probes.Restless, config=SMALL) as trainer:
        assert "so a resumed run will not be exact" in caplog.text
        trainer.train()
        path = trainer.save(tmp_path)
    caplog.clear()
    with PPO(env=probes.Restless, config=SMALL) as again:
        again.restore(path)
        assert "cannot be resumed exactly" in caplog.text
        assert again.train()["training_iteration"] == 2


class Impatient(probes.Walk):
    """Refuses to go on after its end, and ends when it likes: never where it ended before."""

    lives = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = int(self.lives.integers(2, 30))
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        assert self.left > 0, "stepped after its end"
        self.left -= 1
        observation, reward, terminated, _, info = super().step(action)
        self.left *= not terminated
        return observation, reward, terminated, self.left == 0 and not terminated, info


def test_what_does_not_repeat_itself_goes_on_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PPO(env=Impatient, config=SMALL) as trainer:
        for _ in range(3):
            trainer.train()
        path = trainer.save(tmp_path)
    for _ in range(20):  # by chance an episode may be long enough once, but not in all lanes and tries
        with PPO(env=Impatient, config=SMALL) as again:
            again.restore(path)
            assert again.train()["training_iteration"] == 4
        if "could not be rebuilt exactly" in caplog.text:
            break
    assert "could not be rebuilt exactly" in caplog.text


def test_an_episode_that_is_too_long_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "LONGEST_REPLAY", 30)
    config = {**SMALL, "env_config": {"length": 1000}}
    with PPO(env=probes.Walk, config=config) as trainer:
        for _ in range(2):
            trainer.train()
        path = trainer.save(tmp_path)
    with PPO(env=probes.Walk, config=config) as again, caplog.at_level(logging.WARNING):
        again.restore(path)
        assert "an episode is too long" in caplog.text
        assert again.train()["training_iteration"] == 3
        assert "could not be rebuilt exactly" in caplog.text


def test_settings_of_the_environments_may_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    with PPO(env=probes.Walk, config={**SMALL, "num_envs": 4}) as again:
        again.restore(path)
        assert "the EnvGroups differ from the checkpoint: the environments start new episodes" in caplog.text
        assert again.train()["training_iteration"] == 2

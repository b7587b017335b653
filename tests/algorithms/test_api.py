"""The Python API, with the names that RLlib's users know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import outplay
from outplay import PPO, ConfigError, pretty_print
from outplay.algorithms import iteration
from tests import probes

CONFIG = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40}


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))
    trainer = PPO(env="CartPole-v1", config=CONFIG)
    assert trainer.get_config()["num_envs"] == 4
    assert "num_envs: 4" in pretty_print(trainer.get_config())
    result = trainer.train()
    assert "training_iteration: 1" in pretty_print(result)

    path = trainer.save()
    assert str(tmp_path) in path
    assert trainer.evaluate(path) == trainer.evaluate()

    restored = PPO(env="CartPole-v1", config=CONFIG)
    restored.restore(path)
    assert restored.iteration == 1

    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action = trainer.compute_single_action(observation)
    assert action in (0, 1)
    assert isinstance(action, int)
    actions = trainer.compute_actions({"one": observation, "two": observation}, explore=False)
    assert actions["one"] == actions["two"] == trainer.compute_single_action(observation, explore=False)
    assert trainer.compute_actions({}) == {}

    policy = trainer.get_policy()
    weights = policy.get_weights()
    assert weights["policy_head.weight"].shape == (2, 64)
    policy.set_weights({name: np.zeros_like(array) for name, array in weights.items()})
    assert not policy.flat.any()
    policy.model.base_model.summary()
    assert "policy_head" in capsys.readouterr().out
    trainer.stop()


def test_foreach_worker(process_engine: None) -> None:
    with PPO(env="CartPole-v1", config={**CONFIG, "num_workers": 2}) as trainer:
        trainer.train()
        found = trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        assert len(found) == 2
        present = trainer.get_policy().get_weights()
        for weights in found:
            assert all(np.array_equal(weights[name], present[name]) for name in present)


def test_a_single_action_with_a_state() -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        action, state, extras = trainer.compute_single_action(np.zeros(4, np.float32), state={})
        assert action in (0, 1)
        assert state == {}
        assert extras["dist"].shape == (2,)


def test_an_observation_of_another_shape_is_refused() -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer, pytest.raises(outplay.EnvError, match=r"has shape \(3,\)"):
        trainer.compute_single_action(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("observation", "sentence"),
    [
        (
            (np.zeros(4, np.float32), {}),
            r"^the observation is \(observation, info\) where the observation alone is needed",
        ),
        (np.full(4, np.nan, np.float32), r"^observation\[0\] is nan"),
        ("four", "^the observation has shape"),
        (None, "^the observation has shape"),
    ],
)
def test_what_is_no_observation_is_refused(observation: Any, sentence: str) -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer, pytest.raises(outplay.EnvError, match=sentence):
        trainer.compute_single_action(observation)


def test_a_checkpoint_knows_its_algorithm(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        path = trainer.save(tmp_path)
    with outplay.Algorithm.from_checkpoint(path) as again:
        assert isinstance(again, PPO)
    with pytest.raises(outplay.CheckpointError, match="the checkpoint belongs to PPO, not to A2C"):
        outplay.A2C.from_checkpoint(path)


def test_actions_of_a_box_are_in_the_environments_range() -> None:
    with PPO(env="Pendulum-v1", config=CONFIG) as trainer:
        for _ in range(20):
            action = trainer.compute_single_action(np.zeros(3, np.float32))
            assert action.shape == (1,)
            assert -2 <= action[0] <= 2


def test_without_an_environment() -> None:
    with pytest.raises(ConfigError, match="PPO needs an environment"):
        PPO()
    assert PPO(config={"env": "CartPole-v1", "num_workers": 0}).env_spec.name == "CartPole-v1"


def test_explore_false_trains_on_the_likeliest_actions() -> None:
    def actions(explore: bool) -> Any:
        with PPO(env=probes.Match, config={**CONFIG, "explore": explore}) as trainer:
            fragments = iteration.collect(trainer)
            return np.concatenate([f.actions.ravel() for f in fragments]), fragments[0].extras["dist"]

    greedy, params = actions(False)
    assert np.array_equal(greedy[: params[..., 0].size], params.argmax(-1).ravel())
    assert not np.array_equal(greedy, actions(True)[0])


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluation_by_episodes(process_engine: None, num_workers: int) -> None:
    """The same figures wherever it is played; twice the same as nothing was learned in between."""
    config = {**CONFIG, "evaluation_duration": 25, "evaluation_num_workers": num_workers}
    with PPO(env=probes.Walk, config=config) as trainer:
        first = trainer.evaluate()
        assert first["episodes"] == 25
        assert first == trainer.evaluate()
    with PPO(env=probes.Walk, config={**config, "evaluation_num_workers": 0}) as alone:
        assert first == alone.evaluate()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_episodes_are_truncated_at_their_limit(process_engine: None, num_workers: int) -> None:
    config = {**CONFIG, "evaluation_max_episode_steps": 2, "evaluation_num_workers": num_workers}
    with PPO(env=probes.Walk, config=config) as trainer:
        figures = trainer.evaluate()
        assert (figures["episodes"], figures["episode_len_mean"]) == (10, 2)
        assert figures["episodes_truncated"] == 10
    with PPO(env=probes.Walk, config=CONFIG) as trainer:
        assert trainer.evaluate()["episode_len_mean"] > 2
        assert "episodes_truncated" not in trainer.evaluate()


@pytest.mark.slow
def test_an_evaluation_of_an_atari_game_is_bounded() -> None:
    """Doing nothing in Breakout would otherwise go on for 27,000 steps."""
    model = {"conv_filters": [[4, 8, 8]], "fcnet_hiddens": [8], "use_bias": False}
    config = {"num_envs": 2, "num_workers": 0, "evaluation_duration": 1, "model": model}
    with PPO(env="ALE/Breakout-v5", config=config) as trainer:
        with torch.no_grad():
            trainer.policy.flat.zero_()  # all actions are equally likely, and the first is to do nothing
        figures = trainer.evaluate()
        assert figures["timesteps"] == 4500
        assert figures["episodes_truncated"] == 1
    with PPO(env="ALE/Breakout-v5", config={**config, "fire_on_reset": True}) as trainer:
        with torch.no_grad():
            trainer.policy.flat.zero_()
        figures = trainer.evaluate()
        assert figures["timesteps"] < 1000
        assert "episodes_truncated" not in figures
    with pytest.raises(ConfigError, match=r"fire_on_reset is only for ALE/… games with atari_preprocessing"):
        PPO(env="CartPole-v1", config={"fire_on_reset": True})


def test_evaluation_by_timesteps() -> None:
    config = {
        **CONFIG,
        "evaluation_duration": 100,
        "evaluation_duration_unit": "timesteps",
        "env_config": {"length": 30},
    }
    with PPO(env=probes.Walk, config=config) as trainer:
        figures = trainer.evaluate()
        assert figures["timesteps"] == 100
        assert figures["episode_len_mean"] <= 30
    with PPO(
        env="CartPole-v1", config={**CONFIG, **{k: config[k] for k in config if "eval" in k}, "evaluation_duration": 3}
    ) as trainer:
        figures = trainer.evaluate()
        assert (figures["episodes"], figures["cut_off"]) == (0, 3.0)
        assert np.isnan(figures["episode_return_mean"])


def test_a_gpu_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="num_gpus is 1, but torch finds no GPU"):
        PPO(env="CartPole-v1", config={"num_gpus": 1})


def test_train_batch_size_is_reached_by_several_fragments() -> None:
    with PPO(env="CartPole-v1", config={**CONFIG, "rollout_fragment_length": 3, "train_batch_size": 40}) as trainer:
        assert trainer.train()["timesteps_total"] == 48  # four rounds of 12


def test_restoring_over_something_trained(tmp_path: Path) -> None:
    with PPO(env=probes.Walk, config=CONFIG) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
        trainer.train()
        expected = trainer.policy.flat.clone()
        trainer.train()
        trainer.restore(path)
        trainer.train()
        assert trainer.policy.flat.equal(expected)

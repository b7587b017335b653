"""PQN: its targets on numbers worked out by hand, exploration, masks, recurrent networks, resuming, CartPole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import PQN, ConfigError, EnvError, PQNConfig
from outplay.algorithms.iteration import collect
from outplay.algorithms.pqn import PQNLearner
from outplay.envs.examples import RepeatAfterMe
from outplay.fragments import Batch, join
from outplay.learning.returns import lambda_returns
from outplay.learning.rows import TargetRows
from outplay.testing.algorithm import learned
from outplay.testing.probes import Forbidding
from tests import probes
from tests.policies.test_custom import Remembering
from tests.policies.test_recurrent import CORES, PREVIOUS
from tests.policies.test_recurrent_and_masked import Maze

SMALL: dict[str, Any] = {
    "num_workers": 0, "num_envs": 4, "num_env_groups": 2, "train_batch_size": 64, "sgd_minibatch_size": 16, "seed": 3,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip


def made(env: Any = probes.Walk, **config: Any) -> PQN:
    model = {**SMALL["model"], **config.pop("model", {})}
    return PQN(env=env, config={**SMALL, **config, "model": model})


def learner_of(trainer: PQN) -> PQNLearner:
    assert isinstance(trainer.learner, PQNLearner)
    return trainer.learner


def with_values(learner: PQNLearner, *values: float) -> None:
    """The Q-values are these numbers everywhere."""
    head: Any = learner.q_network.advantage_head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(values))


# Targets and loss.


def batch_of(trainer: PQN) -> Batch:
    return join(collect(trainer))


@pytest.mark.parametrize("truncates", [False, True])
def test_forbidden_actions_are_not_bootstrapped_from(truncates: bool) -> None:
    """Action 3 has the largest Q-value, and the targets have it only where it is allowed."""
    config = {"gamma": 0.5, "lambda": 0.0, "env_config": {"truncates": truncates}, "rollout_fragment_length": 6}
    with made(Forbidding, **config) as trainer:
        learner = learner_of(trainer)
        with_values(learner, 0.0, 2.0, 4.0, 100.0)
        batch = batch_of(trainer)
        targets = learner.targets(batch)
        assert batch.action_mask is not None
        assert batch.last_action_mask is not None
        assert batch.final_action_mask is not None
        best = np.where(batch.action_mask, np.array([0.0, 2.0, 4.0, 100.0]), -np.inf).max(-1)
        last = np.where(batch.last_action_mask, np.array([0.0, 2.0, 4.0, 100.0]), -np.inf).max(-1)
        expected = batch.rewards + 0.5 * np.concatenate([best[1:], last[None]])
        expected[batch.terminated] = batch.rewards[batch.terminated]
        final = np.where(batch.final_action_mask, np.array([0.0, 2.0, 4.0, 100.0]), -np.inf).max(-1)
        for step, lane, value in zip(batch.final_steps, batch.final_lanes, final, strict=True):
            expected[step, lane] = batch.rewards[step, lane] + 0.5 * value
        assert bool(len(batch.final_steps)) == truncates
        assert targets == pytest.approx(expected, abs=1e-4)
        assert len({50, 2, 1, 0} & set(np.round(targets - batch.rewards).ravel().astype(int).tolist())) == 4


def test_targets_are_lambda_returns_of_scaled_rewards() -> None:
    """The largest Q-value is 3: what each step is bootstrapped from, also at the last one."""
    config = {"gamma": 0.9, "lambda": 0.7, "reward_scale": 2.0, "train_batch_size": 256, "max_episode_steps": 15}
    with made("CartPole-v1", **config) as trainer:
        learner = learner_of(trainer)
        with_values(learner, 1.0, 3.0)
        batch = batch_of(trainer)
        ends = batch.terminated | batch.truncated
        following = np.where(batch.terminated, 0.0, 3.0)
        expected = lambda_returns(2.0 * batch.rewards, following, ends, 0.9, 0.7)
        assert batch.terminated.any()
        assert batch.truncated.any()
        assert learner.targets(batch) == pytest.approx(expected, abs=1e-4)


def test_a_step_descends_half_the_squared_error_of_the_action_taken() -> None:
    """Q = (1, 3, −1), actions 0 and 1, targets 2 and 0: ½ mean(1, 9) = 2.5. The bias gets (Q − G) / 2 each."""
    with made(optimizer={"type": "sgd"}, grad_clip=None) as trainer:
        learner = learner_of(trainer)
        with_values(learner, 1.0, 3.0, -1.0)
        rows = TargetRows((torch.zeros(2, 2),), torch.tensor([0, 1]), torch.tensor([2.0, 0.0]))
        _, metrics = learner.step(rows, 0.1)
        bias: Any = learner.q_network.advantage_head.bias
        assert {name: value.item() for name, value in metrics.items()} == {"loss": 2.5, "q_mean": 2.0}
        assert bias.tolist() == pytest.approx([1.05, 2.85, -1.0])


@pytest.mark.parametrize(("minibatch", "epochs", "steps"), [(16, 1, 4), (32, 3, 6), (1000, 2, 2)])
def test_sgd_minibatch_size_and_num_sgd_iter(minibatch: int, epochs: int, steps: int) -> None:
    with made(sgd_minibatch_size=minibatch, num_sgd_iter=epochs) as trainer:
        metrics = trainer.train()["learner"]
        assert trainer.learner.optimizer.steps == steps
    assert metrics.keys() == {"epsilon", "loss", "q_mean", "grad_norm", "explained_variance", "lr"}
    assert np.isfinite(list(metrics.values())).all()


def test_whole_episodes() -> None:
    """Lanes that wait for others are not learned from."""
    with made(Forbidding, batch_mode="complete_episodes") as trainer:
        batch = batch_of(trainer)
        assert learner_of(trainer).inputs(batch)[3](batch.rewards).shape == (batch.steps,)
        trainer.train()


# Recurrent networks.


@pytest.mark.parametrize("core", CORES)
def test_learning_computes_what_acting_computed(core: str) -> None:
    """At the first minibatch, the network gives the Q-values that were recorded: the states are those of acting."""
    model = {**CORES[core], **PREVIOUS, "max_seq_len": 6}
    with made(Maze, model=model, rollout_fragment_length=16) as trainer:
        learner, batch = learner_of(trainer), batch_of(trainer)
        observations, mask, memory, take = learner.inputs(batch)
        assert memory is not None
        assert mask is not None
        values = learner.q_network.values(observations, memory).detach().numpy()
        allowed = mask.numpy()
        assert values[allowed] == pytest.approx(take(batch.extras["dist"])[allowed], abs=1e-5)
        result = trainer.train()["learner"]
        assert np.isfinite(list(result.values())).all()


def test_the_last_observations_have_their_recurrent_state() -> None:
    """The state after the last step gives the Q-values with which the next Fragment starts."""
    with made(RepeatAfterMe, model=CORES["lstm"], exploration_config={"type": "Random"}) as trainer:
        learner, batch = learner_of(trainer), batch_of(trainer)
        after = batch_of(trainer)
        values = learner.values_of(batch.last_observations, batch.last_policy_state)
        assert values == pytest.approx(after.extras["dist"][0].max(-1), abs=1e-5)


@pytest.mark.slow
def test_a_memory_is_learned() -> None:
    """RepeatAfterMe pays 1 for the observation before, −1 for others: about 0 without a memory, at most 99."""
    config: dict[str, Any] = {
        "num_envs": 16, "train_batch_size": 512, "sgd_minibatch_size": 64, "gamma": 0.5, "lr": 3e-3, "lambda": 0.3,
        "exploration_config": {"epsilon_timesteps": 10_000}, "metrics_num_episodes": 20, "evaluation_duration": 5,
    }  # fmt: skip
    with made(RepeatAfterMe, model={"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 10}, **config) as trainer:
        while trainer.timesteps < 40_000:
            trainer.train()
        assert trainer.evaluate()["episode_return_mean"] > 80


# Settings.


def test_its_network_has_layer_norm_and_no_dueling() -> None:
    with made() as trainer:
        assert [type(layer).__name__ for layer in trainer.policy.network.hidden] == ["Linear", "LayerNorm", "ReLU"]
        assert learner_of(trainer).q_network.value_head is None
    with made(model={"layer_norm": False}) as trainer:
        assert [type(layer).__name__ for layer in trainer.policy.network.hidden] == ["Linear", "ReLU"]
    assert PQNConfig().model.layer_norm


def test_a_custom_model_needs_no_other_settings(tmp_path: Path) -> None:
    """LayerNorm is on by default, and is for the layers after the custom model; the checkpoint says so, too."""
    model = {"custom_model": Remembering, "max_seq_len": 7}
    config = {**SMALL, "model": model}
    with PQN(env=RepeatAfterMe, config=config) as first:
        first.train()
        path = first.save(tmp_path)
        expected = first.train()["learner"]
    with PQN.from_checkpoint(path, env=RepeatAfterMe, trust=True) as second:
        assert second.train()["learner"] == expected


@pytest.mark.parametrize(
    ("env", "config", "error", "message"),
    [
        ("Pendulum-v1", {}, EnvError, "PQN needs a Discrete action space, and this one is Box"),
        (
            probes.Walk,
            {"exploration_config": {"type": "ParameterNoise"}},
            ConfigError,
            "ParameterNoise is for DQN; PQN",
        ),
        (probes.Walk, {"exploration_config": {"initial_stddev": 0.1}}, ConfigError, "initial_stddev"),
        (
            probes.Walk,
            {"exploration_config": {"type": "SoftQ", "final_epsilon": 0.1}},
            ConfigError,
            "final_epsilon is for type EpsilonGreedy, and the type is SoftQ",
        ),
        (probes.Walk, {"dueling": True}, ConfigError, "it is a setting of DQN, not of PQN"),
        (probes.Walk, {"noisy": True}, ConfigError, "it is a setting of DQN, not of PQN"),
        (probes.Walk, {"lambda": 1.5}, ConfigError, "lambda"),
    ],
)
def test_what_it_refuses(env: Any, config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(env, **config)


# Exploration.


def test_epsilon_follows_its_schedule_and_is_resumed(tmp_path: Path) -> None:
    config = {"exploration_config": {"epsilon_timesteps": 256, "final_epsilon": 0.0}}
    with made(**config) as first:
        assert first.policy.exploration == {"epsilon": 1.0}
        assert [first.train()["learner"]["epsilon"] for _ in range(2)] == [0.75, 0.5]
        path = first.save(tmp_path)
        assert first.train()["learner"]["epsilon"] == 0.25
    with made(**config) as second:
        second.restore(path)
        assert second.train()["learner"]["epsilon"] == 0.25
        assert learned(second) == learned(first)
    with made(**config) as third:  # a new run from old weights starts its own schedule
        third.load_weights(path)
        assert third.train()["learner"]["epsilon"] == 0.75


@pytest.mark.parametrize(
    ("exploration", "metric"),
    [
        ({"type": "SoftQ", "temperature_schedule": [[0, 2.0], [128, 1.0]]}, {"temperature": 1.5}),
        ({"type": "Random"}, {"epsilon": 1.0}),
        ({"epsilon_spread": 7.0, "initial_epsilon": 0.4, "final_epsilon": 0.4}, {"epsilon": 0.4}),
    ],
)
def test_types_of_exploration(exploration: dict[str, Any], metric: dict[str, float]) -> None:
    with made(exploration_config=exploration) as trainer:
        result = trainer.train()["learner"]
        assert {name: result[name] for name in metric} == metric


# Engines.


@pytest.mark.slow
def test_workers_do_not_change_the_result(engine: str) -> None:
    found = []
    for workers in (0, 2):
        with made(Forbidding, num_workers=workers, model={**CORES["gru"], "max_seq_len": 5}) as trainer:
            for _ in range(3):
                trainer.train()
            found.append(learned(trainer))
    assert found[0] == found[1]


# Real environments.


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pqn_solves_cartpole_untouched(seed: int) -> None:
    """By its defaults. The recipe needs fewer steps."""
    with PQN(env="CartPole-v1", config={"num_workers": 0, "metrics_num_episodes": 20, "seed": seed}) as trainer:
        best = 0.0
        while trainer.timesteps < 400_000 and best < 475:
            best = max(best, trainer.train()["episode_return_mean"])
    assert best >= 475


@pytest.mark.slow
def test_it_learns_from_images() -> None:
    config = {"num_envs": 4, "train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1}
    with made("ALE/Pong-v5", **config, model={"conv_filters": [[8, 8, 4], [8, 4, 2]]}) as trainer:
        before = trainer.policy.flat.clone()
        assert np.isfinite(list(trainer.train()["learner"].values())).all()
        assert not trainer.policy.flat.equal(before)

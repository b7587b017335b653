"""SAC, TD3 and DDPG: switches, action spaces, exploration, refusals. The suite of all algorithms tests the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import DDPG, IMPALA, SAC, TD3, Algorithm, CheckpointError, ConfigError, EnvError, tune
from outplay.runs.experiments import load_recipe
from outplay.testing import probes
from outplay.testing.algorithm import learned
from tests.policies.test_custom_distribution import Own

SMALL: dict[str, Any] = {
    "num_workers": 0, "num_envs": 4, "num_env_groups": 2, "train_batch_size": 16, "learning_starts": 32,
    "sgd_minibatch_size": 16, "buffer_size": 1_000, "lr": 3e-3, "tau": 0.05, "seed": 7,
    "model": {"fcnet_hiddens": [16]}, "exploration_config": {"random_timesteps": 32},
}  # fmt: skip
CROSS_Q = {
    "critic_norm": "batch", "use_target_network": False, "policy_delay": 3, "critic_hiddens": [32], "tau": 0.005
}  # fmt: skip
SWITCHES: dict[str, dict[str, Any]] = {
    "DroQ": {"critic_norm": "layer", "critic_dropout": 0.01, "training_intensity": 4.0},
    "CrossQ": CROSS_Q,
    "three steps, by priority": {"n_step": 3, "prioritized_replay": True},
    "five critics, normalised": {"num_critics": 5, "normalize_observations": True},
    "bfloat16": {"model": {"fcnet_hiddens": [16], "precision": "bfloat16"}},
    "tanh": {"model": {"fcnet_hiddens": [16], "fcnet_activation": "tanh"}},
    "elu": {"model": {"fcnet_hiddens": [16], "fcnet_activation": "elu"}},
    "in shards": {"replay_shards": 2},
}


def make(algorithm: type[Algorithm], env: Any = probes.Walk, **config: Any) -> Algorithm:
    env_config = {"continuous": True} if env is probes.Walk and algorithm is not SAC else {}
    return algorithm(env, {**SMALL, "env_config": env_config, **config})


def after(trainer: Algorithm, iterations: int) -> dict[str, float]:
    for _ in range(iterations):
        result = trainer.train()
    return result["learner"]


class Grid(gymnasium.Env[Any, Any]):
    """Actions of shape (2, 2) with bounds of their own. The reward is largest in the middle of each range."""

    observation_space = spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3)})
    action_space = spaces.Box(
        np.array([[0, -5], [1, 2]], np.float32), np.array([[1, 5], [3, 2.5]], np.float32), dtype=np.float32
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"place": np.zeros(2, np.float32), "kind": 1}, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        width = self.action_space.high - self.action_space.low
        middle = (self.action_space.high + self.action_space.low) / 2
        reward = -float((((action - middle) / width) ** 2).sum())
        return {"place": np.ones(2, np.float32), "kind": 2}, reward, True, False, {}


class Picture(gymnasium.Env[Any, Any]):
    """An image that is bright or dark, and a continuous action that must have the sign of its brightness."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.bright = bool(self.np_random.random() < 0.5)
        return np.full((12, 12, 3), 255 * self.bright, np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((12, 12, 3), np.uint8), float(action[0]) * (1 if self.bright else -1), True, False, {}


@pytest.mark.parametrize(
    ("algorithm", "switch"),
    [
        (SAC, "DroQ"),
        (TD3, "CrossQ"),
        *(
            pytest.param(algorithm, switch, marks=pytest.mark.slow)
            for algorithm in (SAC, TD3, DDPG)
            for switch in SWITCHES
            if (algorithm, switch) not in {(SAC, "DroQ"), (TD3, "CrossQ")}
        ),
    ],
)
def test_resuming_is_exact_with_every_switch(algorithm: type[Algorithm], switch: str, tmp_path: Path) -> None:
    config = SWITCHES[switch]
    with make(algorithm, **config) as whole:
        after(whole, 5)
        path = whole.save(tmp_path)
        metrics = after(whole, 4)
        expected = learned(whole)
    assert np.isfinite(list(metrics.values())).all()
    with make(algorithm, **config) as resumed:
        resumed.restore(path)
        after(resumed, 4)
        assert learned(resumed) == expected


@pytest.mark.parametrize(
    ("algorithm", "exploration"), [(SAC, {"noise_correlation": 0.9}), (DDPG, {"type": "OrnsteinUhlenbeckNoise"})]
)
def test_noise_that_is_correlated_goes_on_where_it_was(
    algorithm: type[Algorithm], exploration: dict[str, Any], tmp_path: Path
) -> None:
    """It is part of the policy's state: a checkpoint in the middle of an episode has it."""
    config = {"env_config": {"continuous": True}, "exploration_config": {"random_timesteps": 0, **exploration}}
    with make(algorithm, **config) as whole:
        after(whole, 3)
        path = whole.save(tmp_path)
        after(whole, 3)
        expected = learned(whole)
    with make(algorithm, **config) as resumed:
        resumed.restore(path)
        after(resumed, 3)
        assert learned(resumed) == expected


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_actions_of_any_shape_and_bounds(algorithm: type[Algorithm]) -> None:
    with make(algorithm, Grid) as trainer:
        after(trainer, 30)
        assert trainer.evaluate(episodes=3)["episode_return_mean"] > -0.2  # random: about −⅓
        observation, _ = Grid().reset(seed=0)
        for explore in (True, False):
            assert Grid.action_space.contains(trainer.compute_single_action(observation, explore=explore))


@pytest.mark.parametrize("algorithm", [SAC, pytest.param(TD3, marks=pytest.mark.slow)])
def test_images(algorithm: type[Algorithm]) -> None:
    config = {**SMALL["model"], "conv_filters": [[4, 4, 4]]}
    own = {"initial_alpha": 0.05} if algorithm is SAC else {}
    with make(algorithm, Picture, model=config, learner_threads=1, **own) as trainer:
        after(trainer, 40)
        assert trainer.evaluate(episodes=20)["episode_return_mean"] > 0.5


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), r"needs finite bounds.*TransformAction\), or use PPO"),
        (spaces.Box(-np.inf, np.inf, (1,), np.int64), "needs finite bounds"),
        (spaces.Box(-(2**62), 2**62, (1,), np.int64), "needs finite bounds"),  # more integers than can be told apart
        (spaces.Box(0, np.inf, (1,)), "needs finite bounds"),
        (spaces.MultiDiscrete([2, 2]), r"needs a Box( or Discrete)? action space, and this one is MultiDiscrete"),
        (spaces.Tuple([spaces.Discrete(2)]), "needs a Box"),
    ],
)
@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_other_action_spaces_are_refused(algorithm: type[Algorithm], space: Any, message: str) -> None:
    class Other(Grid):
        action_space = space

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, True, False, {}

    with pytest.raises(EnvError, match=f"{algorithm.__name__} {message}"):
        make(algorithm, Other)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"normalize_actions": False}, r"normalize_actions: the actions of SAC are in \[-1, 1\]"),
        ({"use_target_network": False}, "use_target_network: false and critic_norm: batch need each other"),
        ({"critic_norm": "batch"}, "use_target_network: false and critic_norm: batch need each other"),
        ({**CROSS_Q, "tau": 0.01}, "tau has no effect with use_target_network: false; leave it out"),
        ({**CROSS_Q, "target_network_update_freq": 2}, "target_network_update_freq has no effect with use_target_net"),
        ({"target_entropy_scale": 0.5}, "target_entropy_scale is for discrete actions"),
        ({"learn_alpha": False, "target_entropy": -2}, "target_entropy has no effect with learn_alpha: false; leave"),
        ({"learn_alpha": False, "target_entropy_scale": 0.5}, "target_entropy_scale has no effect with learn_alpha"),
        ({"learn_alpha": False, "temperature_lr_scale": 2}, "temperature_lr_scale has no effect with learn_alpha"),
        ({"model": {"use_bias": False}}, r"model\.use_bias: the critics of SAC have biases"),
        ({"model": {"vf_share_layers": True}}, r"model\.vf_share_layers: SAC has no value network"),
        ({"burn_in_len": 4}, r"burn_in_len: SAC has no recurrent networks"),
        ({"replay_shards": 9}, "set it to at most 2, or num_env_groups to at least 9"),
        ({"learning_starts": 5_000}, "set a larger buffer_size, or a smaller learning_starts"),
        ({"model": {"use_lstm": True}}, "SAC cannot train recurrent networks"),
        ({"exploration_config": {"type": "GaussianNoise"}}, "GaussianNoise is for algorithms with deterministic"),
        ({"exploration_config": {"stddev": 0.1}}, "stddev': it is a setting of TD3 and DDPG, not of SAC"),
        ({"initial_alpha": 0}, "initial_alpha"),
        ({"initial_alpha": float("inf")}, "initial_alpha.*inf"),
        ({"critic_lr_scale": float("inf")}, "critic_lr_scale.*inf"),
        ({"prioritized_replay_alpha": 0.9}, "prioritized_replay_alpha has no effect with prioritized_replay: false"),
        ({"num_workers": 1, "weights_interval": 3}, "weights_interval has no effect with async: false; leave it out"),
        ({"batch_mode": "complete_episodes"}, "batch_mode: SAC learns from single steps"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(SAC, probes.Aim, **wrong)


def test_settings_of_other_algorithms_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="target_noise_clip has no effect with target_noise: 0; leave it out"):
        make(DDPG, probes.Aim, target_noise_clip=0.3)
    with pytest.raises(ConfigError, match="max_policy_lag has no effect with async: false; leave it out"):
        IMPALA(probes.Walk, {"async": False, "num_workers": 1, "max_policy_lag": 3})


def test_a_custom_distribution_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.custom_action_dist: SAC has an action distribution of its own"):
        make(SAC, probes.Aim, model={"custom_action_dist": Own})


# SAC.


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    config = {"target_entropy": -0.5, "lr": 1e-2, "training_intensity": 2.0}
    with make(SAC, probes.Aim, **config) as trainer:
        first = after(trainer, 5)
        last = after(trainer, 60)
    assert last["entropy"] == pytest.approx(-0.5, abs=0.4)
    assert last["alpha"] != first["alpha"]


def test_a_fixed_temperature_stays() -> None:
    with make(SAC, probes.Aim, initial_alpha=0.25, learn_alpha=False) as trainer:
        assert after(trainer, 6)["alpha"] == pytest.approx(0.25)


def test_target_entropies() -> None:
    with make(SAC, Grid) as continuous, make(SAC, probes.Walk) as discrete:
        learners: list[Any] = [continuous.learner, discrete.learner]
        targets = [learner.target_entropy(None) for learner in learners]
    assert targets == [-4.0, pytest.approx(0.3 * np.log(3))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cross_q_learns_the_pendulum() -> None:
    """With normalisation before the activations, returns stay below −600."""
    experiment = load_recipe("pendulum-crossq")
    best = -float("inf")
    with SAC(experiment.env, {**experiment.config, "seed": 0, "num_workers": 0}) as trainer:
        for limit in (3_000, 4_000, 5_000):
            while trainer.timesteps < limit:
                trainer.train()
            best = max(best, trainer.evaluate(episodes=10)["episode_return_mean"])
            if best > -300:
                return
    pytest.fail(f"the best return is {best:.0f}")


# TD3 and DDPG.


def test_the_policy_is_updated_with_a_delay() -> None:
    with make(TD3, probes.Aim, policy_delay=4, target_network_update_freq=4, training_intensity=1.0) as trainer:
        after(trainer, 3)
        learner: Any = trainer.learner
        moved = []
        for _ in range(8):
            before, targets = trainer.policy.flat.clone(), learner.target.flat.clone()
            critics = learner.critics_flat.clone()
            learner.learn(1)
            moved.append((not torch.equal(before, trainer.policy.flat), not torch.equal(targets, learner.target.flat)))
            assert not torch.equal(critics, learner.critics_flat)
    assert [sum(which) for which in zip(*moved, strict=True)] == [2, 2]


def actions_of(trainer: Algorithm, lanes: int, steps: int) -> np.ndarray:
    """Exploring actions at one observation, (steps, lanes)."""
    policy, rng = trainer.get_policy(), np.random.default_rng(0)
    state, found = policy.initial_state(lanes), []
    for _ in range(steps):
        actions, state, _ = policy.act((np.zeros((lanes, 1), np.float32),), state, None, True, rng)
        found.append(actions[:, 0])
    return np.array(found)


def test_random_actions_come_first_and_are_uniform() -> None:
    for algorithm in (SAC, TD3):
        with make(algorithm, probes.Aim, exploration_config={"random_timesteps": 100}) as trainer:
            assert trainer.train()["learner"]["random_actions"] == 1.0
            drawn = actions_of(trainer, 2_000, 2)
            assert (abs(drawn.mean()), drawn.std()) == (pytest.approx(0, abs=0.05), pytest.approx(3**-0.5, abs=0.02))
            after(trainer, 8)
            assert trainer.get_policy().exploration["random_actions"] == 0.0


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_random_integers_are_uniform(algorithm: type[Algorithm]) -> None:
    class Dial(probes.Aim):
        action_space = spaces.Box(0, 2, (1,), np.int64)

    with make(algorithm, Dial, exploration_config={"random_timesteps": 100}) as trainer:
        trainer.train()
        drawn = trainer.get_policy().to_env(actions_of(trainer, 3_000, 1).T)
    assert np.bincount(drawn[:, 0]) == pytest.approx([1_000] * 3, rel=0.1)


@pytest.mark.parametrize(("scale", "stddev"), [({}, 0.2), ({"final_scale": 0.5, "scale_timesteps": 16}, 0.1)])
def test_gaussian_noise(scale: dict[str, Any], stddev: float) -> None:
    exploration = {"random_timesteps": 0, "stddev": 0.2, **scale}
    with make(TD3, probes.Aim, exploration_config=exploration) as trainer:
        after(trainer, 1)
        drawn = actions_of(trainer, 4_000, 2)
        assert drawn.std() == pytest.approx(stddev, abs=0.01)
        assert np.corrcoef(drawn)[0, 1] == pytest.approx(0, abs=0.05)
        assert trainer.get_policy().initial_state(2) == {}


def test_ornstein_uhlenbeck_noise_is_correlated_in_time_and_starts_at_zero() -> None:
    """x_t = (1 − θ) x_{t−1} + σ ε: after one step σ, in the long run σ/√(1 − (1 − θ)²) = 0.2/0.527."""
    with make(DDPG, probes.Aim, exploration_config={"random_timesteps": 0}) as trainer:
        drawn = (
            actions_of(trainer, 4_000, 40) - trainer.compute_single_action(np.zeros(1, np.float32), explore=False) / 2
        )
        assert drawn[0].std() == pytest.approx(0.2, abs=0.01)
        assert drawn[-1].std() == pytest.approx(0.38, abs=0.02)
        assert np.corrcoef(drawn[-2], drawn[-1])[0, 1] == pytest.approx(0.85, abs=0.03)


def test_correlated_noise_of_sac_has_the_distribution_of_the_policy() -> None:
    """atanh of an action is μ + σ x; x_t = ρ x_{t−1} + √(1 − ρ²) ε, and x_0 = ε: standard normal in every step."""
    with make(SAC, probes.Aim, exploration_config={"random_timesteps": 0, "noise_correlation": 0.8}) as trainer:
        policy = trainer.get_policy()
        state, rng = policy.initial_state(4_000), np.random.default_rng(0)
        zeros = np.zeros((4_000, 1), np.float32)
        noise = []
        for _ in range(3):
            actions, state, extras = policy.act((zeros,), state, None, True, rng)
            mean, log_std = extras["dist"][:, :1], extras["dist"][:, 1:]
            noise.append(((np.arctanh(actions) - mean) / np.exp(log_std))[:, 0])
        assert np.mean(noise, axis=1) == pytest.approx([0, 0, 0], abs=0.05)
        assert np.std(noise, axis=1) == pytest.approx([1, 1, 1], abs=0.05)
        found = np.corrcoef(noise)
        assert found[0, 1] == pytest.approx(0.8, abs=0.02)
        assert found[1, 2] == pytest.approx(0.8, abs=0.02)
        assert found[0, 2] == pytest.approx(0.64, abs=0.03)
        fresh = np.random.default_rng(0).standard_normal((2, 4_000, 1), np.float32)
        assert noise[1] == pytest.approx(0.8 * fresh[0, :, 0] + 0.6 * fresh[1, :, 0], abs=1e-3)
        assert policy.act((zeros,), state, None, False, rng)[0] == pytest.approx(np.tanh(mean))


@pytest.mark.parametrize(
    ("env", "exploration", "message"),
    [
        (probes.Walk, {"noise_correlation": 0.9}, "noise_correlation is for continuous actions.*leave it out"),
        (probes.Aim, {"noise_correlation": 0.9, "type": "Random"}, "noise_correlation has no effect with type: Random"),
        (probes.Aim, {"noise_correlation": 1.0}, "noise_correlation.*less than 1"),
    ],
)
def test_correlated_noise_that_makes_no_sense_is_refused(env: Any, exploration: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(SAC, env, exploration_config=exploration)


@pytest.mark.parametrize("setting", [{"ou_theta": 0.1}, {"type": "OrnsteinUhlenbeckNoise", "stddev": 0.3}])
def test_settings_of_another_noise_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"exploration_config\.(ou_theta|stddev) is for type"):
        make(TD3, probes.Aim, exploration_config=setting)


# Everywhere.


@pytest.mark.parametrize("algorithm", ["SAC", pytest.param("TD3", marks=pytest.mark.slow)])
def test_it_is_a_trainable(algorithm: str, tmp_path: Path) -> None:
    config = {**SMALL, "env": "outplay.testing.probes:Aim", "lr": tune.grid_search([1e-3, 1e-2])}
    result = tune.run(
        algorithm, config=config, stop={"training_iteration": 3}, metric="episode_return_mean", mode="max",
        storage_path=tmp_path, verbose=0, max_concurrent_trials=1,
    )  # fmt: skip
    assert [trial.last_result["training_iteration"] for trial in result.trials] == [3, 3]


def test_an_entropy_that_no_policy_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the entropy of 3 actions is at most 1\.1; set it to less"):
        make(SAC, probes.Walk, target_entropy=1.2)


class FewAllowed(gymnasium.Env[Any, Any]):
    """20 actions, of which the first two are allowed."""

    observation_space = spaces.Dict({"observation": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(20)})
    action_space = spaces.Discrete(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observe(), float(action == 0), False, self.steps == 10, {}

    def _observe(self) -> Any:
        return {"observation": np.zeros(1, np.float32), "action_mask": (np.arange(20) < 2).astype(np.int8)}


def test_the_target_entropy_is_one_of_the_allowed_actions() -> None:
    """0.3 · log 20 is more than the entropy that two actions can have: the temperature would grow without limit."""
    with make(SAC, FewAllowed, lr=1e-2) as trainer:
        metrics = after(trainer, 30)
    assert metrics["alpha"] < 10
    assert metrics["entropy"] < 0.7


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_a_run_from_weights_continues_with_the_critics(algorithm: type[Algorithm], tmp_path: Path) -> None:
    config = {"normalize_observations": True}
    with make(algorithm, probes.Aim, **config) as first:
        after(first, 6)
        path = first.save(tmp_path)
    with make(algorithm, probes.Aim, seed=8, **config) as second:
        second.load_weights(path)
        ours, theirs = (dict(trainer.learner.networks) for trainer in (second, first))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        learner: Any = second.learner
        assert torch.equal(learner.target.flat, learner.critics_flat)
    with make(algorithm, probes.Aim, seed=8, critic_hiddens=[8], **config) as third:  # other critics
        third.load_weights(path)
        learner = third.learner
        assert torch.equal(learner.critics.observation_mean_0, third.policy.network.observation_mean_0)


def test_weights_of_another_run_reset_the_targets(tmp_path: Path) -> None:
    with make(TD3, probes.Aim) as first:
        after(first, 6)
        path = first.save(tmp_path)
    with make(TD3, probes.Aim, seed=8) as second:
        second.load_weights(path)
        learner: Any = second.learner
        assert torch.equal(learner.target_actor.flat, second.policy.flat)
        assert torch.equal(second.policy.flat, first.policy.flat)


def test_a_checkpoint_of_other_critics_is_refused_by_name(tmp_path: Path) -> None:
    with make(SAC, probes.Aim) as first:
        after(first, 1)
        path = first.save(tmp_path)
    with (
        make(SAC, probes.Aim, critic_norm="layer") as second,
        pytest.raises(CheckpointError, match=r"network 'critics' has \d+ parameters in the checkpoint and \d+ with"),
    ):
        second.restore(path)

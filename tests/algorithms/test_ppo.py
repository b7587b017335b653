"""Every parameter of PPO has its effect, in direction and size, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from outplay import PPO, SAC, ConfigError
from outplay.algorithms import iteration
from outplay.fragments import join
from outplay.learning.onpolicy import Estimates
from outplay.learning.rows import Rows
from outplay.settings import at
from tests import probes


def learner(**config: Any) -> Any:
    """A learner whose policy is even between two actions and whose value is 0, everywhere."""
    with PPO(env=probes.Walk, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 32, **config}) as trainer:
        for head in (trainer.policy.model.policy_head, trainer.policy.model.value_head):
            with torch.no_grad():
                head.weight.zero_()
                head.bias.zero_()
        return trainer.learner


def rows(advantage: float = 1.0, ratio: float = 1.0, target: float = 0.0, old: Any = (0.0, 0.0, 0.0)) -> Rows:
    """One step; `ratio` is how much likelier its action is now than it was."""
    return Rows(
        (torch.zeros(1, 2),),
        torch.tensor([1]),
        torch.tensor([old]),
        torch.tensor([math.log(1 / 3) - math.log(ratio)]),
        torch.tensor([advantage]),
        torch.tensor([target]),
    )


def loss(ppo: Any, *args: Any, entropy_coeff: float = 0.0, **kwargs: Any) -> tuple[float, dict[str, float]]:
    value, metrics = ppo.loss(rows(*args, **kwargs), entropy_coeff, ppo.kl_coeff)
    return value.item(), {name: m.item() for name, m in metrics.items()}


@pytest.mark.parametrize(
    ("advantage", "ratio", "clip_param", "expected"),
    [
        (1.0, 1.0, 0.2, -1.0),
        (1.0, 2.0, 0.2, -1.2),  # good, and likelier by more than a fifth: no more is gained
        (1.0, 2.0, 0.5, -1.5),
        (1.0, 0.5, 0.2, -0.5),  # good, but less likely: the full loss
        (-1.0, 0.5, 0.2, 0.8),  # bad, and less likely by more than a fifth
        (-1.0, 2.0, 0.2, 2.0),  # bad, but likelier: the full loss
        (3.0, 2.0, 0.0, -3.0),
    ],
)
def test_clip_param(advantage: float, ratio: float, clip_param: float, expected: float) -> None:
    _, metrics = loss(learner(clip_param=clip_param), advantage, ratio)
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-5)


def test_beyond_the_clip_nothing_is_learned() -> None:
    ppo = learner(vf_loss_coeff=0.0)
    value, _ = ppo.loss(rows(1.0, 2.0), 0.0, 0.0)
    gradients = torch.autograd.grad(value, ppo.policy.parameters, allow_unused=True, materialize_grads=True)
    assert all(not g.any() for g in gradients)


@pytest.mark.parametrize(
    ("coeff", "limit", "expected"), [(0.5, None, 4.5), (2.0, None, 18.0), (0.5, 4.0, 2.0), (0.0, None, 0.0)]
)
def test_vf_loss_coeff_and_vf_clip_param(coeff: float, limit: float | None, expected: float) -> None:
    """The value is 0 and should be 3: the squared error is 9."""
    total, _ = loss(learner(vf_loss_coeff=coeff, vf_clip_param=limit), 0.0, 1.0, 3.0)
    assert total == pytest.approx(expected)


def test_entropy_coeff() -> None:
    """An even choice of three has entropy log 3; a positive weight lowers the loss by so much of it."""
    total, metrics = loss(learner(), 0.0, entropy_coeff=0.5)
    assert metrics["entropy"] == pytest.approx(math.log(3))
    assert total == pytest.approx(-0.5 * math.log(3))


def test_kl_coeff() -> None:
    """The old policy had 1/2, 1/4, 1/4, the new one thirds: KL = ½ log(3/2) + ½ log(3/4)."""
    old = (math.log(2.0), 0.0, 0.0)
    total, metrics = loss(learner(kl_coeff=2.0), 0.0, old=old)
    expected = 0.5 * math.log(1.5) + 0.5 * math.log(0.75)
    assert metrics["kl"] == pytest.approx(expected, rel=1e-4)
    assert total == pytest.approx(2 * expected, rel=1e-4)


@pytest.mark.parametrize(("kl", "factor"), [(0.0201, 1.5), (0.0199, 1.0), (0.0051, 1.0), (0.0049, 0.5)])
def test_kl_target(kl: float, factor: float) -> None:
    ppo = learner(kl_coeff=0.2, kl_target=0.01)
    ppo._adapt_kl_coeff(kl)
    assert ppo.kl_coeff == pytest.approx(0.2 * factor)


def test_schedules_by_hand() -> None:
    points = [(100.0, 1.0), (200.0, 0.5), (300.0, 0.5)]
    assert [at(points, 9.0, step) for step in (0, 100, 150, 200, 250, 1000)] == [1.0, 1.0, 0.75, 0.5, 0.5, 0.5]
    assert at(None, 9.0, 5) == 9.0


def trained(iterations: int = 1, **config: Any) -> tuple[Any, list[dict[str, Any]]]:
    settings = {"num_workers": 0, "num_envs": 4, "train_batch_size": 40, "sgd_minibatch_size": 10, "num_sgd_iter": 3}
    with PPO(env=probes.Walk, config={**settings, **config}) as trainer:
        return trainer, [trainer.train() for _ in range(iterations)]


def test_lr_schedule_and_entropy_coeff_schedule_go_by_steps() -> None:
    schedule = [[0, 1e-2], [80, 0.0]]
    _, results = trained(
        3, lr_schedule=schedule, lr=5.0, entropy_coeff_schedule=[[0, 0.4], [40, 0.1]], entropy_coeff=9.0
    )
    assert [r["learner"]["lr"] for r in results] == pytest.approx([1e-2, 5e-3, 0.0])
    assert [r["learner"]["entropy_coeff"] for r in results] == pytest.approx([0.4, 0.1, 0.1])


def test_a_rate_of_0_learns_nothing() -> None:
    still, _ = trained(lr=0.0, normalize_values=False)
    fresh = PPO(env=probes.Walk, config={"num_workers": 0})
    assert still.policy.flat.equal(fresh.policy.flat)


@pytest.mark.parametrize(("minibatch", "epochs", "steps"), [(10, 3, 12), (40, 3, 3), (15, 1, 3), (1000, 2, 2)])
def test_sgd_minibatch_size_and_num_sgd_iter(minibatch: int, epochs: int, steps: int) -> None:
    trainer, _ = trained(sgd_minibatch_size=minibatch, num_sgd_iter=epochs)
    assert trainer.learner.optimizer.steps == steps


@pytest.fixture
def numbered() -> Rows:
    numbers = torch.arange(40.0)
    return Rows((numbers[:, None],), numbers, numbers[:, None], numbers, numbers, numbers)


def test_shuffle_sequences(numbered: Rows) -> None:
    ppo = learner()
    in_order = [p.actions for p in ppo.minibatches(numbered, 10, 0, 0, shuffle=False)]
    assert torch.cat(in_order).tolist() == list(range(40))
    shuffled = [p.actions for p in ppo.minibatches(numbered, 10, 0, 0, shuffle=True)]
    assert [len(p) for p in shuffled] == [10] * 4
    assert torch.cat(shuffled).tolist() != list(range(40))
    assert sorted(torch.cat(shuffled).tolist()) == list(range(40))
    again = [p.actions for p in ppo.minibatches(numbered, 10, 0, 1, shuffle=True)]
    assert torch.cat(again).tolist() != torch.cat(shuffled).tolist()


def test_grad_clip_bounds_the_step() -> None:
    moved = {}
    for limit in (1e-3, 2e-3):
        config = {
            "optimizer": {"type": "sgd"},
            "lr": 1.0,
            "grad_clip": limit,
            "num_sgd_iter": 1,
            "sgd_minibatch_size": 40,
        }
        trainer, _ = trained(normalize_values=False, **config)
        fresh = PPO(env=probes.Walk, config={"num_workers": 0})
        moved[limit] = (trainer.policy.flat - fresh.policy.flat).norm().item()
    assert moved == pytest.approx({1e-3: 1e-3, 2e-3: 2e-3}, rel=1e-2)


def test_use_critic_use_gae_and_lambda() -> None:
    """On one batch: without a critic advantages are returns; without GAE they are as with λ = 1."""
    with PPO(env=probes.Walk, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 40}) as trainer:
        batch = join(iteration.collect(trainer))
        critic = trainer.learner
    assert np.array_equal(
        critic.estimates(batch, 0.5, use_gae=False).advantages, critic.estimates(batch, 1.0).advantages
    )
    assert not np.allclose(critic.estimates(batch, 0.5).advantages, critic.estimates(batch, 1.0).advantages)
    seen: Estimates = learner(use_critic=False).monte_carlo(batch)
    ended = batch.terminated | batch.truncated
    expected = np.zeros(4)
    for t in reversed(range(10)):
        expected = batch.rewards[t] + critic.config.gamma * np.where(ended[t], 0.0, expected)
        assert seen.advantages[t] == pytest.approx(expected, rel=1e-4)

    without, _ = trained(use_critic=False)
    fresh = PPO(env=probes.Walk, config={"num_workers": 0})
    assert without.policy.model.value_head.weight.equal(fresh.policy.model.value_head.weight)
    assert not without.policy.model.policy_head.weight.equal(fresh.policy.model.policy_head.weight)


def test_normalising_values_keeps_what_they_say() -> None:
    ppo = learner()
    with torch.no_grad():
        ppo.actor_critic.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    seen = (np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32),)
    before = ppo.values_of(seen)
    ppo.update_value_normaliser(np.array([100.0, 300.0], np.float32))  # mean 200, deviation 100
    assert (ppo.actor_critic.value_mean.item(), ppo.actor_critic.value_scale.item()) == pytest.approx((200.0, 100.0))
    assert ppo.values_of(seen) == pytest.approx(before, abs=1e-3)


def test_rewards_are_scaled_then_clipped() -> None:
    with PPO(env=probes.Walk, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 40}) as trainer:
        batch = join(iteration.collect(trainer))
    batch.rewards = np.array([[1.0, -3.0, 0.1, 0.0]], np.float32)
    assert learner(reward_scale=2.0, clip_rewards=1.0).rewards(batch).tolist() == [[1.0, -1.0, pytest.approx(0.2), 0.0]]
    assert learner(reward_scale=2.0).rewards(batch).tolist() == [[2.0, -6.0, pytest.approx(0.2), 0.0]]


def test_cut_returns_at_rewards() -> None:
    """Two lanes, γ = 0.5, λ = 1, no value: 0, 1, 0, −1, 0 gives ½, 1, −½, −1, 0 and not more."""
    config = {"num_workers": 0, "num_envs": 4, "num_env_groups": 1, "train_batch_size": 20, "gamma": 0.5}
    with PPO(env=probes.Walk, config={**config, "cut_returns_at_rewards": True}) as trainer:
        batch = join(iteration.collect(trainer))
        batch.rewards = np.zeros((5, 4), np.float32)
        batch.rewards[:, 0] = [0, 1, 0, -1, 0]
        batch.terminated, batch.truncated = np.zeros((2, 5, 4), bool)
        batch.final_steps = batch.final_lanes = np.zeros(0, int)
        batch.final_observations = (np.zeros((0, 2), np.float32),)
        ppo = trainer.learner
        with torch.no_grad():
            ppo.actor_critic.value_head.weight.zero_()
            ppo.actor_critic.value_head.bias.zero_()
        assert ppo.estimates(batch, 1.0).targets[:, 0].tolist() == [0.5, 1.0, -0.5, -1.0, 0.0]
        assert ppo.monte_carlo(batch).targets[:, 0].tolist() == [0.5, 1.0, -0.5, -1.0, 0.0]
    uncut = learner(**{k: v for k, v in config.items() if k == "gamma"})
    assert uncut.monte_carlo(batch).targets[:, 0].tolist() == [0.375, 0.75, -0.5, -1.0, 0.0]


def test_images_are_normalised_by_their_mean_and_one_deviation() -> None:
    config = {
        "num_workers": 0, "num_envs": 2, "train_batch_size": 16, "normalize_observations": True, "num_sgd_iter": 1,
        "model": {"conv_filters": [[4, 8, 8]], "fcnet_hiddens": [8]},
    }  # fmt: skip
    with PPO(env="ALE/Pong-v5", config=config) as trainer:
        at_random = join(iteration.collect(trainer, at_random=True))
        trainer.learner.update_normalisers(at_random)
        seen = [batch.observations[0].reshape(-1, 4, 84, 84) for batch in (at_random, join(iteration.collect(trainer)))]
        images = np.concatenate(seen).astype(np.float64)
    with PPO(env="ALE/Pong-v5", config=config) as trainer:
        trainer.train()
        model = trainer.policy.model
        assert model.observation_mean_0.numpy() == pytest.approx(images.mean(0), abs=1e-3)
        assert model.observation_scale_0.item() == pytest.approx(images.var(0).mean() ** -0.5, rel=1e-4)


def test_lower_precision_changes_little_and_outputs_stay_float32() -> None:
    """Convolutions and hidden layers in bfloat16: the same policy, to about three digits."""
    params = {}
    for precision in ("float32", "bfloat16"):
        with PPO(env="ALE/Pong-v5", config={"num_workers": 0, "model": {"precision": precision}}) as trainer:
            images = np.random.default_rng(0).integers(0, 255, (4, 4, 84, 84), np.uint8)
            _, _, extras = trainer.policy.act((images,), {}, None, False, np.random.default_rng(0))
            params[precision] = extras["dist"]
            assert extras["dist"].dtype == extras["value"].dtype == np.float32
    assert params["bfloat16"] == pytest.approx(params["float32"], abs=2e-3)
    assert not np.array_equal(params["bfloat16"], params["float32"])


def test_observation_statistics_change_once_per_iteration_and_not_in_evaluation() -> None:
    with PPO(
        env=probes.Walk,
        config={"num_workers": 0, "num_envs": 4, "train_batch_size": 40, "normalize_observations": True},
    ) as trainer:
        assert trainer.policy.model.observation_mean_0.tolist() == [0.0, 0.0]
        trainer.train()
        mean = trainer.policy.model.observation_mean_0.clone()
        moments = trainer.learner.moments[0]
        assert moments.count == 40 + 40  # of random actions, before the first iteration
        assert mean.numpy() == pytest.approx(moments.mean, rel=1e-5)
        trainer.evaluate()
        assert moments.count == 80
        assert trainer.policy.model.observation_mean_0.equal(mean)
        trainer.train()
        assert moments.count == 120


def test_initial_log_std() -> None:
    config = {"num_workers": 0, "num_envs": 2, "train_batch_size": 8, "model": {"initial_log_std": -1.5}}
    with PPO(env="Pendulum-v1", config=config) as trainer:
        params = trainer.policy.network.policy((torch.zeros(1, 3),))
        assert params[0, 1] == -1.5  # the mean is the first
    with pytest.raises(ConfigError, match="initial_log_std"):
        PPO(env="Pendulum-v1", config={"model": {"initial_log_std": 3}})
    with pytest.raises(ConfigError, match="initial_log_std: SAC"):
        SAC(env="Pendulum-v1", config={"model": {"initial_log_std": -1}})

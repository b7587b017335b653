"""A2C: what its settings do to a step, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outplay import A2C
from outplay.learning.onpolicy import Estimates
from outplay.learning.rows import Rows
from tests import probes


def made(**config: Any) -> A2C:
    return A2C(env=probes.Match, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 32, **config})


@pytest.mark.parametrize(("standardized", "weight"), [(False, 0.25), (True, 1.0)])
def test_advantages_are_measured_in_deviations_of_the_returns(
    standardized: bool, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a deviation of 4, advantages count a quarter; those that are standardized already count in full."""
    with made(normalize_advantages=standardized, normalize_values=False) as trainer:
        learner = trainer.learner
        learner.actor_critic.value_scale.fill_(4.0)
        seen: list[Rows] = []
        rows_of = learner.rows

        def rows(batch: Any, estimates: Estimates, standardize: bool) -> Rows:
            seen.append(rows_of(batch, estimates, standardize))
            seen[0].advantages = torch.linspace(-1.0, 3.0, len(seen[0].advantages))
            return seen[0]

        monkeypatch.setattr(learner, "rows", rows)
        loss = trainer.train()["learner"]["policy_loss"]
    # It is the loss of the policy that acted, whose log-probabilities were recorded.
    assert loss == pytest.approx(-weight * float((seen[0].old_log_prob * seen[0].advantages).mean()), rel=1e-4)


def test_the_critic_learns_at_its_own_rate() -> None:
    """With SGD, the value's layers move in proportion to critic_lr_scale, and the policy's not at all."""
    moved = {}
    for scale in (1.0, 3.0):
        optimizer = {"type": "sgd"}
        with made(critic_lr_scale=scale, optimizer=optimizer, grad_clip=None, normalize_values=False) as trainer:
            network = trainer.policy.network
            before = {name: p.detach().clone() for name, p in network.named_parameters()}
            trainer.train()
            moved[scale] = {name: p.detach() - before[name] for name, p in network.named_parameters()}
    for name, step in moved[1.0].items():
        factor = 3.0 if name.startswith("value_") else 1.0
        assert torch.allclose(moved[3.0][name], factor * step, atol=1e-7), name
        assert step.abs().max() > 0


def test_shared_layers_learn_at_one_rate() -> None:
    with made(model={"vf_share_layers": True}) as trainer:
        assert [group.lr_scale for group in trainer.learner.optimizer.groups.values()] == [1.0]
        assert np.isfinite(trainer.train()["learner"]["total_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a2c_solves_cartpole_untouched(seed: int) -> None:
    with A2C(env="CartPole-v1", config={"metrics_num_episodes": 20, "seed": seed}) as trainer:
        best = 0.0
        while trainer.timesteps < 300_000 and best < 475:
            best = max(best, trainer.train()["episode_return_mean"])
    assert best >= 475

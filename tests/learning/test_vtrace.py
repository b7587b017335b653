"""The learner of IMPALA and APPO: its queue, the policy lag, V-trace of a Batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outplay import APPO, IMPALA, Algorithm, ConfigError
from outplay.fragments import Fragment, join
from outplay.learning.vtrace import VTraceLearner
from outplay.testing.algorithm import learned
from outplay.testing.probes import Forbidding
from tests import probes
from tests.policies.test_recurrent import CORES, PREVIOUS

BOTH = pytest.mark.parametrize("algorithm", [IMPALA, APPO])
SMALL: dict[str, Any] = {
    "num_workers": 0, "num_envs": 4, "num_env_groups": 2, "train_batch_size": 64, "rollout_fragment_length": 16,
    "seed": 3, "model": {"fcnet_hiddens": [8]},
}  # fmt: skip


def make(algorithm: type[Algorithm], env: Any = probes.Walk, **config: Any) -> Algorithm:
    return algorithm(env, {**SMALL, **config})


def learner_of(trainer: Algorithm) -> VTraceLearner[Any]:
    assert isinstance(trainer.learner, VTraceLearner)
    return trainer.learner


def fragments(trainer: Algorithm, rounds: int) -> list[Fragment]:
    """Two Fragments of 16 × 2 steps for each round, with the present Weights."""
    return [fragment for _ in range(rounds) for fragment in trainer.collector.collect(trainer.snapshot())]


def watch(learner: VTraceLearner[Any]) -> list[int]:
    """The steps of each batch that is learned from, from now on."""
    sizes: list[int] = []
    learn_from = learner.learn_from

    def watched(batch: Any, *arguments: Any) -> Any:
        sizes.append(batch.steps)
        return learn_from(batch, *arguments)

    learner.learn_from = watched  # type: ignore[method-assign]
    return sizes


@BOTH
def test_fragments_are_batched_as_they_come(algorithm: type[Algorithm]) -> None:
    with make(algorithm) as trainer:
        learner, sizes = learner_of(trainer), watch(learner_of(trainer))
        first, *others = fragments(trainer, 4)
        learner.take([first], 32)
        assert learner.due == 0
        learner.take(others, 256)
        assert learner.due == 4
        learner.learn(3)
        assert (sizes, learner.due, learner.updates) == ([64, 64, 64], 1, 3)
        learner.take(fragments(trainer, 1)[:1], 288)
        learner.finish()  # the rest is no full batch, and joins the last one
        assert (sizes, learner.due, learner.updates) == ([64, 64, 64, 96], 0, 4)
        learner.take(fragments(trainer, 1)[:1], 320)
        learner.finish()
        assert sizes[-1] == 32
        learner.finish()  # there is nothing left
        assert len(sizes) == 5
        assert learner.metrics()["updates"] == 5


@BOTH
def test_a_batch_has_at_least_the_steps_it_should(algorithm: type[Algorithm]) -> None:
    with make(algorithm, train_batch_size=70) as trainer:
        learner, sizes = learner_of(trainer), watch(learner_of(trainer))
        learner.take(fragments(trainer, 3), 192)  # 6 Fragments of 32 steps
        assert learner.due == 2
        learner.learn(2)
        assert (sizes, learner.due) == ([96, 96], 0)
        learner.take(fragments(trainer, 2)[:3], 288)
        learner.learn(5)  # more than are due
        assert sizes == [96, 96, 96]


@BOTH
def test_what_is_too_old_is_never_learned_from(algorithm: type[Algorithm], caplog: pytest.LogCaptureFixture) -> None:
    def updated(with_old: bool) -> tuple[bytes, dict[str, float]]:
        with make(algorithm, max_policy_lag=2) as trainer:
            learner = learner_of(trainer)
            old = fragments(trainer, 25)
            for _ in range(3):
                learner.take(fragments(trainer, 1), 64)
                learner.learn(1)
            learner.metrics()
            new = fragments(trainer, 1)
            learner.take([*old, *new] if with_old else new, 384)
            learner.learn(1)
            learner.finish()
            return learned(trainer), learner.metrics()

    weights, metrics = updated(with_old=True)
    assert (metrics["discarded_steps"], metrics["policy_lag_max"], metrics["updates"]) == (50 * 32, 0, 4)
    assert "50 of the last 58 Fragments were discarded: their Weights were more than 2 updates old" in caplog.text
    expected, without = updated(with_old=False)
    assert weights == expected
    assert without["discarded_steps"] == 0


@BOTH
def test_the_lag_is_that_of_the_moment_of_learning(algorithm: type[Algorithm]) -> None:
    with make(algorithm) as trainer:
        learner = learner_of(trainer)
        learner.take(fragments(trainer, 3), 192)  # three batches of the first Weights
        learner.learn(3)
        metrics = learner.metrics()
        assert (metrics["policy_lag"], metrics["policy_lag_max"]) == (1.0, 2.0)
        learner.take(fragments(trainer, 1), 256)
        learner.learn(1)
        assert learner.metrics()["policy_lag_max"] == 0


@BOTH
def test_a_rollback_restores_the_queue(algorithm: type[Algorithm]) -> None:
    with make(algorithm) as trainer:
        learner, sizes = learner_of(trainer), watch(learner_of(trainer))
        learner.take(fragments(trainer, 2)[:3], 96)
        before = learned(trainer)
        roll_back = learner.rollback_point()
        learner.take(fragments(trainer, 1), 160)
        learner.finish()
        assert learned(trainer) != before
        roll_back()
        assert learned(trainer) == before
        assert learner.metrics()["updates"] == 0
        learner.finish()
        assert sizes[-1] == 96


@BOTH
@pytest.mark.parametrize("core", ["", "lstm", "attention"])
def test_vtrace_of_the_policy_that_acted_is_gae(algorithm: type[Algorithm], core: str) -> None:
    """For recurrent networks: the sequences of a Batch have the outputs that acting had. Episodes are truncated."""
    model = {**SMALL["model"], **(CORES[core] | PREVIOUS | {"max_seq_len": 6} if core else {})}
    env_config = {"truncates": True}
    with make(algorithm, Forbidding, model=model, env_config=env_config, **{"lambda": 0.9}) as trainer:
        learner = learner_of(trainer)
        trainer.train()  # values have a mean and a scale
        batch = join(fragments(trainer, 1))
        rows, take = learner.recorded(batch)
        params, values = learner.outputs(rows)
        assert torch.allclose(params, rows.old_params, atol=1e-5)
        ratios = (learner.distribution.log_prob(params, rows.actions) - rows.old_log_prob).exp()
        found, expected = learner.vtrace(batch, take, values, ratios), learner.estimates(batch, 0.9)
        for name in ("values", "advantages", "targets"):
            assert np.allclose(getattr(found, name), getattr(expected, name), atol=1e-4)


def test_the_gradient_of_impala_by_hand() -> None:
    """One step of plain gradient descent is that of the loss as it is written, with ratios from a changed policy."""
    config = {"normalize_values": False, "optimizer": {"type": "sgd", "momentum": 0.0}, "grad_clip": None, "lr": 0.1}
    with make(IMPALA, **config, vtrace_clip_pg_rho_threshold=0.9) as trainer:
        learner, network = learner_of(trainer), learner_of(trainer).actor_critic
        batch = join(fragments(trainer, 1))
        with torch.no_grad():  # another policy than the one that acted
            network.policy_head.weight.add_(0.5 * torch.randn_like(network.policy_head.weight))
        rows, take = learner.recorded(batch)
        params, values = network.both(rows.observations)
        log_prob = params.log_softmax(-1).gather(1, rows.actions[:, None].long()).squeeze(1)
        behaviour = rows.old_params.log_softmax(-1).gather(1, rows.actions[:, None].long()).squeeze(1)
        ratios = (log_prob - behaviour).exp().detach()
        assert ratios.max() > 1.1
        estimates = learner.vtrace(batch, take, values, ratios)
        advantages, targets = (torch.from_numpy(take(array)) for array in (estimates.advantages, estimates.targets))
        entropy = -(params.softmax(-1) * params.log_softmax(-1)).sum(-1).mean()
        policy_loss = -(ratios.clamp(max=0.9) * advantages * log_prob).mean()
        loss = policy_loss + 0.5 * ((values - targets) ** 2).mean() - 0.01 * entropy
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        expected = [p.detach() - 0.1 * g for p, g in zip(network.parameters(), gradients, strict=True)]
        learner.take(batch.fragments, 64)
        learner.learn(1)
        for parameter, value in zip(network.parameters(), expected, strict=True):
            assert torch.allclose(parameter, value, atol=1e-5)


@BOTH
def test_settings(algorithm: type[Algorithm]) -> None:
    with make(algorithm) as trainer:
        assert not trainer.config.is_async  # there are no workers
    assert algorithm.Config().is_async
    assert algorithm.Config(num_workers=2, num_envs=32).num_groups == 4
    assert algorithm.Config(num_workers=16).num_groups == 16
    with pytest.raises(ConfigError, match="num_workers must be at least 1; or set async: false"):
        make(algorithm, **{"async": True})
    with pytest.raises(ConfigError, match="unknown setting 'intrinsic_reward': it is a setting of A2C and PPO"):
        make(algorithm, intrinsic_reward={})

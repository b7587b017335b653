"""Normalised observations: from the first iteration on, and from the weights of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from outplay import DQN, PPO, Algorithm
from outplay.algorithms import find_algorithm, iteration
from outplay.algorithms.resolution import has_no_bounds
from outplay.fragments import Batch
from outplay.policies import ActorCritic
from outplay.registry import algorithms
from outplay.spaces import leaves
from tests import probes

SMALL = {
    "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 80, "normalize_observations": True,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip
OFF_POLICY: dict[str, Any] = {"learning_starts": 40, "sgd_minibatch_size": 16, "buffer_size": 2_000}
CONTINUOUS = {**OFF_POLICY, "env_config": {"continuous": True}}
SETTINGS = {"DQN": OFF_POLICY, "SAC": OFF_POLICY, "TD3": CONTINUOUS, "DDPG": CONTINUOUS}
COLLECTING = [name for name in algorithms.shipped if find_algorithm(name).Learner.collects]
ALGORITHMS = {find_algorithm(name): SETTINGS.get(name, {}) for name in COLLECTING}


class Far(probes.Walk):
    """Its numbers are about 1,000 and 0.001: as they are, one is cut and the other is hardly seen."""

    def _observe(self) -> np.ndarray:
        return np.array([1000 + 3 * self.place, 1e-3 * self.steps / self.length], np.float32)


class Unbounded(Far):
    """Its space has no bounds, as those of MuJoCo."""

    observation_space: gymnasium.spaces.Space[Any] = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


class Picture(Far):
    """Noise between 100 and 120."""

    observation_space: gymnasium.spaces.Space[Any] = gymnasium.spaces.Box(0, 255, (1, 12, 12), np.uint8)

    def _observe(self) -> np.ndarray:
        return self.np_random.integers(100, 121, (1, 12, 12), np.uint8)


def first_batch(trainer: Algorithm, monkeypatch: pytest.MonkeyPatch) -> tuple[Batch, np.ndarray, np.ndarray]:
    """What is learned from first; as the network normalises it then; and what the network says about it then."""
    found: list[tuple[Batch, np.ndarray, np.ndarray]] = []
    update = trainer.learner.update

    def recorded(batch: Batch, *more: int) -> dict[str, float]:
        network = trainer.policy.network
        with torch.no_grad():
            rows = trainer.learner.tensors(batch.observation_rows())
            ((mean, scale),) = network.normalisers()
            said = network.policy(rows) if isinstance(network, ActorCritic) else trainer.policy.q_network.values(rows)
            found.append((batch, ((rows[0] - mean) * scale).numpy(), said.numpy()))
        return update(batch, *more)

    monkeypatch.setattr(trainer.learner, "update", recorded)
    trainer.train()
    return found[0]


@pytest.mark.parametrize("env", [Far, Picture])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_iteration_acts_and_learns_with_a_normaliser_that_fits(
    algorithm: type[Algorithm], env: type[gymnasium.Env[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ALGORITHMS[algorithm]
    config = {**SMALL, **own, "env_config": {**own.get("env_config", {}), "length": 10}}  # a batch sees whole episodes
    with algorithm(env=env, config=config) as trainer:
        batch, inputs, said = first_batch(trainer, monkeypatch)
        axes = 0 if env is Far else None
        assert np.abs(inputs.mean(axes)).max() < 1
        assert 0.3 < inputs.std(axes).min() <= inputs.std(axes).max() < 3
        # What was recorded is what the same network said: it acted with the normaliser that it learns with.
        assert batch.rows(batch.extras["dist"]) == pytest.approx(said, abs=1e-4)
        assert trainer.timesteps == batch.steps  # random steps do not count


def test_random_steps_are_random_and_the_same_wherever_they_are_taken(process_engine: None) -> None:
    fitted = set()
    for num_workers in (0, 2):
        with DQN(env=Far, config={**SMALL, "num_workers": num_workers, "noisy": True}) as trainer:
            batch = iteration.collect(trainer, at_random=True)
            counts = np.bincount(np.concatenate([fragment.actions.ravel() for fragment in batch]), minlength=3)
            assert counts.min() > 10  # of 80, about 27 each
            trainer.train()
            fitted.add(trainer.learner.moments[0].mean.tobytes() + trainer.policy.flat.numpy().tobytes())
    assert len(fitted) == 1


def test_where_nothing_is_normalised_no_random_steps_are_taken() -> None:
    for config in ({**SMALL, "normalize_observations": False}, SMALL):
        env = probes.Walk if config is not SMALL else "FrozenLake-v1"  # a choice: there is nothing to normalise
        with PPO(env=env, config=config) as trainer:
            trainer.train()
            assert [state.fragments for state in trainer.workers.states] == [1, 1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_from_old_weights_goes_on_with_their_normaliser(algorithm: type[Algorithm], tmp_path: Path) -> None:
    """With its count: a batch of other observations moves it by its share, and does not replace it."""
    config = {**SMALL, **ALGORITHMS[algorithm]}
    with algorithm(env=probes.Walk, config=config) as first:
        [first.train() for _ in range(5)]
        path = first.save(tmp_path)
        mean, before = first.learner.moments[0].mean, first.learner.moments[0].count
        values = getattr(first.learner, "value_moments", None)
    assert before >= 6 * 80
    with algorithm(env=probes.Walk, config={**config, "lr": 0.0, "seed": 1}) as second:
        second.load_weights(path)
        moments = second.learner.moments[0]
        assert (moments.count, moments.mean.tolist()) == (before, mean.tolist())
        assert getattr(second.learner, "value_moments", None) == values
        second.train()
        added = moments.count - before
        assert 80 <= added < before / 2
        seen = (moments.mean * moments.count - mean * before) / added  # of the new batch
        assert np.abs(seen - mean).max() > 1e-3
        assert moments.mean == pytest.approx(mean + (seen - mean) * added / moments.count)
        network = second.policy.network.observation_mean_0
        assert network.numpy() == pytest.approx(moments.mean, rel=1e-5)


def test_old_weights_without_a_normaliser_get_one(tmp_path: Path) -> None:
    with PPO(env=Far, config={**SMALL, "normalize_observations": False}) as first:
        first.train()
        path = first.save(tmp_path)
    with PPO(env=Far, config=SMALL) as second:
        second.load_weights(path)
        assert not second.learner.is_normaliser_fitted
        second.train()
        assert second.learner.moments[0].count == 160


BOUNDED = gymnasium.spaces.Box(-1, 1, (2,))
UNBOUNDED = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize(
    ("space", "is_normalised"),
    [
        (UNBOUNDED, True),
        (gymnasium.spaces.Box(np.array([-1, -np.inf]), np.inf, dtype=np.float64), False),  # as CartPole's
        (BOUNDED, False),
        (gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8), False),
        (gymnasium.spaces.Dict({"a": BOUNDED, "b": UNBOUNDED}), True),
        (gymnasium.spaces.Discrete(3), False),
    ],
)
def test_auto_normalises_vectors_of_unknown_scale(space: gymnasium.spaces.Space[Any], is_normalised: bool) -> None:
    assert any(map(has_no_bounds, leaves(space))) is is_normalised


def test_auto_is_resolved_once_and_kept(tmp_path: Path) -> None:
    config: dict[str, Any] = dict(SMALL)
    del config["normalize_observations"]
    with PPO(env=Unbounded, config=config) as trainer:
        assert trainer.config.normalize_observations is True
        trainer.train()
        checkpoint = trainer.save(tmp_path)
    with PPO.from_checkpoint(checkpoint, env=Unbounded) as trainer:
        assert trainer.config.normalize_observations is True
    with PPO(env=Unbounded, config={**config, "normalize_observations": False}) as trainer:
        assert trainer.config.normalize_observations is False
    with PPO(env="CartPole-v1", config=config) as trainer:
        assert trainer.config.normalize_observations is False
    with DQN(env=Unbounded, config={**config, **OFF_POLICY}) as trainer:
        assert trainer.config.normalize_observations is False

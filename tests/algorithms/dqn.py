"""Small DQNs for the tests."""

from __future__ import annotations

from typing import Any

import pytest

from outplay import DQN
from outplay.algorithms.dqn import DQNLearner
from tests import probes

SMALL = {
    "num_workers": 0, "num_envs": 4, "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 16,
    "buffer_size": 2_000, "lr": 3e-3, "target_network_update_freq": 20,
    "exploration_config": {"epsilon_timesteps": 500},
    "training_intensity": 1.0, "model": {"fcnet_hiddens": [16]}, "metrics_num_episodes": 30,
}  # fmt: skip


SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {"double_q": False, "dueling": False},
    "double and dueling": {},
    "three steps": {"n_step": 3},
    "by priority": {"prioritized_replay": True},
    "C51": {"distributional": "c51", "num_atoms": 11, "v_min": -2.0, "v_max": 3.0},
    "quantiles": {"distributional": "qr", "num_atoms": 8},
    "noisy": {"noisy": True},
    "a soft target": {"tau": 0.05, "target_network_update_freq": 1},
    "Rainbow": {
        "n_step": 3,
        "prioritized_replay": True,
        "distributional": "c51",
        "num_atoms": 21,
        "v_min": -2.0,
        "v_max": 3.0,
        "noisy": True,
    },
}


def slow(*cases: str) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def trainer(env: Any, **config: Any) -> DQN:
    return DQN(env=env, config={**SMALL, **config})


def train(ours: DQN, iterations: int) -> None:
    for _ in range(iterations):
        ours.train()


def learner_of(ours: DQN) -> DQNLearner:
    assert isinstance(ours.learner, DQNLearner)
    return ours.learner


PROMISED = {
    "num_env_groups": 2, "env_config": {"length": 9}, "prioritized_replay": True, "n_step": 2, "buffer_size": 200
}  # fmt: skip


def trained(iterations: int, **config: Any) -> bytes:
    with trainer(probes.Walk, **{**PROMISED, **config}) as ours:
        for _ in range(iterations):
            ours.train()
        learner = learner_of(ours)
        return ours.policy.flat.numpy().tobytes() + learner.target.flat.numpy().tobytes()


BESIDE = {"async": True, "num_envs": 4, "num_env_groups": 4, "num_workers": 2, "train_batch_size": 64}

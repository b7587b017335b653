"""Every registered algorithm passes the suite. A new one is tested as soon as the registry has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outplay import Algorithm
from outplay.algorithms import find_algorithm
from outplay.registry import algorithms
from outplay.testing import AlgorithmConformance

OFF_POLICY: dict[str, Any] = {
    "train_batch_size": 16, "learning_starts": 64, "sgd_minibatch_size": 32, "buffer_size": 2_000, "lr": 3e-3,
    "tau": 0.05, "exploration_config": {"random_timesteps": 100}, "model": {"fcnet_hiddens": [64, 64]},
}  # fmt: skip
OFFLINE: dict[str, Any] = {"train_batch_size": 640, "sgd_minibatch_size": 64, "lr": 1e-2}
# With these, a probe is learned within seconds. What is not here is tested with its defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "PG": {"train_batch_size": 128, "lr": 1e-2},
    "A2C": {"train_batch_size": 128, "lr": 5e-3, "entropy_coeff": 0.0},
    "PPO": {"train_batch_size": 128, "lr": 5e-3, "sgd_minibatch_size": 64, "num_sgd_iter": 4},
    "DQN": {
        "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 16, "buffer_size": 2_000, "lr": 3e-3,
        "target_network_update_freq": 20, "training_intensity": 1.0, "exploration_config": {"epsilon_timesteps": 500},
    },
    "SAC": OFF_POLICY,
    # Actions without variance find the better of two actions only if the critics have seen both.
    "TD3": {**OFF_POLICY, "exploration_config": {"random_timesteps": 500}},
    "DDPG": {**OFF_POLICY, "model": {}, "exploration_config": {"random_timesteps": 500}},
    "PQN": {
        "train_batch_size": 128, "sgd_minibatch_size": 32, "lr_schedule": [[0, 5e-3], [5000, 3e-4]],
        "exploration_config": {"epsilon_timesteps": 2500},
    },
    # Synchronous, so that the tests of exactness apply. test_vtrace_async.py has those of asynchronous training.
    "IMPALA": {"async": False, "train_batch_size": 128, "rollout_fragment_length": "auto", "lr": 1e-2},
    "APPO": {
        "async": False, "train_batch_size": 128, "rollout_fragment_length": "auto", "lr": 5e-3, "sgd_minibatch_size": 64
    },
    "BC": OFFLINE,
    "MARWIL": OFFLINE,
    "CQL": {**OFFLINE, "bc_iters": 50, "tau": 0.05, "num_actions": 4, "min_q_weight": 0.1},
    "IQL": {**OFFLINE, "tau": 0.05},
}  # fmt: skip


def best_q_value(_: AlgorithmConformance, trainer: Algorithm, observation: np.ndarray) -> float:
    policy: Any = trainer.get_policy()
    return float(policy.q_network.values((torch.from_numpy(observation[None]),)).detach().max())


def value_network(_: AlgorithmConformance, trainer: Algorithm, observation: np.ndarray) -> float:
    learner: Any = trainer.learner
    return float(learner.value((torch.from_numpy(observation[None]),)).detach())


def best_critic_value(_: AlgorithmConformance, trainer: Algorithm, observation: np.ndarray) -> float:
    learner: Any = trainer.learner
    seen = (torch.from_numpy(observation[None]),)
    actions = None if learner.is_discrete else torch.zeros(1, 1)
    return float(learner.critics(seen, actions).detach().max())


DIFFERENCES: dict[str, dict[str, Any]] = {
    "SAC": {"action_spaces": ("discrete", "continuous"), "iterations": 60, "value": best_critic_value},
    "TD3": {"action_spaces": ("continuous",), "iterations": 60, "value": best_critic_value},
    "DDPG": {"action_spaces": ("continuous",), "iterations": 60, "value": best_critic_value},
    "PG": {"bootstraps": False},
    "DQN": {"action_spaces": ("discrete",), "iterations": 120, "value": best_q_value},
    "PQN": {"action_spaces": ("discrete",)},
    "BC": {"recorded_fraction": 0.1, "iterations": 15, "bootstraps": False, "discounts": False},
    "MARWIL": {"recorded_fraction": 1.0, "iterations": 20},
    "CQL": {
        "recorded_fraction": 1.0,
        "iterations": 20,
        "action_spaces": ("discrete", "continuous"),
        "value": best_critic_value,
    },
    "IQL": {
        "recorded_fraction": 1.0,
        "iterations": 20,
        "action_spaces": ("discrete", "continuous"),
        "value": value_network,
    },
}

# Their learners share most with those of BC, TD3 and IMPALA; what is their own has tests of its own.
SLOW = {"MARWIL", "CQL", "IQL", "DDPG", "APPO"}

for name in algorithms.shipped:
    suite = {"algorithm": find_algorithm(name), "config": SETTINGS.get(name, {}), **DIFFERENCES.get(name, {})}
    made = type(f"Test{name}", (AlgorithmConformance,), suite)
    globals()[f"Test{name}"] = pytest.mark.slow(made) if name in SLOW else made

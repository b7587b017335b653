"""Every registered algorithm passes the suite. A new one is tested as soon as the registry has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from outplay import Algorithm
from outplay.algorithms import find_algorithm
from outplay.registry import algorithms
from outplay.testing import AlgorithmConformance

# With these, a probe is learned within seconds. What is not here is tested with its defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "PG": {"train_batch_size": 128, "lr": 1e-2},
    "A2C": {"train_batch_size": 128, "lr": 5e-3, "entropy_coeff": 0.0},
    "PPO": {"train_batch_size": 128, "lr": 5e-3, "sgd_minibatch_size": 64, "num_sgd_iter": 4},
    "DQN": {
        "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 16, "buffer_size": 2_000, "lr": 3e-3,
        "target_network_update_freq": 20, "training_intensity": 1.0, "exploration_config": {"epsilon_timesteps": 500},
    },
}  # fmt: skip


def best_q_value(_: AlgorithmConformance, trainer: Algorithm, observation: np.ndarray) -> float:
    policy: Any = trainer.get_policy()
    return float(policy.q_network.values((torch.from_numpy(observation[None]),)).detach().max())


DIFFERENCES: dict[str, dict[str, Any]] = {
    "PG": {"bootstraps": False},
    "DQN": {"action_spaces": ("discrete",), "iterations": 120, "value": best_q_value},
}

for name in algorithms.shipped:
    suite = {"algorithm": find_algorithm(name), "config": SETTINGS.get(name, {}), **DIFFERENCES.get(name, {})}
    globals()[f"Test{name}"] = type(f"Test{name}", (AlgorithmConformance,), suite)

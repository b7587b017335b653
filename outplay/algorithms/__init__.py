"""Algorithms, one file each. `ALGORITHMS` is what `--run` chooses from."""

from __future__ import annotations

from outplay.algorithms.a2c import A2C, A2CConfig
from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.dqn import DQN, DQNConfig
from outplay.algorithms.pg import PG, PGConfig
from outplay.algorithms.ppo import PPO, PPOConfig
from outplay.errors import ConfigError, nearest

ALGORITHMS: dict[str, type[Algorithm]] = {"PG": PG, "A2C": A2C, "PPO": PPO, "DQN": DQN}


def find_algorithm(name: str) -> type[Algorithm]:
    """An algorithm by its name."""
    if name not in ALGORITHMS:
        match = next((known for known in ALGORITHMS if known.lower() == str(name).lower()), None)
        if match is None:
            raise ConfigError(f"no algorithm {name!r}{nearest(str(name).upper(), ALGORITHMS)}")
        return ALGORITHMS[match]
    return ALGORITHMS[name]


__all__ = [
    "A2C",
    "ALGORITHMS",
    "DQN",
    "PG",
    "PPO",
    "A2CConfig",
    "Algorithm",
    "DQNConfig",
    "PGConfig",
    "PPOConfig",
    "find_algorithm",
]

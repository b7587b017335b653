"""SAC, TD3 and DDPG with workers that collect beside the learner, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outplay import DDPG, SAC, TD3, Algorithm
from outplay.testing import probes
from tests.algorithms.test_actor_critics import make


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_collecting_beside_learning(engine: str, algorithm: type[Algorithm], tmp_path: Path) -> None:
    config: dict[str, Any] = {"async": True, "num_workers": 2, "num_envs": 2, "num_env_groups": 2}
    if algorithm is DDPG:
        config["exploration_config"] = {"random_timesteps": 200}
    with make(algorithm, probes.Aim, **config) as trainer:
        for _ in range(80):
            result = trainer.train()
        assert result["learner"]["policy_lag"] >= 0
        assert trainer.evaluate(episodes=50)["episode_return_mean"] > -1.0
        path, steps = trainer.save(tmp_path), trainer.timesteps
    with make(algorithm, probes.Aim, **config) as again:
        again.restore(path)
        assert again.timesteps == steps
        again.train()

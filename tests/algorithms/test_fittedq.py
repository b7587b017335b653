"""Fitted Q evaluation on a small MDP with a long horizon, whose values are the solution of a linear system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from outplay import PPO, Algorithm
from outplay.algorithms.fittedq import UPDATES, Settling, Starts

GAMMA, STATES = 0.95, 4


class Ring(gymnasium.Env[Any, Any]):
    """States on a ring, without an end. Action 1 goes on to the next one; its reward is the number of the state."""

    observation_space = gymnasium.spaces.Box(0, 1, (STATES,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        reward = float(action * self.state)
        self.state = (self.state + int(action)) % STATES
        return self._seen(), reward, False, False, {}

    def _seen(self) -> Any:
        return np.eye(STATES, dtype=np.float32)[self.state]


def value(chance: float) -> float:
    """V(0) of the policy that takes action 1 with this probability: V = r + γ P V."""
    moves = np.roll(np.eye(STATES), 1, axis=1)
    matrix = chance * moves + (1 - chance) * np.eye(STATES)
    found: float = np.linalg.solve(np.eye(STATES) - GAMMA * matrix, chance * np.arange(STATES))[0]
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of a policy that is nearly uniform, truncated after 20 steps."""
    folder = tmp_path_factory.mktemp("ring")
    config = {"lr": 0.0, "train_batch_size": 4000, "num_workers": 0, "output": str(folder), "max_episode_steps": 20}
    with PPO(Ring, config) as trainer:
        trainer.train()
    return folder


def target(chance: float) -> Algorithm:
    trainer = PPO(Ring, {"gamma": GAMMA, "num_workers": 0, "model": {"fcnet_hiddens": [32]}})
    weights = {name: np.zeros_like(array) for name, array in trainer.get_policy().get_weights().items()}
    weights["policy_head.bias"] = np.array([0.0, np.log(chance / (1 - chance))], np.float32)
    trainer.get_policy().set_weights(weights)
    return trainer


@pytest.mark.parametrize("chance", [0.9, pytest.param(0.2, marks=pytest.mark.slow)])
def test_it_stops_at_the_known_value(recorded: Path, chance: float, caplog: pytest.LogCaptureFixture) -> None:
    with target(chance) as trainer:
        found = trainer.estimate(recorded, ["fqe"], explore=True)["fqe"]
    assert found["converged"] is True
    assert found["updates"] < UPDATES / 4
    assert found["return_mean"] == pytest.approx(value(chance), rel=0.05)
    assert not caplog.text


def test_too_few_updates_are_said(recorded: Path, caplog: pytest.LogCaptureFixture) -> None:
    with target(0.9) as trainer:
        found = trainer.estimate(recorded, ["fqe"], explore=True, fqe_updates=60)["fqe"]
    assert (found["converged"], found["updates"]) == (False, 60)
    assert "fitted Q evaluation has not converged after 60 updates" in caplog.text
    assert "--fqe-updates" in caplog.text


def test_settling_by_hand() -> None:
    settling = Settling(length=4, tolerance=0.1, estimates=[])
    for _ in range(4):  # the first window does not count
        settling.estimates.append(10.0)
        assert not settling.is_settled(scale=1.0)
    for estimate, is_settled in ((10.0, False), (10.0, False), (12.0, False), (12.0, False), (12.0, True)):
        settling.estimates.append(estimate)
        assert settling.is_settled(scale=1.0) is is_settled  # the last time 11 and 12: 1 of 12
        if len(settling.estimates) == 8:
            assert settling.is_settled(scale=20.0)  # 2 of 20
            assert settling.mean == 12.0


@pytest.mark.parametrize("sizes", [[1] * 100, [30, 0, 45, 25], [100]])
def test_first_steps_are_evenly_spaced_however_they_arrive(sizes: list[int]) -> None:
    starts, first = Starts(most=10), 0
    for size in sizes:
        starts.add({"x": np.arange(first, first + size)})
        first += size
        assert starts.rows is not None
        assert len(starts.rows["x"]) <= 10
    assert starts.rows is not None
    assert starts.rows["x"].tolist() == list(range(0, 100, 16))

"""Off-policy evaluation on a tiny MDP whose values are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from outplay import DQN, PPO, TD3, Algorithm, ConfigError, DataError, data
from outplay.testing import probes

GAMMA = 0.5


class Chain(gymnasium.Env[Any, Any]):
    """Two steps. Action 1 has reward 1 in the first, 2 in the second; action 0 has none."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.ones(1, np.float32), float(action) * self.steps, self.steps == 2, False, {}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of a policy that is not trained: nearly uniform."""
    folder = tmp_path_factory.mktemp("chain")
    with PPO(Chain, {"lr": 0.0, "train_batch_size": 4000, "num_workers": 0, "output": str(folder)}) as trainer:
        trainer.train()
    return folder


def target(chance: float) -> Algorithm:
    """A policy that takes action 1 with this probability."""
    trainer = PPO(Chain, {"gamma": GAMMA, "num_workers": 0, "model": {"fcnet_hiddens": [16]}})
    weights = {name: np.zeros_like(array) for name, array in trainer.get_policy().get_weights().items()}
    weights["policy_head.bias"] = np.array([0.0, np.log(chance / (1 - chance))], np.float32)
    trainer.get_policy().set_weights(weights)
    return trainer


@pytest.mark.parametrize("chance", [pytest.param(0.2, marks=pytest.mark.slow), 0.9])
def test_estimates_meet_the_known_value(recorded: Path, chance: float) -> None:
    """V = p + γ · 2p."""
    with target(chance) as trainer:
        found = trainer.estimate(recorded, explore=True, fqe_updates=2000)
    value = chance + GAMMA * 2 * chance
    assert set(found) == {"is", "wis", "fqe"}
    for method in ("is", "wis"):
        assert abs(found[method]["return_mean"] - value) < 4 * found[method]["standard_error"]
        assert found[method]["standard_error"] < 0.1
    assert found["fqe"]["return_mean"] == pytest.approx(value, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"fqe_updates": "a"}, "fqe_updates must be an integer, not 'a'"),
        ({"fqe_updates": 0}, "fqe_updates must be at least 1, not 0"),
        ({"gamma": "a"}, "gamma must be a finite number, not 'a'"),
        ({"gamma": 1.5}, "gamma must be at least 0 and at most 1, not 1.5"),
        ({"methods": "wi"}, "no method 'wi' of off-policy evaluation; valid: is, wis, fqe"),
        ({"methods": 5}, "methods must be one of is, wis, fqe or a list of them, not 5"),
        ({"methods": []}, "methods must be one of is, wis, fqe or a list of them, not a list"),
        ({"data": 5}, "data must be a Dataset, a folder of Parquet files or 'minari:NAME', not 5"),
    ],
)
def test_wrong_arguments_get_one_sentence(recorded: Path, settings: dict[str, Any], problem: str) -> None:
    with target(0.5) as trainer, pytest.raises(ConfigError, match=problem):
        trainer.estimate(**{"data": recorded, **settings})


def test_one_method_may_be_a_string(recorded: Path) -> None:
    with target(0.5) as trainer:
        one = trainer.estimate(recorded, "wis", explore=True)
        assert one == trainer.estimate(recorded, ["wis"], explore=True)
    assert set(one) == {"wis"}


def test_the_greedy_policy_is_estimated_by_default(recorded: Path) -> None:
    with target(0.9) as trainer:
        found = trainer.estimate(data.read_parquet(recorded), ["is", "wis"])
    for figures in found.values():
        assert figures["return_mean"] == pytest.approx(1 + GAMMA * 2, abs=0.15)


def test_policies_without_probabilities_are_estimated_by_fitted_q(recorded: Path, tmp_path: Path) -> None:
    with DQN(Chain, {"gamma": GAMMA, "num_workers": 0}) as trainer:
        found = trainer.estimate(recorded, ["fqe"], fqe_updates=100)
        assert 0 <= found["fqe"]["return_mean"] < 2.2
        with pytest.raises(ConfigError, match="evaluate it greedily"):
            trainer.estimate(recorded, explore=True)
    config = {"num_workers": 0, "train_batch_size": 500, "output": str(tmp_path)}
    with PPO(probes.Aim, config) as trainer:
        trainer.train()
    with TD3(probes.Aim, {"num_workers": 0, "model": {"fcnet_hiddens": [16]}}) as trainer:
        assert set(trainer.estimate(tmp_path, fqe_updates=10)) == {"fqe"}
        with pytest.raises(ConfigError, match="a greedy policy over continuous actions has none"):
            trainer.estimate(tmp_path, ["wis"])
        with pytest.raises(ConfigError, match="no method 'dr'"):
            trainer.estimate(tmp_path, ["dr"])


def test_data_without_probabilities_is_refused(recorded: Path, tmp_path: Path) -> None:
    rows = data.read_parquet(recorded).to_arrays()
    data.from_arrays({n: a for n, a in rows.items() if n != "action_logp"}).write_parquet(tmp_path / "d")
    with target(0.5) as trainer, pytest.raises(DataError, match="needs the column 'action_logp'"):
        trainer.estimate(tmp_path / "d", ["is"])


def test_episodes_that_the_policy_never_has_do_not_count(
    recorded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = data.read_parquet(recorded).to_arrays()
    bad = np.isin(rows["episode_id"], rows["episode_id"][rows["action"] == 0])
    data.from_arrays({name: array[bad] for name, array in rows.items()}).write_parquet(tmp_path / "bad")
    with target(0.9) as trainer:
        found = trainer.estimate(tmp_path / "bad", ["is", "wis"])
        assert "the policy would have taken the actions of none of" in caplog.text
        assert "--explore" in caplog.text
        for figures in found.values():
            assert figures["effective_sample_size"] == 0
            assert figures["return_mean"] <= 1
        caplog.clear()
        assert trainer.estimate(recorded, ["wis"])["wis"]["effective_sample_size"] > 100
    assert not caplog.text


@pytest.mark.parametrize("method", ["is", "fqe"])
@pytest.mark.parametrize(
    ("column", "change", "problem"),
    [
        ("action", lambda array: array + 1, "column 'action' has the action 2, which is not in the action space"),
        ("action", lambda array: array.astype(str), "column 'action' has the type str"),
        ("reward", lambda array: array[:, None], r"column 'reward' has rows of shape \[1\]"),
        ("reward", lambda array: array * np.nan, "column 'reward' has NaN or infinite values"),
        ("observation", lambda array: array + np.inf, "column 'observation' has NaN or infinite values"),
    ],
)
def test_data_is_checked(
    recorded: Path, tmp_path: Path, method: str, column: str, change: Callable[[Any], Any], problem: str
) -> None:
    rows = data.read_parquet(recorded).to_arrays()
    data.from_arrays({**rows, column: change(rows[column])}).write_parquet(tmp_path / "d")
    with target(0.5) as trainer, pytest.raises(DataError, match=problem):
        trainer.estimate(tmp_path / "d", [method], fqe_updates=20)


@pytest.mark.parametrize(("shift", "problem"), [(0, "has steps twice"), (-10, "has negative values")])
def test_steps_that_are_there_twice_are_refused(recorded: Path, tmp_path: Path, shift: int, problem: str) -> None:
    rows = data.read_parquet(recorded).to_arrays()
    others = {**rows, "step": rows["step"] + shift}
    data.from_arrays({n: np.concatenate([a, others[n]]) for n, a in rows.items()}).write_parquet(tmp_path / "d")
    with target(0.5) as trainer, pytest.raises(DataError, match=problem):
        trainer.estimate(tmp_path / "d", ["wis"])

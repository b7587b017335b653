"""Probing and checking environments; flaws that show while training."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from outplay import PG, PPO, EnvError
from outplay.envs import EnvSpec, probe_env
from outplay.envs.check import check_env
from tests import probes


def test_the_probe() -> None:
    assert not probe_env(EnvSpec("walk", probes.Walk)).inexact
    assert "two different episodes" in probe_env(EnvSpec("restless", probes.Restless)).inexact
    assert probe_env(EnvSpec("CartPole-v1")).is_native
    assert probe_env(EnvSpec("walk", probes.Walk, {"sleep": 0.002})).step_seconds >= 0.002


def test_auto_uses_workers_where_an_environment_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.algorithms.resolution.count_cpus", lambda: 3)
    for env, sleep, expected in ((probes.Walk, 0.003, 3), ("CartPole-v1", None, 0)):
        config = {} if sleep is None else {"env_config": {"sleep": sleep}}
        with PPO(env=env, config=config) as trainer:
            assert trainer.num_workers == expected


@pytest.mark.parametrize(
    ("env", "config", "sentence"),
    [
        (probes.Old, {}, "derive it from gymnasium.Env"),
        (probes.Restless, {}, "draw all random numbers from self.np_random"),
        (probes.Flawed, {"flaw": "raises"}, "it raised RuntimeError: the gripper is stuck"),
        (
            probes.Flawed,
            {"flaw": "observation is nan"},
            "step() returned an observation[0] that is nan; all observations and rewards must be finite (step 5)",
        ),
        (probes.Flawed, {"flaw": "reward is nan"}, "a reward is nan"),
        (probes.Flawed, {"flaw": "observation has another shape"}, "an observation of shape (3,)"),
        (
            probes.Flawed,
            {"flaw": "four values"},
            "step() must return (observation, reward, terminated, truncated, info)",
        ),
        (probes.Flawed, {"flaw": "reward is a list"}, "a reward must be a number, not list"),
        (probes.Flawed, {"flaw": "done is a number"}, "terminated must be True or False, not a float"),
        (probes.Flawed, {"flaw": "reset returns the observation alone"}, "reset() must return (observation, info)"),
    ],
)
def test_check_env_names_what_is_wrong(env: Any, config: dict[str, Any], sentence: str) -> None:
    found = list(check_env(EnvSpec("it", env, config)))
    assert any(kind == "problem" and sentence in text for kind, text in found), found


def test_check_env_finds_nothing_wrong_with_what_is_right() -> None:
    for spec in (EnvSpec("walk", probes.Walk), EnvSpec("CartPole-v1"), EnvSpec("nested", probes.Nested)):
        assert not [text for kind, text in check_env(spec) if kind == "problem"]


FLAWS = {
    "raises": r"environment '.*Flawed' raised in step\(\): RuntimeError: the gripper is stuck",
    "observation is nan": r"Flawed': step \d+ of an episode returned an observation\[0\] that is nan; all observations",
    "reward is nan": r"Flawed': step \d+ of an episode returned a reward that is nan; .* \(EnvGroup 0, lane 0\)",
    "reward is infinite": r"Flawed': step \d+ of an episode returned a reward that is inf",
    "observation has another shape": r"Flawed': step\(\) returned an observation of shape \(3,\), but its",
    "four values": r"step\(\) must return \(observation, reward, terminated, truncated, info\), not a tuple of 4",
    "reward is a list": "a reward must be a number, not",
    "done is a number": "terminated must be True or False, not 1.5",
    "done is a text": "terminated must be True or False, not 'no'",
    "observation is None": "an observation ",
    "observation is ragged": "an observation that is a list and does not fit its space",
    "reset returns the observation alone": r"reset\(\) must return \(observation, info\), not a ndarray",
}


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_flaw_that_shows_while_training_is_one_sentence(process_engine: None, flaw: str, num_workers: int) -> None:
    if num_workers and flaw not in ("raises", "reward is nan"):
        pytest.skip("what a worker raises arrives as it is: two cases show it")
    config = {
        "num_workers": num_workers,
        "num_envs": 4,
        "train_batch_size": 400,
        "env_config": {"flaw": flaw, "after": 60},
    }
    with pytest.raises(EnvError, match=FLAWS[flaw]) as caught, PPO(env=probes.Flawed, config=config) as trainer:
        trainer.train()
    assert "\n" not in str(caught.value)


def test_envpool(process_engine: None, caplog: pytest.LogCaptureFixture) -> None:
    """An extra that weighs 700 MB: tested where it is installed."""
    pytest.importorskip("envpool")
    results = []
    for num_workers in (0, 2):
        config = {"num_envs": 8, "train_batch_size": 256, "num_workers": num_workers}
        with PPO(env="envpool/CartPole-v1", config=config) as trainer:
            results.append([trainer.train()["episode_return_mean"] for _ in range(3)])
            assert trainer.evaluate()["episodes"] == 10
    assert results[0] == results[1]
    assert "EnvPool seeds its environments once" in caplog.text


def test_without_envpool_its_ids_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match=r"needs EnvPool: pip install 'outplay\[envpool\]'"):
        PPO(env="envpool/Pong-v5")


def test_a_choice_that_its_space_does_not_have_is_refused() -> None:
    with (
        PPO(env=probes.OutOfRange, config={"num_workers": 0}) as trainer,
        pytest.raises(
            EnvError,
            match=r"OutOfRange': reset\(\) returned an observation\['switch'\] that is 2, which is not in",
        ),
    ):
        trainer.train()


def test_whole_episodes_of_something_endless_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.envs.group.LONGEST_EPISODE", 500)
    config = {"num_workers": 0, "num_envs": 2, "env_config": {"length": 10**9}, "train_batch_size": 10}

    class Still(probes.Walk):
        def step(self, action: Any) -> Any:
            return self._observe(), 0.0, False, False, {}

    with PG(env=Still, config=config) as trainer, pytest.raises(EnvError, match="set max_episode_steps"):
        trainer.train()

"""`model.precision: auto`: when it is bfloat16, that it is part of the run, and that it learns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import DQN, SAC, TD3, Algorithm
from outplay.algorithms import find_algorithm, resolution
from outplay.machine import has_bfloat16

OLD = Path(__file__).parents[1] / "data" / "checkpoints-0.2.0" / "dqn"

SUITABLE: list[tuple[str, dict[str, Any]]] = [
    ("SAC", {}),
    ("SAC", {"model": {"fcnet_hiddens": [128]}}),
    ("SAC", {"model": {"fcnet_hiddens": [400, 300]}}),
    ("SAC", {"critic_hiddens": [512, 512]}),
    ("TD3", {}),
    ("DDPG", {}),
]
UNSUITABLE: list[tuple[str, dict[str, Any]]] = [
    ("PPO", {"model": {"fcnet_hiddens": [256, 256]}}),
    ("PQN", {}),
    ("CQL", {"input": "data"}),
    ("DQN", {}),
    ("SAC", {"model": {"fcnet_hiddens": [256, 64]}}),
    ("SAC", {"model": {"fcnet_hiddens": []}}),
    ("SAC", {"critic_norm": "layer"}),
    ("SAC", {"critic_hiddens": [64, 64]}),
    ("SAC", {"model": {"layer_norm": True}}),
]


def made(kind: type[Algorithm[Any]], env: str, **settings: Any) -> Algorithm[Any]:
    return kind(env, {"num_workers": 0, "num_env_groups": 2, "buffer_size": 10_000, "seed": 0, **settings})


def precision_of(trainer: Algorithm[Any]) -> str:
    """The precision in which the networks compute."""
    learner: Any = trainer.learner
    networks = [learner.network, *(target.network for target in learner.targets.values())]
    (dtype,) = {network.dtype for network in networks}
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(("name", "settings"), SUITABLE)
def test_wide_plain_networks_of_actors_and_critics_suit(name: str, settings: dict[str, Any]) -> None:
    assert find_algorithm(name).Config(env="CartPole-v1", **settings).suits_bfloat16


@pytest.mark.parametrize(("name", "settings"), UNSUITABLE)
def test_others_do_not(name: str, settings: dict[str, Any]) -> None:
    assert not find_algorithm(name).Config(env="CartPole-v1", **settings).suits_bfloat16


@pytest.mark.parametrize("can", [False, True])
def test_auto_depends_on_the_cpu_and_a_given_precision_does_not(can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "has_bfloat16", lambda: can)
    for kind, env in ((SAC, "Pendulum-v1"), (TD3, "Pendulum-v1")):
        with made(kind, env) as trainer:
            expected = "bfloat16" if can else "float32"
            assert (trainer.config.model.precision, precision_of(trainer)) == (expected, expected)
        for given in ("float32", "bfloat16"):
            with made(kind, env, model={"precision": given}) as trainer:
                assert (trainer.config.model.precision, precision_of(trainer)) == (given, given)


@pytest.mark.parametrize(("kind", "env"), [(SAC, "CartPole-v1"), (SAC, "ALE/Pong-v5"), (DQN, "CartPole-v1")])
def test_discrete_actions_are_learned_in_float32(
    kind: type[Algorithm[Any]], env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "has_bfloat16", lambda: True)
    with made(kind, env) as trainer:
        assert (trainer.config.model.precision, precision_of(trainer)) == ("float32", "float32")


def test_a_run_keeps_its_precision_on_another_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for can in (True, False):
        monkeypatch.setattr(resolution, "has_bfloat16", lambda can=can: can)
        with made(TD3, "Pendulum-v1") as trainer:
            trainer.train()
            checkpoint = trainer.save(tmp_path / str(can))
        monkeypatch.setattr(resolution, "has_bfloat16", lambda can=can: not can)
        with Algorithm.from_checkpoint(checkpoint) as trainer:
            assert trainer.config.model.precision == ("bfloat16" if can else "float32")


def test_a_checkpoint_that_names_no_precision_is_trained_on_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "has_bfloat16", lambda: True)
    checkpoint = Path(shutil.copytree(OLD, tmp_path / "old")) / "checkpoint_000003"
    with Algorithm.from_checkpoint(checkpoint) as trainer:
        assert trainer.config.model.precision == "float32"


def test_the_cpu_is_asked() -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        assert has_bfloat16()
    elif flags:
        assert not has_bfloat16()


@pytest.mark.parametrize(("kind", "env"), [(SAC, "Pendulum-v1"), (TD3, "Pendulum-v1"), (DQN, "CartPole-v1")])
def test_the_promises_hold_in_bfloat16(kind: type[Algorithm[Any]], env: str, tmp_path: Path) -> None:
    """The same bytes for any number of workers, and after a resume."""
    settings = {"learning_starts": 200, "model": {"precision": "bfloat16", "fcnet_hiddens": [128, 128]}}
    with made(kind, env, **settings) as trainer:
        while trainer.timesteps < 600:
            trainer.train()
        checkpoint = trainer.save(tmp_path / "checkpoint")
        while trainer.timesteps < 1_200:
            trainer.train()
        expected = trainer.get_policy().get_weights()
        assert trainer.learner.updates > 100
    with Algorithm.from_checkpoint(checkpoint) as resumed, made(kind, env, **settings, num_workers=2) as placed:
        for trainer in (resumed, placed):
            while trainer.timesteps < 1_200:
                trainer.train()
            found = trainer.get_policy().get_weights()
            assert all(np.array_equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAC, TD3])
def test_it_learns_in_bfloat16(kind: type[Algorithm[Any]]) -> None:
    settings = {"lr": 1e-3, "model": {"precision": "bfloat16"}}
    with made(kind, "Pendulum-v1", **settings) as trainer:
        while trainer.timesteps < 12_000:
            trainer.train()
        assert trainer.evaluate(episodes=20)["episode_return_mean"] > -250

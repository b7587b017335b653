"""On a GPU: what is recorded and replayed is what would have been computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN, PPO, PQN, SAC, TD3, Algorithm
from outplay.algorithms.iteration import collect
from outplay.algorithms.ppo import PPOLearner
from outplay.fragments import join

CONFIG = {
    "num_envs": 8, "num_env_groups": 2, "train_batch_size": 256, "sgd_minibatch_size": 100, "num_sgd_iter": 2,
    "num_workers": 0, "num_gpus": 1, "normalize_observations": True, "kl_coeff": 0.1, "lr": 1e-3,
    "lr_schedule": [[0, 1e-3], [1000, 0.0]], "env_config": {"repeat_action_probability": 0.0},
    "model": {"conv_filters": [[16, 8, 4], [32, 4, 2]], "fcnet_hiddens": [64]},
}  # fmt: skip

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


def trainer(**config: Any) -> PPO:
    return PPO(env="ALE/Pong-v5", config={**CONFIG, **config})


def acts_as_it_learned(ours: Algorithm) -> set[str]:
    """After each of three iterations; what was compared."""
    assert ours.config.act_on_gpu is True
    rng = np.random.default_rng(0)
    observations = (rng.integers(0, 255, (4, 4, 84, 84), dtype=np.uint8),)
    for _ in range(3):
        ours.train()
        (worker,) = ours.workers.foreach_worker(lambda worker: worker)
        acted, expected = (policy.act(observations, {}, None, False, rng)[2] for policy in (worker.policy, ours.policy))
        for name, values in expected.items():
            assert acted[name] == pytest.approx(values, abs=1e-2)
    return set(expected)


@on_gpu
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_a_recorded_step_is_a_plain_one(optimizer: str) -> None:
    """Pieces of two sizes, rates that change: three iterations of each, on the same batches."""
    with (
        trainer(optimizer={"type": optimizer}, act_on_gpu=False) as recorded,
        trainer(optimizer={"type": optimizer}, act_on_gpu=False) as plain,
    ):
        learner = plain.learner
        assert isinstance(learner, PPOLearner)
        learner.step = lambda rows, lr, entropy, measure: learner._step(rows, lr, entropy, learner.kl_coeff, measure)  # type: ignore[method-assign]
        for iteration in range(3):
            batch = join(collect(recorded))
            ours = recorded.learner.update(batch, 256 * iteration, iteration)
            theirs = plain.learner.update(batch, 256 * iteration, iteration)
            assert ours == pytest.approx(theirs, rel=1e-2, abs=5e-4)
        # Sums on a GPU are not exact. Adam makes large steps of some tiny differences; all others stay tiny.
        assert (recorded.policy.flat - plain.policy.flat).abs().mean() < 1e-6


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recorded_acting_follows_the_weights(precision: str) -> None:
    model = {**CONFIG["model"], "precision": precision}  # type: ignore[dict-item]
    with trainer(model=model) as ours:
        assert acts_as_it_learned(ours) == {"dist", "value"}


@on_gpu
def test_it_is_saved_and_restored(tmp_path: Path) -> None:
    with trainer() as first:
        first.train()
        path = first.save(tmp_path)
        weights = first.policy.flat.cpu()
    with trainer() as second:
        second.restore(path)
        assert second.policy.flat.cpu().equal(weights)
        second.train()


def test_a_run_that_acted_on_a_gpu_goes_on_without(caplog: pytest.LogCaptureFixture) -> None:
    with trainer(num_gpus=0, act_on_gpu=True) as ours:
        assert ours.config.act_on_gpu is False
    assert "acting on the CPU" in caplog.text


# DQN

SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {"double_q": False, "dueling": False},
    "QR, soft target": {"distributional": "qr", "num_atoms": 11, "tau": 0.1, "target_network_update_freq": 1},
    "C51, by priority": {"distributional": "c51", "prioritized_replay": True, "target_network_update_freq": 5},
    "Rainbow": {"distributional": "c51", "noisy": True, "prioritized_replay": True, "n_step": 3},
}


def q_learner(env: str, **config: Any) -> DQN:
    settings = {"train_batch_size": 64, "learning_starts": 64, "num_env_groups": 2, "buffer_size": 2_000}
    model = {"fcnet_hiddens": [64], **({"conv_filters": [[16, 8, 4], [32, 4, 2]]} if env.startswith("ALE") else {})}
    return DQN(env=env, config={"num_workers": 0, "num_gpus": 1, "model": model, **settings, **config})


@on_gpu
@pytest.mark.parametrize("switches", SWITCHES)
def test_q_learning_there_is_what_it_is_here(switches: str) -> None:
    """From the same steps: the same draws, and the same numbers but for rounding, which small steps keep small."""
    config = {**SWITCHES[switches], "normalize_observations": True, "act_on_gpu": False}
    config |= {"lr": 1e-5, "training_intensity": 1 / 8, "prioritized_replay": False}  # which rounding would change
    with q_learner("ALE/Pong-v5", **config) as there, q_learner("ALE/Pong-v5", **config, num_gpus=0) as here:
        for iteration in range(3):
            batch = join(collect(there))
            ours = there.learner.update(batch, 64 * iteration, iteration)
            assert ours == pytest.approx(here.learner.update(batch, 64 * iteration, iteration), rel=2e-2, abs=1e-3)
        assert ours["updates"] == 16
        drawn = here.learner.replay.sample(32, np.random.default_rng(0))
        wrong = [ours.learner.step(ours.learner.to_device(drawn), 0.0)[1]["errors"].cpu() for ours in (there, here)]
        assert torch.allclose(*wrong, rtol=2e-2, atol=1e-2)
        assert torch.allclose(there.policy.flat.cpu(), here.policy.flat, atol=1e-4)
        assert there.policy.flat.device.type == "cuda"


@on_gpu
@pytest.mark.parametrize("switches", SWITCHES)
def test_acting_by_values_follows_the_weights(switches: str) -> None:
    with q_learner("ALE/Pong-v5", **SWITCHES[switches]) as ours:
        assert acts_as_it_learned(ours) == {"dist"}


@on_gpu
def test_the_replay_is_resumed_with_the_rest(tmp_path: Path) -> None:
    with q_learner("CartPole-v1", **SWITCHES["Rainbow"]) as first:
        for _ in range(4):
            first.train()
        path = first.save(tmp_path)
        result = first.train()
    with q_learner("CartPole-v1", **SWITCHES["Rainbow"]) as second:
        second.restore(path)
        again = second.train()
    assert again["episodes_total"] == result["episodes_total"]
    assert again["learner"] == pytest.approx(result["learner"], rel=1e-2)


# PQN


def parallel_q_learner(env: str, **config: Any) -> PQN:
    settings = {"num_envs": 8, "num_env_groups": 2, "train_batch_size": 256, "sgd_minibatch_size": 100}
    model = {"fcnet_hiddens": [64], **({"conv_filters": [[16, 8, 4], [32, 4, 2]]} if env.startswith("ALE") else {})}
    return PQN(env=env, config={"num_workers": 0, "num_gpus": 1, "model": model, **settings, **config})


@on_gpu
@pytest.mark.parametrize("env", ["ALE/Pong-v5", "CartPole-v1"])
def test_parallel_q_learning_there_is_what_it_is_here(env: str) -> None:
    """From the same steps, in minibatches of two sizes, which are captured; LayerNorm after each convolution."""
    config = {"normalize_observations": True, "act_on_gpu": False, "lr": 1e-4}
    with parallel_q_learner(env, **config) as there, parallel_q_learner(env, **config, num_gpus=0) as here:
        assert there.learner.captures
        for iteration in range(3):
            batch = join(collect(there))
            ours = there.learner.update(batch, 256 * iteration, iteration)
            assert ours == pytest.approx(here.learner.update(batch, 256 * iteration, iteration), rel=2e-2, abs=1e-2)
        assert len(there.learner._captured) == 2
        assert torch.allclose(there.policy.flat.cpu(), here.policy.flat, atol=1e-3)


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_its_acting_follows_the_weights(precision: str) -> None:
    model = {**CONFIG["model"], "precision": precision}  # type: ignore[dict-item]
    with parallel_q_learner("ALE/Pong-v5", model=model) as ours:
        assert acts_as_it_learned(ours) == {"dist"}


@on_gpu
@pytest.mark.parametrize("model", [{"use_lstm": True}, {"use_attention": True}], ids=["LSTM", "attention"])
def test_parallel_q_learning_with_a_recurrent_network(model: dict[str, Any], tmp_path: Path) -> None:
    with parallel_q_learner("CartPole-v1", model=model) as first:
        first.train()
        path = first.save(tmp_path)
        result = first.train()["learner"]
        assert not first.learner.captures
    with parallel_q_learner("CartPole-v1", model=model) as second:
        second.restore(path)
        assert second.train()["learner"] == pytest.approx(result, rel=1e-2)


@on_gpu
def test_parallel_q_learning_solves_cartpole_there() -> None:
    config = {"lr": 1e-3, "reward_scale": 0.1, "lambda": 0.95, "num_env_groups": 1, "num_envs": 32}
    config |= {"train_batch_size": 1024, "sgd_minibatch_size": 128, "metrics_num_episodes": 20}
    with parallel_q_learner("CartPole-v1", **config) as ours:
        best = max(ours.train()["episode_return_mean"] for _ in range(200))
    assert best >= 475


@on_gpu
def test_agents_beside_a_learner_on_the_gpu() -> None:
    config = {"async": True, "num_workers": 2, "num_envs": 4, "num_env_groups": 4}
    with q_learner("CartPole-v1", **config) as ours:
        for _ in range(6):
            learned = ours.train()["learner"]
        assert ours.policy.flat.device.type == "cuda"
        assert learned["updates"] > 0
        assert learned["policy_lag"] >= 0


# Actors and critics

ACTORS: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "SAC": (SAC, {}),
    "SAC, LayerNorm, dropout": (SAC, {"critic_norm": "layer", "critic_dropout": 0.1}),
    "TD3": (TD3, {}),
    "TD3, CrossQ": (TD3, {"critic_norm": "batch", "use_target_network": False}),
}


def actor(case: str, **config: Any) -> Algorithm:
    algorithm, own = ACTORS[case]
    settings = {"train_batch_size": 64, "learning_starts": 64, "num_env_groups": 2, "buffer_size": 2_000}
    exploring = {"exploration_config": {"random_timesteps": 64}, "model": {"fcnet_hiddens": [64]}}
    return algorithm("Pendulum-v1", {"num_workers": 0, "num_gpus": 1, **settings, **exploring, **own, **config})


@on_gpu
@pytest.mark.parametrize("case", [case for case in ACTORS if "dropout" not in case])  # whose masks differ on a GPU
def test_actors_and_critics_there_are_what_they_are_here(case: str) -> None:
    with actor(case, lr=1e-5) as there, actor(case, lr=1e-5, num_gpus=0) as here:
        for iteration in range(3):
            batch = join(collect(there))
            ours = there.learner.update(batch, 64 * iteration, iteration)
            assert ours == pytest.approx(here.learner.update(batch, 64 * iteration, iteration), rel=2e-2, abs=1e-2)
        assert ours["updates"] == 128
        assert torch.allclose(there.policy.flat.cpu(), here.policy.flat, atol=1e-3)
        assert there.policy.flat.device.type == "cuda"


@on_gpu
@pytest.mark.parametrize("case", ACTORS)
def test_actors_are_resumed(case: str, tmp_path: Path) -> None:
    with actor(case) as first:
        for _ in range(4):
            first.train()
        path = first.save(tmp_path)
        result = first.train()
    with actor(case) as second:
        second.restore(path)
        again = second.train()
    assert again["learner"] == pytest.approx(result["learner"], rel=1e-3, abs=1e-4)


@on_gpu
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (PPO, {"train_batch_size": 40, "sgd_minibatch_size": 13, "num_sgd_iter": 2}),
        (DQN, {"train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "prioritized_replay": True}),
    ],
)
def test_learners_that_share_a_gpu_learn_what_one_learns(
    algorithm: type[Algorithm], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "model": {"fcnet_hiddens": [8]}, **settings}
    trained = []
    for learners in ({"num_gpus": 1}, {"num_learners": 2, "num_gpus_per_learner": 0.5}):
        with algorithm("CartPole-v1", {**config, **learners}) as ours:
            for _ in range(4):
                ours.train()
            assert ours.learner.device.type == "cuda"
            trained.append(ours.policy.flat.detach().cpu())
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-3, atol=1e-5)
    assert "learners share a GPU" in caplog.text

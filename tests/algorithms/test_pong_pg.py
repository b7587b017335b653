"""The recipe pong-pg: its gradient against a plain loop over one game, its games, its resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest

from outplay import PG
from outplay.algorithms import iteration
from outplay.algorithms.pg import PGLearner
from outplay.fragments import join
from outplay.runs.experiments import load_recipe
from outplay.streams import stream

RECIPE = load_recipe("pong-pg").config


def trainer(**config: Any) -> PG:
    return PG(env="PongDifference", config={**RECIPE, "num_workers": 0, **config})


def play_and_differentiate(
    w1: np.ndarray, w2: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """One game, and the gradient of what paid off, step by step in double precision. Knows nothing of the package."""
    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0)
    frame, _ = game.reset(seed=3)
    before, images, hiddens, errors, rewards = None, [], [], [], []
    over = False
    while not over:
        red = frame[35:195][::2, ::2, 0].ravel()
        now = np.where((red == 0) | (red == 144) | (red == 109), 0.0, 1.0)
        image = np.zeros(6400) if before is None else now - before
        before = now
        hidden = np.maximum(w1 @ image, 0.0)
        up = 1.0 / (1.0 + np.exp(-(w2 @ hidden)))
        goes_up = rng.random(dtype=np.float32) < up
        frame, reward, terminated, truncated, _ = game.step(2 if goes_up else 3)
        images.append(image)
        hiddens.append(hidden)
        errors.append((1.0 if goes_up else 0.0) - up)
        rewards.append(float(reward))
        over = terminated or truncated
    returns = np.zeros(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] if rewards[t] != 0 else 0.99 * following
        returns[t] = following
    returns = (returns - np.mean(returns)) / np.std(returns)
    d1, d2 = np.zeros_like(w1), np.zeros_like(w2)
    for t in range(len(rewards)):
        weighted = errors[t] * returns[t]
        d2 += weighted * hiddens[t]
        for unit in np.flatnonzero(hiddens[t] > 0):
            d1[unit] += weighted * w2[unit] * images[t]
    return d1, d2, sum(rewards)


def test_the_gradient_is_that_of_a_plain_loop_over_each_game() -> None:
    """Two games in two EnvGroups, so that each has its own random numbers; the gradients add up."""
    with trainer(train_batch_episodes=2, seed=5) as ours:
        assert isinstance(ours.learner, PGLearner)
        weights = ours.policy.get_weights()
        fragments = iteration.collect(ours)
        (g1, g2), _ = ours.learner.gradients(join(fragments))
    w1, w2 = weights["hidden.0.weight"].T.astype(float), weights["policy_head.weight"][0].astype(float)
    assert w1.shape == (200, 6400)
    assert w1.std() == pytest.approx(1 / 80, rel=0.01)
    assert w2.std() == pytest.approx(200**-0.5, rel=0.2)
    first, second = (play_and_differentiate(w1, w2, stream(5, "actions", group, 0)) for group in (0, 1))
    assert [f.episode_returns.tolist() for f in fragments] == [[first[2]], [second[2]]]
    # Ours descends.
    for mine, theirs in ((-g1.numpy().T, first[0] + second[0]), (-g2.numpy()[0], first[1] + second[1])):
        assert np.abs(mine - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_an_update_is_rmsprop_with_the_gradients_added_up() -> None:
    with trainer(train_batch_episodes=2, num_env_groups=1) as ours:
        assert isinstance(ours.learner, PGLearner)
        before = ours.policy.get_weights()["policy_head.weight"]
        batch = join(iteration.collect(ours))
        (_, gradient), _ = ours.learner.gradients(batch)
        ours.learner.update(batch, 0, 0)
        after = ours.policy.get_weights()["policy_head.weight"]
    step = 1e-4 * gradient.numpy() / (np.sqrt(0.01 * gradient.numpy() ** 2) + 1e-5)
    assert after == pytest.approx(before - step, abs=1e-6)


def test_each_iteration_is_one_game_in_each_environment() -> None:
    with trainer(train_batch_episodes=3) as ours:
        result = ours.train()
        assert result["episodes_this_iter"] == len(result["episode_returns"]) == 3
        assert all(-21 <= value <= -10 for value in result["episode_returns"])
        first, second, third = result["episode_returns"]
        assert result["episode_return_running"] == pytest.approx(0.99 * (0.99 * first + 0.01 * second) + 0.01 * third)


@pytest.mark.slow
def test_resuming_goes_on_exactly(tmp_path: Path) -> None:
    """Games are seeded every so many episodes, the first batch: what comes later follows from there."""
    config = {"train_batch_episodes": 2, "max_episode_steps": 60}
    with trainer(**config) as whole:
        for _ in range(3):
            result = whole.train()
    with trainer(**config) as first:
        for _ in range(2):
            first.train()
        path = first.save(tmp_path)
    with trainer(**config) as second:
        second.restore(path)
        resumed = second.train()
        assert second.policy.flat.equal(whole.policy.flat)
    assert resumed["episode_return_running"] == result["episode_return_running"]


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_workers_do_not_change_the_result() -> None:
    config = {"train_batch_episodes": 4, "max_episode_steps": 40, "num_env_groups": 2}
    weights = []
    for num_workers in (0, 2):
        with trainer(**config, num_workers=num_workers) as ours:
            for _ in range(2):
                ours.train()
            weights.append(ours.policy.flat.clone())
    assert weights[0].equal(weights[1])

"""DQN: its losses by hand, its switches, learning on probes, and the promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN, EnvError
from outplay.algorithms.dqn import DQNLearner
from outplay.replay import PrioritizedReplay, Transitions
from tests import probes

SMALL = {
    "num_workers": 0, "num_envs": 4, "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 16,
    "buffer_size": 2_000, "lr": 3e-3, "target_network_update_freq": 20, "exploration_config": {"epsilon_timesteps": 500},
    "training_intensity": 1.0, "model": {"fcnet_hiddens": [16]}, "metrics_num_episodes": 30,
}  # fmt: skip
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {"double_q": False, "dueling": False},
    "double and dueling": {},
    "three steps": {"n_step": 3},
    "by priority": {"prioritized_replay": True},
    "C51": {"distributional": "c51", "num_atoms": 11, "v_min": -2.0, "v_max": 2.0},
    "quantiles": {"distributional": "qr", "num_atoms": 8},
    "a soft target": {"tau": 0.05, "target_network_update_freq": 1},
}


def trainer(env: Any, **config: Any) -> DQN:
    return DQN(env=env, config={**SMALL, **config})


def learner_of(ours: DQN) -> DQNLearner:
    assert isinstance(ours.learner, DQNLearner)
    return ours.learner


# The loss, with a network whose values are known


def known(values: tuple[float, float], target: tuple[float, float], **config: Any) -> DQNLearner:
    """A learner whose network and target say these values whatever they observe."""
    with trainer(probes.OneStep, dueling=False, **config) as ours:
        learner = learner_of(ours)
        with torch.no_grad():
            for network, said in ((learner.q_network, values), (learner.target, target)):
                network.advantage_head.weight.zero_()
                network.advantage_head.bias.copy_(torch.tensor(said))
        return learner


def one(action: int, reward: float, discount: float) -> Transitions:
    seen = (np.zeros((1, 1), np.float32),)
    number = np.array([reward], np.float32)
    return Transitions(seen, np.array([action]), number, seen, np.array([discount], np.float32), number, np.array([0]))


@pytest.mark.parametrize(
    ("double_q", "discount", "target"),
    [
        (False, 0.5, 1.0 + 0.5 * 5.0),  # the target's own best
        (True, 0.5, 1.0 + 0.5 * 3.0),  # what the target says of the action that the network prefers
        (True, 0.0, 1.0),  # terminated
    ],
)
def test_the_loss_by_hand(double_q: bool, discount: float, target: float) -> None:
    learner = known((0.1, 2.0), (5.0, 3.0), double_q=double_q)
    loss, wrong, value = learner.losses(one(0, 1.0, discount))
    assert float(value) == pytest.approx(0.1)
    error = abs(target - 0.1)
    assert float(wrong) == pytest.approx(target - 0.1)
    assert float(loss.detach()) == pytest.approx(error - 0.5 if error > 1 else error**2 / 2, rel=1e-5)


# Learning, with each switch


@pytest.mark.parametrize("switch", SWITCHES)
def test_credit_over_two_steps(switch: str) -> None:
    with trainer(probes.TwoSteps, **SWITCHES[switch]) as ours:
        for _ in range(120):
            result = ours.train()
        assert ours.evaluate()["episode_return_mean"] == 1.0
        assert np.isfinite(list(result["learner"].values())).all()


@pytest.mark.parametrize("switch", ["double and dueling", "C51"])
def test_an_action_that_depends_on_the_observation(switch: str) -> None:
    with trainer(probes.Match, **SWITCHES[switch]) as ours:
        for _ in range(120):
            ours.train()
        assert ours.evaluate()["episode_return_mean"] == 1.0


def test_the_intensity_is_updates_per_step() -> None:
    with trainer(probes.Match, training_intensity=0.3, learning_starts=16) as ours:
        for _ in range(20):
            result = ours.train()
        assert result["learner"]["updates"] == int(0.3 * ours.timesteps)


def test_epsilon_goes_down_and_evaluations_are_greedy() -> None:
    with trainer(probes.Match, exploration_config={"epsilon_timesteps": 100, "final_epsilon": 0.1}) as ours:
        seen = [ours.train()["learner"]["epsilon"] for _ in range(10)]
        assert seen[0] == pytest.approx(1 - 0.9 * 0.16)
        assert seen[-1] == pytest.approx(0.1)
        assert len({ours.compute_single_action([0.5], explore=False) for _ in range(20)}) == 1


def test_only_discrete_actions() -> None:
    with pytest.raises(EnvError, match="Discrete action space"):
        DQN(env="Pendulum-v1")


# The promises


@pytest.mark.usefixtures("process_engine")
def test_workers_do_not_change_the_result() -> None:
    weights = []
    for num_workers in (0, 2):
        with trainer(probes.Walk, num_env_groups=2, num_workers=num_workers, prioritized_replay=True) as ours:
            for _ in range(8):
                ours.train()
            weights.append(ours.policy.flat.clone())
    assert weights[0].equal(weights[1])


@pytest.mark.parametrize("switch", ["double and dueling", "by priority", "three steps", "a soft target"])
def test_resuming_is_exact_with_its_replay(switch: str, tmp_path: Path) -> None:
    config = {**SWITCHES[switch], "env_config": {"length": 9}, "buffer_size": 200}
    with trainer(probes.Walk, **config) as whole:
        for _ in range(20):
            whole.train()
    with trainer(probes.Walk, **config) as first:
        for _ in range(13):
            first.train()
        path = first.save(tmp_path)
    with trainer(probes.Walk, **config) as second:
        second.restore(path)
        for _ in range(7):
            second.train()
        assert second.policy.flat.equal(whole.policy.flat)
        mine, theirs = learner_of(second), learner_of(whole)
        assert mine.target_flat.equal(theirs.target_flat)
        if isinstance(mine.replay, PrioritizedReplay):
            assert isinstance(theirs.replay, PrioritizedReplay)
            assert np.array_equal(mine.replay.tree.nodes, theirs.replay.tree.nodes)

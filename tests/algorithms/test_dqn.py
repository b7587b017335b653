"""DQN: its losses by hand, learning on probes with each switch, its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN, ConfigError, EnvError
from outplay.algorithms.dqn import DQNConfig, DQNLearner
from outplay.algorithms.ppo import PPOConfig
from outplay.fragments import Batch
from outplay.learning.qlearning import losses
from outplay.replay import Replay, Transitions
from outplay.settings import validated
from outplay.streams import stream
from tests import probes
from tests.algorithms.dqn import BESIDE, SMALL, SWITCHES, learner_of, slow, train, trainer

ALL = {"initial_epsilon": 1.0, "final_epsilon": 1.0}


def known(values: tuple[float, float], target: tuple[float, float], **config: Any) -> DQNLearner:
    """A learner whose network and target say these values whatever they observe."""
    with trainer(probes.OneStep, dueling=False, **config) as ours:
        learner = learner_of(ours)
        with torch.no_grad():
            for network, said in ((learner.q_network, values), (learner.target.network, target)):
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
    drawn = learner.to_device(one(0, 1.0, discount))
    loss, wrong, value = losses(learner.q_network, learner.target.network, drawn, double_q)
    assert float(value) == pytest.approx(0.1)
    error = abs(target - 0.1)
    assert float(wrong) == pytest.approx(target - 0.1)
    assert float(loss.detach()) == pytest.approx(error - 0.5 if error > 1 else error**2 / 2, rel=1e-5)


def test_epsilon_is_a_metric() -> None:
    with trainer(probes.Patience, exploration_config={"epsilon_timesteps": 1_000_000}) as ours:
        assert 0.9 < ours.train()["learner"]["epsilon"] < 1.0


@pytest.mark.parametrize(
    "switch",
    [
        "Rainbow",
        *slow(
            "plain", "double and dueling", "three steps", "by priority", "a soft target", "C51", "quantiles", "noisy"
        ),
    ],
)
def test_an_action_that_depends_on_the_observation(switch: str) -> None:
    with trainer(probes.Match, **SWITCHES[switch]) as ours:
        for _ in range(80):
            result = ours.train()
        assert ours.evaluate()["episode_return_mean"] == 1.0
        assert np.isfinite(list(result["learner"].values())).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "gamma", "best"),
    [
        ("plain", 0.5, 1.0),
        ("three steps", 0.95, 2.0),
        *(pytest.param(switch, 0.95, 2.0, marks=pytest.mark.slow) for switch in SWITCHES if switch != "three steps"),
    ],
)
def test_a_later_reward_counts_as_the_discount_says(switch: str, gamma: float, best: float) -> None:
    with trainer(probes.Patience, gamma=gamma, **SWITCHES[switch]) as ours:
        for _ in range(120):
            ours.train()
        assert ours.evaluate()["episode_return_mean"] == best


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["plain", *slow("double and dueling", "by priority", "C51", "quantiles")])
def test_an_episode_that_is_cut_off_is_not_over(switch: str) -> None:
    """Reward 1 for ever and γ = 0.5: 2. Over after each fourth step: Q = 1 + ½ · ¾ · Q, so 1.6. All look alike."""
    for env, value in ((probes.Endless, 2.0), (probes.Over, 1.6)):
        with trainer(env, gamma=0.5, **{**SWITCHES[switch], "exploration_config": ALL}) as ours:
            for _ in range(100):
                ours.train()
            rows = ours.policy.q_network.values((torch.zeros(1, 1),))
            assert rows.detach().numpy() == pytest.approx(value, abs=0.15)


def test_several_steps_give_credit_that_one_step_cannot() -> None:
    """What is paid for the first action comes after the second, when it can no longer be seen."""
    with trainer(probes.TwoSteps, n_step=2) as ours:
        for _ in range(100):
            ours.train()
        assert ours.evaluate()["episode_return_mean"] == 1.0


@pytest.mark.parametrize("intensity", [0.3, 2.0])
def test_the_intensity_is_updates_per_step(intensity: float) -> None:
    with trainer(probes.Match, training_intensity=intensity, learning_starts=64) as ours:
        for _ in range(20):
            result = ours.train()
        assert result["learner"]["updates"] == int(intensity * (ours.timesteps - 64))


def test_epsilon_goes_down_and_evaluations_are_greedy() -> None:
    with trainer(probes.Match, exploration_config={"epsilon_timesteps": 100, "final_epsilon": 0.1}) as ours:
        seen = [ours.train()["learner"]["epsilon"] for _ in range(10)]
        assert seen[0] == pytest.approx(1 - 0.9 * 0.16)
        assert seen[-1] == pytest.approx(0.1)
        assert len({ours.compute_single_action([0.5], explore=False) for _ in range(20)}) == 1


def test_only_discrete_actions() -> None:
    with pytest.raises(EnvError, match="Discrete action space"):
        DQN(env="Pendulum-v1")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_mode": "complete_episodes"}, "DQN learns from single steps"),
        ({"v_min": 3.0, "v_max": 1.0}, r"v_min \(3\) must be less than v_max \(1\)"),
        ({"replay_shards": 3, "num_env_groups": 1}, "replay_shards is 3, but there are only 1 EnvGroups"),
        (
            {"buffer_size": 20, "learning_starts": 20},
            "buffer_size is 20, .* set it to at least 24",
        ),
        ({"learning_starts": 3000}, "is more than buffer_size \\("),
        ({"async": True, "num_workers": 0}, "num_workers must be at least 1"),
        ({"exploration_config": {"type": "Gaussian"}}, "exploration_config.type must be EpsilonGreedy"),
        ({"distributional": "c50"}, "distributional must be c51 or qr or null, not 'c50'"),
    ],
)
def test_mistakes_get_one_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trainer(probes.Match, **settings)


def test_lanes_have_an_epsilon_each_if_spread() -> None:
    with trainer(probes.Match, exploration_config={"initial_epsilon": 0.5, "epsilon_spread": 3.0}) as ours:
        policy = ours.policy.for_lanes(0, 4, 4)
        rows = (np.zeros((4, 1), np.float32),)
        best = ours.policy.act(rows, {}, None, False, np.random.default_rng(0))[0]
        rng = np.random.default_rng(1)
        others = np.mean([policy.act(rows, {}, None, True, rng)[0] != best for _ in range(4000)], 0)
        assert others == pytest.approx([0.5 ** (1 + lane) / 2 for lane in range(4)], abs=0.03)  # one of two is the best


def test_noise_explores_and_evaluations_have_none() -> None:
    with trainer(probes.Match, noisy=True) as ours:
        rows = (np.full((1, 1), 0.3, np.float32),)
        rng = np.random.default_rng(0)
        noisy = {float(ours.policy.act(rows, {}, None, True, rng)[2]["dist"][0, 0]) for _ in range(5)}
        still = {float(ours.policy.act(rows, {}, None, False, rng)[2]["dist"][0, 0]) for _ in range(5)}
        assert (len(noisy), len(still)) == (5, 1)
        assert ours.train()["learner"]["epsilon"] == 0.0


@pytest.mark.slow
def test_atari_keeps_each_frame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "num_envs": 2, "num_env_groups": 1, "train_batch_size": 80, "learning_starts": 100, "buffer_size": 600,
        "frame_stack": 3, "max_episode_steps": 50, "training_intensity": 0.05, "model": {"fcnet_hiddens": [8]},
    }  # fmt: skip
    with DQN(env="ALE/Pong-v5", config={**SMALL, **config}) as ours:
        seen, batches, update = [], [], ours.learner.update

        def recorded(batch: Batch, *more: int) -> dict[str, float]:
            batches.append(batch)
            return update(batch, *more)

        monkeypatch.setattr(ours.learner, "update", recorded)
        for _ in range(10):
            result = ours.train()
            seen.append(batches[-1].fragments[0])
        replay = learner_of(ours).replay
        assert isinstance(replay, Replay)
        assert replay.observations[0].shape == (300, 2, 84, 84)
        assert result["learner"]["updates"] > 0
        whole = np.concatenate([fragment.observations[0] for fragment in seen])
        cut = np.concatenate([fragment.truncated for fragment in seen])
        times = np.arange(100, 400)
        assert np.array_equal(replay.truncated[times % 300], cut[times])  # Fragments went on from each other
        for lane in range(2):
            times = np.arange(replay.oldest[lane], replay.newest[lane])
            assert len(times) == 297
            found = replay.transitions(times, np.full(len(times), lane), np.ones(len(times), np.float32))
            assert np.array_equal(found.observations[0], whole[times, lane])


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.usefixtures("process_engine")
def test_each_update_draws_by_its_own_number(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def recorded(seed: int, purpose: str, *keys: int) -> np.random.Generator:
        drawn.extend(keys if purpose == "replay" else ())
        return stream(seed, purpose, *keys)

    monkeypatch.setattr("outplay.learning.offpolicy.stream", recorded)
    with trainer(probes.Match, num_env_groups=2, replay_shards=shards) as ours:
        train(ours, 6)
        assert drawn == list(range(learner_of(ours).updates))
        assert len(drawn) > 30


def test_both_networks_see_observations_normalised_alike() -> None:
    with trainer(probes.Walk, normalize_observations=True, target_network_update_freq=10_000) as ours:
        train(ours, 5)
        before = ours.policy.q_network.observation_mean_0.clone()
        ours.train()  # learns with the normaliser as it was, and then moves it
        learner = learner_of(ours)
        assert learner.target.network.observation_mean_0.equal(before)
        assert not ours.policy.q_network.observation_mean_0.equal(before)
        end = learner.target._num_parameters
        assert not learner.target.flat[:end].equal(ours.policy.flat[:end])


def test_settings_with_two_names_can_be_overridden(tmp_path: Path) -> None:
    with trainer(probes.Match, **{**BESIDE, "num_workers": 1}) as first:
        config = first.get_config()
    assert config["async"] is True
    assert validated(DQNConfig, {**config, "async": False}, "here").async_ is False
    assert validated(DQNConfig, {"async": True, "async_": False}, "here").prioritized_replay is False
    assert validated(DQNConfig, {"async": 1}, "here").exploration_config.epsilon_spread == 7
    assert validated(DQNConfig, {"async": True, "num_envs": 5}, "here").num_groups == 5
    assert validated(PPOConfig, {"lambda_": 0.5, "lambda": 0.9}, "here").lambda_ == 0.9


def test_its_network_is_a_module_like_any() -> None:
    with trainer(probes.Match) as ours:
        assert isinstance(ours.get_policy().model, torch.nn.Module)

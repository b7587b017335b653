"""DQN: its losses by hand, its switches, learning on probes, and the promises."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN, CheckpointError, ConfigError, EnvError
from outplay.algorithms.dqn import DQNConfig, DQNLearner
from outplay.algorithms.ppo import PPOConfig
from outplay.config import validated
from outplay.fragments import Batch
from outplay.learning.qlearning import losses
from outplay.replay import Replay, Transitions
from outplay.streams import stream
from tests import probes

SMALL = {
    "num_workers": 0, "num_envs": 4, "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 16,
    "buffer_size": 2_000, "lr": 3e-3, "target_network_update_freq": 20,
    "exploration_config": {"epsilon_timesteps": 500},
    "training_intensity": 1.0, "model": {"fcnet_hiddens": [16]}, "metrics_num_episodes": 30,
}  # fmt: skip
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {"double_q": False, "dueling": False},
    "double and dueling": {},
    "three steps": {"n_step": 3},
    "by priority": {"prioritized_replay": True},
    "C51": {"distributional": "c51", "num_atoms": 11, "v_min": -2.0, "v_max": 3.0},
    "quantiles": {"distributional": "qr", "num_atoms": 8},
    "noisy": {"noisy": True},
    "a soft target": {"tau": 0.05, "target_network_update_freq": 1},
    "Rainbow": {
        "n_step": 3,
        "prioritized_replay": True,
        "distributional": "c51",
        "num_atoms": 21,
        "v_min": -2.0,
        "v_max": 3.0,
        "noisy": True,
    },
}


ALL = {"initial_epsilon": 1.0, "final_epsilon": 1.0}


def slow(*cases: str) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def trainer(env: Any, **config: Any) -> DQN:
    return DQN(env=env, config={**SMALL, **config})


def train(ours: DQN, iterations: int) -> None:
    for _ in range(iterations):
        ours.train()


def learner_of(ours: DQN) -> DQNLearner:
    assert isinstance(ours.learner, DQNLearner)
    return ours.learner


# The loss, with a network whose values are known


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


# Learning, with each switch


@pytest.mark.parametrize(
    "switch",
    [
        *("plain", "C51", "quantiles", "noisy", "Rainbow"),
        *slow("double and dueling", "three steps", "by priority", "a soft target"),
    ],
)
def test_an_action_that_depends_on_the_observation(switch: str) -> None:
    with trainer(probes.Match, **SWITCHES[switch]) as ours:
        for _ in range(80):
            result = ours.train()
        assert ours.evaluate()["episode_return_mean"] == 1.0
        assert np.isfinite(list(result["learner"].values())).all()


@pytest.mark.parametrize(
    ("switch", "gamma", "best"),
    [
        ("plain", 0.5, 1.0),
        *((switch, 0.95, 2.0) for switch in ("plain", "three steps", "Rainbow")),
        *(
            pytest.param(switch, 0.95, 2.0, marks=pytest.mark.slow)
            for switch in SWITCHES
            if switch not in ("plain", "three steps", "Rainbow")
        ),
    ],
)
def test_a_later_reward_counts_as_the_discount_says(switch: str, gamma: float, best: float) -> None:
    with trainer(probes.Patience, gamma=gamma, **SWITCHES[switch]) as ours:
        for _ in range(120):
            ours.train()
        assert ours.evaluate()["episode_return_mean"] == best


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


# What settings say


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
        ({"learning_starts": 3000}, "learning_starts is more than buffer_size"),
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


# The promises


def trained(iterations: int, **config: Any) -> bytes:
    with trainer(probes.Walk, **{**PROMISED, **config}) as ours:
        for _ in range(iterations):
            ours.train()
        learner = learner_of(ours)
        return ours.policy.flat.numpy().tobytes() + learner.target.flat.numpy().tobytes()


PROMISED = {
    "num_env_groups": 2, "env_config": {"length": 9}, "prioritized_replay": True, "n_step": 2, "buffer_size": 200
}  # fmt: skip


@pytest.mark.usefixtures("process_engine")
def test_a_worker_that_dies_does_not_change_the_result() -> None:
    whole = trained(10, num_workers=2)
    with trainer(probes.Walk, **PROMISED, num_workers=2) as ours:
        for iteration in range(10):
            if iteration in (3, 7):
                _, pid = ours.workers.foreach_worker(lambda worker: worker.process())[iteration % 2]
                os.kill(pid, signal.SIGKILL)
            ours.train()
        assert ours.workers.replaced == 2
        assert whole.startswith(ours.policy.flat.numpy().tobytes())


@pytest.mark.parametrize(
    "switch",
    [
        *("by priority", "Rainbow", "a soft target", "in shards"),
        *slow("plain", "double and dueling", "three steps", "C51", "quantiles", "noisy"),
    ],
)
@pytest.mark.usefixtures("process_engine")
def test_resuming_is_exact_with_its_replay(switch: str, tmp_path: Path) -> None:
    config = {**PROMISED, **SWITCHES.get(switch, {"replay_shards": 2})}
    with trainer(probes.Walk, **config) as first:
        for iteration in range(1, 14):
            first.train()
            if iteration in (6, 13):
                path = first.save(tmp_path)
        learner = learner_of(first)
        for _ in range(6):
            first.train()
        whole = (first.policy.flat.numpy().tobytes(), learner.target.flat.numpy().tobytes(), learner.replay.state()[0])
    with trainer(probes.Walk, **config) as second:
        second.restore(path)
        for _ in range(6):
            second.train()
        learner = learner_of(second)
        mine = (second.policy.flat.numpy().tobytes(), learner.target.flat.numpy().tobytes(), learner.replay.state()[0])
        assert mine == whole


def test_a_replay_of_another_shape_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with trainer(probes.Walk, **PROMISED) as first:
        for _ in range(10):
            first.train()
        path = first.save(tmp_path)
        updates = learner_of(first).updates
    with trainer(probes.Walk, **{**PROMISED, "num_envs": 6}) as second:
        second.restore(path)
        assert "begin anew" in caplog.text
        assert learner_of(second).replay.steps == 0
        assert second.train()["learner"]["updates"] == updates  # not before there is enough again
    with trainer(probes.Walk, **{**PROMISED, "buffer_size": 80}) as third:  # a smaller one keeps what is newest
        third.restore(path)
        assert learner_of(third).replay.steps == 80
        third.train()


# Side by side

BESIDE = {"async": True, "num_envs": 4, "num_env_groups": 4, "num_workers": 2, "train_batch_size": 64}


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_an_agent_that_dies_is_replaced() -> None:
    with trainer(probes.Walk, **BESIDE) as ours:
        ours.train()
        _, pid = ours.workers.foreach_worker(lambda worker: worker.process())[0]
        os.kill(pid, signal.SIGKILL)
        for _ in range(6):
            ours.train()
        ours.evaluate()
        assert ours.workers.replaced == 1
        assert sum(state.fragments for state in ours.workers.states) * 16 == ours.timesteps


@pytest.mark.usefixtures("process_engine")
def test_the_learner_does_not_wait_for_the_slowest_agent(tmp_path: Path) -> None:
    with trainer(probes.Stuck, **{**BESIDE, "num_env_groups": 2}, env_config={"folder": str(tmp_path)}) as ours:
        ours.train()
        (tmp_path / "armed").touch()
        before = learner_of(ours).updates
        train(ours, 6)  # with the other agent alone
        assert (tmp_path / "taken").exists()
        assert learner_of(ours).updates > before
        (tmp_path / "go").touch()
        ours.evaluate()  # comes to rest: with what the slow one has now
        assert ours.timesteps == sum(state.fragments * state.lanes for state in ours.workers.states) * 16


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_neither_side_floods_the_other() -> None:
    """The learner is made slow by its intensity: agents wait for it, and no more than allowed is due."""
    with trainer(probes.Walk, **BESIDE, training_intensity=8.0, most_updates_behind=100) as ours:
        for _ in range(4):
            ours.train()
            # Two Fragments of 2 EnvGroups from each of 2 workers may be under way when the limit is reached.
            assert learner_of(ours).due < 100 + 8 * 16 * 2 * 2 * 2


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_an_environment_that_fails_fails_the_run_with_its_words() -> None:
    with trainer(probes.Flawed, **BESIDE, env_config={"flaw": "raises", "after": 1100}) as ours:
        with pytest.raises(EnvError, match="the gripper is stuck"):
            train(ours, 100)
        assert ours.timesteps == sum(state.fragments for state in ours._states or []) * 16


# The replay on disk


def saved_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch, iterations: int = 8) -> tuple[DQN, list[Path]]:
    """A trainer, and a checkpoint after each iteration, with segments of four steps each."""
    monkeypatch.setattr("outplay.replay.ring._SEGMENT_BYTES", 4 * 4 * 8)
    ours = trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1})
    saved = []
    for _ in range(iterations):
        ours.train()
        saved.append(Path(ours.save(folder)))
    return ours, saved


def inodes(checkpoint: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (checkpoint / "replay").iterdir()}


def test_a_segment_is_written_once_and_linked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    before, after = inodes(saved[-2]), inodes(saved[-1])
    assert len(after) == 8
    full, last = "0000-0000000024-0000000028.safetensors", "0000-0000000028-0000000032-open.safetensors"
    assert set(after) - set(before) == {full, last}
    assert all(before[name] == after[name] for name in set(before) & set(after))
    for checkpoint in saved[:-1]:
        shutil.rmtree(checkpoint)
    whole = ours.policy.flat.clone()
    ours.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1}) as again:
        again.restore(saved[-1])
        assert again.policy.flat.equal(whole)
        assert learner_of(again).replay.steps == 8 * 16
        again.train()
        resumed = inodes(Path(again.save(tmp_path)))  # what was read is linked to, too
        assert all(resumed[name] == after[name] for name in after if name != last)


def test_where_there_are_no_links_segments_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    assert len(inodes(saved[-1])) == 8
    ours.restore(saved[-1])
    ours.train()
    ours.stop()


def test_a_damaged_segment_is_told_and_an_older_checkpoint_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    last = max((saved[-1] / "replay").iterdir())
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="is damaged: replay/"):
        ours.restore(saved[-1])
    ours.restore(tmp_path)
    assert ours.iteration == 7
    assert "using checkpoint_000007 instead" in caplog.text
    ours.stop()


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


def test_a_new_run_from_old_weights_has_their_target_and_its_own_epsilon(tmp_path: Path) -> None:
    with trainer(probes.Match) as first:
        train(first, 60)
        path = first.save(tmp_path)
    with trainer(probes.Match) as second:
        second.load_weights(path)
        learner = learner_of(second)
        end = learner.target._num_parameters
        assert learner.target.flat[:end].equal(first.policy.flat[:end])
        assert learner.policy.exploration["epsilon"] < 1.0  # theirs, as long as it only plays
        before = learner.timesteps
        assert second.train()["learner"]["updates"] == before == 0
        assert learner.policy.exploration["epsilon"] == pytest.approx(1 - 0.95 * 16 / 500)


def test_after_a_new_beginning_no_segment_of_the_old_replay_is_linked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, saved = saved_each_time(tmp_path / "old", monkeypatch)
    ours.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_envs": 6, "num_env_groups": 1}) as other:
        other.restore(saved[-1])
        train(other, 6)
        path = Path(other.save(tmp_path / "new"))
        assert not set(inodes(path).values()) & set(inodes(saved[-1]).values())
        other.restore(path)
        assert learner_of(other).replay.steps == 6 * 18


def test_two_trainers_in_one_folder_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = saved_each_time(tmp_path, monkeypatch, 5)
    second, _ = saved_each_time(tmp_path, monkeypatch, 5)  # the same names, and other steps
    second.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1, "seed": 3}) as third:
        train(third, 5)
        third.save(tmp_path)
    first.train()
    path = first.save(tmp_path)
    replay = learner_of(first).replay
    assert isinstance(replay, Replay)
    kept = replay.rewards.copy(), replay.observations[0].copy()
    first.restore(path)
    again = learner_of(first).replay
    assert isinstance(again, Replay)
    assert np.array_equal(again.rewards, kept[0])
    assert np.array_equal(again.observations[0], kept[1])
    first.stop()


def test_a_replay_without_priorities_gets_some(tmp_path: Path) -> None:
    with trainer(probes.Walk, **{**PROMISED, "prioritized_replay": False}) as first:
        train(first, 10)
        path = first.save(tmp_path)
    with trainer(probes.Walk, **PROMISED) as second:
        second.restore(path)
        assert second.train()["learner"]["updates"] > learner_of(first).updates


def test_another_seed_goes_on_without_joining_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with trainer(probes.Walk, **PROMISED) as first:
        train(first, 5)
        path = first.save(tmp_path)
    with trainer(probes.Walk, **PROMISED, seed=5) as second:
        second.restore(path)
        assert "begin anew" in caplog.text
        second.train()
        replay = learner_of(second).replay
        assert isinstance(replay, Replay)
        assert (replay.terminated[19] | replay.truncated[19]).all()  # the last step before


def test_settings_with_two_names_can_be_overridden(tmp_path: Path) -> None:
    with trainer(probes.Match, **{**BESIDE, "num_workers": 1}) as first:
        config = first.get_config()
    assert config["async"] is True
    assert validated(DQNConfig, {**config, "async": False}, "here").async_ is False
    assert validated(DQNConfig, {"async": True, "async_": False}, "here").prioritized_replay is False
    assert validated(DQNConfig, {"async": 1}, "here").exploration_config.epsilon_spread == 7
    assert validated(DQNConfig, {"async": True, "num_envs": 5}, "here").num_groups == 5
    assert validated(PPOConfig, {"lambda_": 0.5, "lambda": 0.9}, "here").lambda_ == 0.9


# What happens to agents


@pytest.mark.usefixtures("process_engine")
@pytest.mark.slow
def test_a_worker_replaced_by_another_call_repeats_nothing() -> None:
    """It dies while two Fragments of it are under way, and `foreach_worker` is the first to notice."""
    with trainer(probes.Walk, **BESIDE) as ours:
        train(ours, 2)
        pids = ours.workers.foreach_worker(lambda worker: worker.process()[1])
        os.kill(pids[1], signal.SIGKILL)
        ours.workers.foreach_worker(lambda worker: worker.process())
        assert ours.workers.replaced == 1
        train(ours, 3)
        ours.evaluate()
        assert sum(state.fragments for state in ours.workers.states) * 16 == ours.timesteps
        replay = learner_of(ours).replay
        assert isinstance(replay, Replay)
        assert list(replay._next.values()) == [state.fragments for state in ours.workers.states]
        assert ours.workers.replaced == 1


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_tasks_are_recorded_as_they_were_played(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def next_task(result: dict[str, Any], *_: Any) -> float:
        return result["training_iteration"] / 100

    with trainer(probes.Walk, **BESIDE, env_config={"length": 7}, env_task_fn=next_task) as ours:
        train(ours, 6)
        path = ours.save(tmp_path)
        ours.train()
    with trainer(probes.Walk, **BESIDE, env_config={"length": 7}, env_task_fn=next_task) as again:
        again.restore(path)
        again.train()
    assert "could not be rebuilt" not in caplog.text


@pytest.mark.usefixtures("process_engine")
def test_epsilon_reaches_the_agents_before_learning_starts() -> None:
    exploration = {"initial_epsilon": 1.0, "final_epsilon": 0.0, "epsilon_timesteps": 256, "epsilon_spread": 0.0}
    with trainer(
        probes.Match, **BESIDE, learning_starts=50_000, buffer_size=50_000, exploration_config=exploration
    ) as ours:
        while ours.timesteps < 512:
            ours.train()
        before = [state.fragments for state in ours.workers.states]
        while min(now.fragments - then for now, then in zip(ours.workers.states, before, strict=True)) < 6:
            ours.train()  # what was asked for before has been given by then
        ours.evaluate()
        assert not ours.learner.updates
        policies = ours.workers.pool.call_all("get_policy")
        assert [policy.exploration["epsilon"] for policy in policies] == [0.0, 0.0]


@pytest.mark.usefixtures("process_engine")
def test_a_failure_on_the_way_to_rest_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with trainer(probes.Stuck, **BESIDE, env_config={"folder": str(tmp_path)}) as ours:
        ours.train()
        (tmp_path / "armed").touch()
        train(ours, 4)
        (tmp_path / "fail").touch()
        (tmp_path / "go").touch()
        with pytest.raises(EnvError, match="the gripper is stuck"):
            ours.save(tmp_path / "first")
        assert ours._collector is None
        assert not (tmp_path / "first").exists()
        ours.save(tmp_path / "second")  # what was taken is whole
        assert ours.timesteps == sum(state.fragments for state in ours._states or []) * 16


@pytest.mark.usefixtures("process_engine")
@pytest.mark.slow
def test_what_happens_between_iterations_is_in_the_figures(tmp_path: Path) -> None:
    with trainer(probes.Walk, **BESIDE, env_config={"length": 3}) as ours:
        ours.train()
        seconds, steps = ours.seconds, ours.timesteps
        path = ours.save(tmp_path)  # on the way to rest, agents give what they had begun
        assert ours.timesteps > steps
        assert ours.seconds > seconds
        steps, between = ours.timesteps, list(ours._returns)
        assert between
        result = ours.train()
        assert result["env_steps_per_s"] * result["time_this_iter_s"] == pytest.approx(ours.timesteps - steps)
        assert result["episode_returns"][: len(between)] == between
    with trainer(probes.Walk, **BESIDE, env_config={"length": 3}) as again:
        again.restore(path)
        assert again.train()["episode_returns"][: len(between)] == between


def test_its_network_is_a_module_like_any() -> None:
    with trainer(probes.Match) as ours:
        assert isinstance(ours.get_policy().model, torch.nn.Module)

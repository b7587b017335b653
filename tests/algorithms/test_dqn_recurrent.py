"""DQN with a recurrent network: stored states, burn-in, and the guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN, ConfigError
from outplay.envs.examples import RepeatAfterMe
from outplay.learning.sequences import SequenceBatch
from outplay.replay import Replay, Sequences
from outplay.testing.probes import Forbidding
from tests.algorithms.dqn import BESIDE, SWITCHES, learner_of, slow, train, trainer
from tests.algorithms.test_dqn_masks import learned, masks_of
from tests.policies.test_recurrent import CORES, PREVIOUS
from tests.policies.test_recurrent_and_masked import Maze, watched

Array = np.ndarray


def model(core: str = "lstm", **more: Any) -> dict[str, Any]:
    return {"fcnet_hiddens": [8], **CORES[core], **PREVIOUS, "max_seq_len": 6, **more}


RECURRENT: dict[str, Any] = {"model": model(), "burn_in_len": 3, "sgd_minibatch_size": 18}


def drawn_from(ours: DQN, number: int) -> tuple[Sequences, SequenceBatch]:
    learner = learner_of(ours)
    drawn = next(iter(learner.replay.draw(number, [np.random.default_rng(0)])))
    batch = learner.to_device(drawn)
    assert isinstance(drawn, Sequences)
    assert isinstance(batch, SequenceBatch)
    return drawn, batch


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("burn_in", [0, 3])
def test_learning_computes_what_acting_computed(core: str, burn_in: int) -> None:
    """From the stored states, at learning rate 0; the episodes are truncated. CartPole never shows a state twice."""
    config = {**RECURRENT, "burn_in_len": burn_in, "model": model(core), "lr": 0.0, "reward_scale": 0.5}
    with trainer("CartPole-v1", **config, max_episode_steps=9, num_env_groups=2, buffer_size=200) as ours:
        seen = watched(ours)
        train(ours, 20)
        acted = {
            row.tobytes(): q
            for fragment in seen
            for row, q in zip(
                fragment.observations[0].reshape(-1, 4), fragment.extras["dist"].reshape(-1, 2), strict=True
            )
        }
        drawn, batch = drawn_from(ours, 60)
        assert (batch.burn_in is None) == (burn_in == 0)
        with torch.no_grad():
            outputs = batch.outputs(learner_of(ours).q_network)[batch.steps, :, 0].numpy()
        expected = np.array([acted[row.tobytes()] for row in drawn.observations[0][drawn.steps]])
        assert np.allclose(outputs, expected, atol=1e-5)
        # The previous action and reward, in rows to bootstrap from, too. The reward is not scaled.
        assert batch.memory.previous is not None
        goes_on = drawn.discounts > 0
        after = batch.memory.previous.numpy()[drawn.steps + 1][goes_on]
        assert np.array_equal(after[:, :2].argmax(-1), drawn.actions[goes_on])
        assert (after[:, 2] == 1).all()


def test_gradients_flow_neither_through_burn_in_nor_across_episodes() -> None:
    with trainer("CartPole-v1", **RECURRENT, max_episode_steps=9, buffer_size=200) as ours:
        train(ours, 10)
        drawn, batch = drawn_from(ours, 20)
        assert batch.burn_in is not None
        inputs = [batch.observations[0], batch.burn_in.observations[0], *batch.memory.state.values()]
        for tensor in inputs:
            tensor.requires_grad_()
        burning = np.flatnonzero(drawn.burns_in)
        ends = np.cumsum(drawn.lengths)
        for sequence in (int(burning[0]), int(np.flatnonzero(~drawn.burns_in)[0])):
            last = int(ends[sequence]) - 1
            value = batch.outputs(learner_of(ours).q_network)[last].sum()
            rows, before, *states = torch.autograd.grad(value, inputs, allow_unused=True)
            within = np.zeros(len(rows), bool)
            within[last + 1 - drawn.lengths[sequence] : last + 1] = True
            assert (rows.abs().sum(-1) > 0).numpy().tolist() == within.tolist()
            assert before is None
            for state in states:  # those that burn in are replaced by what the burn-in leads to
                changed = state.abs().sum(-1).numpy() > 0
                assert set(np.flatnonzero(changed)) == ({sequence} - set(burning.tolist()))


@pytest.mark.parametrize("switch", ["double and dueling", "Rainbow", *slow("plain", "C51", "quantiles", "noisy")])
def test_masks_and_every_extension(switch: str) -> None:
    """The probe raises on a forbidden action."""
    with trainer(Forbidding, **{**RECURRENT, **SWITCHES[switch]}, env_config={"truncates": True}) as ours:
        train(ours, 8)
        assert learner_of(ours).updates > 0
        ours.evaluate(episodes=1)
    with trainer(Maze, **{**RECURRENT, **SWITCHES[switch]}, buffer_size=200) as ours:
        train(ours, 20)
        drawn, batch = drawn_from(ours, 100)
        assert batch.next_mask is not None
        following = drawn.observations[0][drawn.steps + drawn.ahead]
        bootstraps = drawn.discounts > 0
        assert np.array_equal(batch.next_mask.numpy()[bootstraps], masks_of(following)[bootstraps])


PROMISED = {**RECURRENT, "num_env_groups": 2, "prioritized_replay": True, "n_step": 2, "buffer_size": 200}


def trained(iterations: int, **config: Any) -> bytes:
    with trainer(Maze, **{**PROMISED, **config}) as ours:
        train(ours, iterations)
        assert learner_of(ours).updates > 0
        return learned(ours)


def test_workers_do_not_change_the_result(process_engine: None) -> None:
    alone = trained(8)
    assert trained(8, num_workers=1) == alone
    assert trained(8, num_workers=2) == alone


@pytest.mark.parametrize("config", [{}, pytest.param({"replay_shards": 2}, marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_exactly(
    config: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if config:
        request.getfixturevalue("process_engine")
    else:
        monkeypatch.setattr("outplay.replay.ring._SEGMENT_BYTES", 400)
    expected = trained(18, **config)
    with trainer(Maze, **PROMISED, **config) as first:
        train(first, 13)
        path = first.save(tmp_path)
    with trainer(Maze, **PROMISED, **config) as second:
        second.restore(path)
        train(second, 5)
        assert learned(second) == expected
    shorter = {"burn_in_len": 6, "model": model(max_seq_len=4)}
    with trainer(Maze, **{**PROMISED, **config, **shorter}) as third:
        third.restore(path)
        updates = learner_of(third).updates
        train(third, 5)
        assert learner_of(third).updates > updates


def contents(replay: Any) -> dict[str, Any]:
    return {
        name: {part: array.tobytes() for part, array in read().items()} for name, read in replay.segments(()).items()
    }


def test_a_rollback_restores_the_stored_states() -> None:
    with trainer(Maze, **PROMISED) as whole:
        train(whole, 15)
        seen = watched(whole)
        train(whole, 2)
        expected = learned(whole), contents(learner_of(whole).replay)
    with trainer(Maze, **PROMISED) as ours:
        train(ours, 15)
        learner = learner_of(ours)
        before = learned(ours), contents(learner.replay)
        restore = learner.rollback_point()
        for restores in (True, False):
            for fragments in (seen[:2], seen[2:]):
                learner.take(fragments, learner.timesteps + 16)
                learner.learn(learner.due)
            assert (learned(ours), contents(learner.replay)) == expected
            if restores:
                restore()
                assert (learned(ours), contents(learner.replay)) == before


@pytest.mark.slow
def test_asynchronous_workers_with_shards(process_engine: None) -> None:
    with trainer(Maze, **{**RECURRENT, **BESIDE}, replay_shards=2) as ours:
        train(ours, 4)
        assert learner_of(ours).updates > 0


def test_other_networks_store_no_states() -> None:
    with trainer(Maze) as ours:
        train(ours, 4)
        replay = learner_of(ours).replay
        assert isinstance(replay, Replay)
        assert not any(replay.states)
        assert not any("states" in part for arrays in contents(replay).values() for part in arrays)


def test_a_replay_buffer_too_small_for_a_sequence() -> None:
    with pytest.raises(ConfigError, match="buffer_size is 60, less than one iteration fills; set it to at least 80"):
        trainer(Maze, **RECURRENT, buffer_size=60)


def returns(core: str | None, steps: int = 5_000, **config: Any) -> float:
    """The mean return of the last episodes on RepeatAfterMe, where 0 is guessing and 99 is the best."""
    network = {} if core is None else {**CORES[core], "lstm_cell_size": 32, "max_seq_len": 10}
    own = {
        "num_workers": 0, "gamma": 0.5, "lr": 2e-3, "seed": 1, "metrics_num_episodes": 10, "burn_in_len": 4,
        "exploration_config": {"epsilon_timesteps": 2_000}, "target_network_update_freq": 50, "learning_starts": 500,
        "training_intensity": 0.1, "sgd_minibatch_size": 128, "model": {"fcnet_hiddens": [32], **network},
    }  # fmt: skip
    with DQN(env=RepeatAfterMe, config={**own, **config}) as ours:
        while ours.timesteps < steps:
            result = ours.train()
        return float(result["episode_return_mean"])


def test_an_lstm_learns_to_remember() -> None:
    assert returns("lstm", 4_000) > 50


@pytest.mark.slow
def test_a_network_without_memory_does_not() -> None:
    assert returns(None, 10_000) < 20


@pytest.mark.slow
@pytest.mark.parametrize("core", ["gru", "attention"])
def test_every_core_learns_to_remember_by_priority(core: str) -> None:
    assert returns(core, 12_000, prioritized_replay=True, n_step=2) > 60

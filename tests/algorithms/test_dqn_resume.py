"""DQN: a dead worker, a restored run, weights of another run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from outplay.replay import Replay
from tests import probes
from tests.algorithms.dqn import PROMISED, SWITCHES, learner_of, slow, train, trained, trainer


@pytest.mark.slow  # the suite of all algorithms kills one worker
@pytest.mark.usefixtures("process_engine")
def test_workers_that_die_do_not_change_the_result() -> None:
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
        *("Rainbow", "in shards"),
        *slow(
            "plain", "by priority", "a soft target", "double and dueling", "three steps", "C51", "quantiles", "noisy"
        ),
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
        assert "start new episodes" in caplog.text
        assert learner_of(second).replay.steps == 0
        assert second.train()["learner"]["updates"] == updates  # not before there is enough again
    with trainer(probes.Walk, **{**PROMISED, "buffer_size": 80}) as third:  # a smaller one keeps what is newest
        third.restore(path)
        assert learner_of(third).replay.steps == 80
        third.train()


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
        assert "start new episodes" in caplog.text
        second.train()
        replay = learner_of(second).replay
        assert isinstance(replay, Replay)
        assert (replay.terminated[19] | replay.truncated[19]).all()  # the last step before

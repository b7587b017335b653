"""DQN with parameter noise: it learns, and its result depends neither on workers nor on restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from outplay import DQN
from outplay.replay import Replay
from outplay.testing import AlgorithmConformance, probes
from outplay.testing.algorithm import learned, running
from tests.algorithms.dqn import BESIDE, PROMISED, learner_of, train, trainer
from tests.algorithms.test_conformance import SETTINGS, best_q_value

NOISE: dict[str, Any] = {"type": "ParameterNoise", "initial_stddev": 0.5, "initial_epsilon": 0.2}
NOISY: dict[str, Any] = {"exploration_config": NOISE}


@pytest.mark.slow  # the tests below show nearly the same
class TestParameterNoise(AlgorithmConformance):
    algorithm = DQN
    config: ClassVar[dict[str, Any]] = {**SETTINGS["DQN"], "exploration_config": {**NOISE, "epsilon_timesteps": 500}}
    action_spaces = ("discrete",)
    iterations = 120
    value = best_q_value


def trained(iterations: int, **config: Any) -> bytes:
    with trainer(probes.Walk, **{**PROMISED, **NOISY, **config}) as ours:
        train(ours, iterations)
        return learned(ours)


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_workers_do_not_change_the_result(engine: str) -> None:
    whole = trained(4, num_workers=0)
    with running(engine):
        assert trained(4, num_workers=2) == whole


def test_the_noise_changes_the_actions() -> None:
    assert first_actions(0.5) == first_actions(0.5) != first_actions(0.05)


def first_actions(stddev: float) -> bytes:
    with trainer(probes.Walk, **PROMISED, exploration_config={**NOISE, "initial_stddev": stddev}) as ours:
        train(ours, 2)  # before learning starts
        assert learner_of(ours).updates == 0
        replay = learner_of(ours).replay
        assert isinstance(replay, Replay)
        return replay.actions.tobytes()


@pytest.mark.parametrize("model", [{}, {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 4}])
def test_a_restored_run_goes_on_exactly(model: dict[str, Any], tmp_path: Path) -> None:
    config = {**PROMISED, **NOISY, "model": {"fcnet_hiddens": [8], **model}}
    with trainer(probes.Walk, **config) as whole:
        results = [whole.train()["learner"] for _ in range(8)]
        expected = learned(whole)
    with trainer(probes.Walk, **config) as first:
        train(first, 4)
        path = first.save(tmp_path)
        stddev = learner_of(first).policy.exploration["stddev"]
    assert json.loads((Path(path) / "state.json").read_text())["learner"]["stddev"] == stddev != 0.5
    with trainer(probes.Walk, **config) as second:
        second.restore(path)
        assert second.get_policy().exploration["stddev"] == stddev
        assert [second.train()["learner"] for _ in range(4)] == results[4:]
        assert learned(second) == expected


def test_another_type_of_exploration_continues_the_run(tmp_path: Path) -> None:
    with trainer(probes.Walk, **PROMISED) as first:
        train(first, 4)
        greedy = first.save(tmp_path / "greedy")
    with trainer(probes.Walk, **PROMISED, **NOISY) as second:
        second.restore(greedy)
        assert second.train()["learner"]["stddev"] != 0.5  # it began with the initial one
        noisy = second.save(tmp_path / "noisy")
    with trainer(probes.Walk, **PROMISED) as third:
        third.restore(noisy)
        assert "stddev" not in third.train()["learner"]


def test_a_new_run_from_old_weights_starts_with_the_initial_stddev(tmp_path: Path) -> None:
    with trainer(probes.Walk, **PROMISED, **NOISY) as first:
        train(first, 4)
        path = first.save(tmp_path)
    with trainer(probes.Walk, **PROMISED, **NOISY) as second:
        second.load_weights(path)
        assert second.get_policy().exploration["stddev"] != 0.5  # theirs, as long as it only plays
        assert second.train()["learner"]["stddev"] == 0.5


def test_the_standard_deviation_is_a_metric_and_the_key_is_none() -> None:
    with trainer(probes.Walk, **NOISY) as ours:
        assert ours.train()["learner"]["stddev"] == 0.5  # before learning starts
        keys = {ours.get_policy().exploration["noise_key"]}
        metrics = {}
        for _ in range(3):
            metrics = ours.train()["learner"]
            keys.add(ours.get_policy().exploration["noise_key"])
        assert len(keys) == 4  # new noise in each iteration
        assert "noise_key" not in metrics
        assert metrics["noise_kl"] > 0
        # Each of the 32 updates so far multiplied or divided it by 1.01.
        power = np.log(metrics["stddev"] / 0.5) / np.log(1.01)
        assert metrics["updates"] == 32
        assert power == pytest.approx(round(power), abs=1e-6)
        assert round(power) % 2 == 0
        assert abs(round(power)) <= 32


def test_it_works_with_a_recurrent_network_and_action_masks() -> None:
    """The probe raises on a forbidden action."""
    model = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4, "fcnet_hiddens": [8]}
    with trainer(probes.Forbidding, **NOISY, model=model, burn_in_len=2, evaluation_explore=True) as ours:
        train(ours, 6)
        assert learner_of(ours).updates > 0
        assert np.isfinite(ours.last_result["learner"]["noise_kl"])
        ours.evaluate(episodes=2)


@pytest.mark.slow
def test_it_works_asynchronously() -> None:
    with running("process"), trainer(probes.Match, **{**BESIDE, **NOISY}) as ours:
        train(ours, 3)
        assert learner_of(ours).updates > 0
        assert ours.last_result["learner"]["stddev"] != 0.5

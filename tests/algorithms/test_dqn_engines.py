"""DQN on every engine: workers, replay actors, agents beside the learner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import probes
from tests.algorithms.dqn import BESIDE, learner_of, trained, trainer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shards", [0, 2])
def test_workers_do_not_change_the_result(engine: str, shards: int) -> None:
    alone = trained(8, num_workers=0, replay_shards=shards)
    assert trained(8, num_workers=2, replay_shards=shards) == alone
    assert alone != trained(8, num_workers=0, replay_shards=shards, seed=1)


@pytest.mark.parametrize("shards", [0, 2])
def test_agents_and_learner_side_by_side(engine: str, shards: int, tmp_path: Path) -> None:
    if engine != "inline" and not shards:
        pytest.skip("workers start slowly: one case for each engine")
    with trainer(probes.Match, **BESIDE, replay_shards=shards) as ours:
        assert ours.config.prioritized_replay
        assert ours.config.exploration_config.epsilon_spread == 7
        for _ in range(20):
            result = ours.train()
        figures = result["learner"]
        assert figures["policy_lag_max"] >= figures["policy_lag"] >= (0 if engine == "inline" else 0.01)
        assert ours.evaluate()["episode_return_mean"] == 1.0
        learner = learner_of(ours)
        assert learner.due == 0  # it came to rest
        before = learner.updates - ours.timesteps
        ours.train()
        path, steps = ours.save(tmp_path), ours.timesteps
        assert learner.updates - ours.timesteps == before  # the intensity is 1
        assert sum(learner.replay.state()[0]["added"].values()) == steps
        states = ours.workers.states
        assert sum(state.fragments for state in states) * 16 == steps
    with trainer(probes.Match, **BESIDE, replay_shards=shards) as again:
        again.restore(path)
        assert (again.timesteps, learner_of(again).updates) == (steps, learner.updates)
        again.train()
        again.evaluate()
        assert all(new.fragments > old.fragments for new, old in zip(again.workers.states, states, strict=True))

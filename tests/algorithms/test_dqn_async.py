"""DQN that collects and learns side by side."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outplay import EnvError
from outplay.replay import Replay
from tests import probes
from tests.algorithms.dqn import BESIDE, learner_of, train, trainer


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


@pytest.mark.slow
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
        assert ours.timesteps == sum(state.fragments for state in ours.training_workers.states or []) * 16


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
        assert ours.training_workers.running is None
        assert not (tmp_path / "first").exists()
        ours.save(tmp_path / "second")  # what was taken is whole
        assert ours.timesteps == sum(state.fragments for state in ours.training_workers.states or []) * 16


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

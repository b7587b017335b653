"""DQN in environments that mask actions: none that is forbidden is taken, or bootstrapped from; and nothing is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import DQN
from outplay.fragments import Fragment
from outplay.learning import qlearning
from outplay.learning.offpolicy import TransitionBatch
from outplay.testing.probes import Forbidding
from tests.algorithms.dqn import BESIDE, SWITCHES, learner_of, train, trainer
from tests.policies.test_recurrent_and_masked import Maze, watched

Array = np.ndarray


def checked(fragments: list[Fragment]) -> None:
    assert fragments
    for fragment in fragments:
        assert fragment.action_mask is not None
        taken = np.take_along_axis(fragment.action_mask, fragment.actions[..., None], -1)
        assert taken.all()


EXPLORATION: dict[str, dict[str, Any]] = {
    "softmax": {"exploration_config": {"type": "SoftQ", "temperature": 1e35}},
    "at random": {"exploration_config": {"type": "Random"}},
    "parameter noise": {"exploration_config": {"type": "ParameterNoise", "initial_epsilon": 0.1}},
}
ALL = {**SWITCHES, **EXPLORATION}


@pytest.mark.parametrize(
    ("switch", "masks"),
    [*((switch, "observation") for switch in ALL), ("three steps", "info"), ("by priority", "method")],
)
def test_no_forbidden_action_is_taken(switch: str, masks: str) -> None:
    """The probe raises on one. ε is 1 at the start, and 0 in the evaluation."""
    config = {**ALL[switch], "env_config": {"masks": masks, "truncates": masks == "info"}}
    with trainer(Forbidding, **config) as ours:
        train(ours, 6)
        assert ours.iteration == 6
        assert learner_of(ours).updates > 0
        ours.evaluate(episodes=2)


@pytest.mark.slow
def test_nor_in_asynchronous_workers(process_engine: None) -> None:
    with trainer(Forbidding, **BESIDE) as ours:
        train(ours, 3)
        assert learner_of(ours).updates > 0


class Fixed(torch.nn.Module):
    """A Q-network whose outputs are the observations."""

    kind = None

    def forward(self, observations: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return observations[0][..., None]

    def expected(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.squeeze(-1)

    def values(self, observations: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.expected(self(observations))


@pytest.mark.parametrize("double", [False, True])
def test_the_target_by_hand(double: bool) -> None:
    """Q(s') = 9, 2, 5: with the first action forbidden, the target is 1 + 0.5 · 5."""
    batch = TransitionBatch(
        (torch.zeros(2, 3),),
        torch.zeros(2, dtype=torch.long),
        torch.ones(2),
        (torch.tensor([[9.0, 2.0, 5.0], [9.0, 2.0, 5.0]]),),
        torch.full((2,), 0.5),
        torch.ones(2),
        next_mask=torch.tensor([[False, True, True], [False, True, False]]),
    )
    network: Any = Fixed()
    _, errors, _ = qlearning.losses(network, network, batch, double)
    assert errors.tolist() == [3.5, 2.0]
    _, errors, _ = qlearning.losses(network, network, dataclasses.replace(batch, next_mask=None), double)
    assert errors.tolist() == [5.5, 5.5]


def masks_of(observations: Array) -> Array:
    """The maze's masks, from its observations."""
    place = np.rint(observations[:, 0] * Maze.last)
    return np.stack([place > 0, np.ones(len(place), bool), place < Maze.last], -1)


@pytest.mark.parametrize("config", [{}, {"n_step": 3}, {"prioritized_replay": True, "n_step": 2}])
def test_drawn_masks_are_those_of_their_observations(config: dict[str, Any]) -> None:
    """Also after truncated episodes, whose last observation is kept apart, and when the ring wraps around."""
    with trainer(Maze, **config, buffer_size=200) as ours:
        train(ours, 40)
        learner = learner_of(ours)
        drawn = next(iter(learner.replay.draw(500, [np.random.default_rng(0)])))
        batch = learner.to_device(drawn)
        assert len(batch.observations) == len(batch.next_observations) == 1
        assert batch.mask is not None
        assert batch.next_mask is not None
        assert np.array_equal(batch.mask.numpy(), masks_of(batch.observations[0].numpy()))
        assert batch.mask.numpy()[np.arange(500), batch.actions.numpy()].all()
        bootstraps = batch.discounts.numpy() > 0
        expected = masks_of(batch.next_observations[0].numpy())
        assert np.array_equal(batch.next_mask.numpy()[bootstraps], expected[bootstraps])
        steps = np.rint(batch.next_observations[0].numpy()[:, 1] * 25)
        assert (steps[bootstraps] == 25).any()  # truncated
        seen = watched(ours)
        train(ours, 2)
        checked(seen)


def learned(ours: DQN) -> bytes:
    state, tensors = ours.learner.state()
    parts = [tensors[name].numpy().tobytes() for name in sorted(tensors)]
    return b"".join([ours.policy.flat.numpy().tobytes(), *parts, repr(state).encode()])


PROMISED = {"num_env_groups": 2, "prioritized_replay": True, "n_step": 2, "buffer_size": 200}


def trained(iterations: int, **config: Any) -> bytes:
    with trainer(Maze, **{**PROMISED, **config}) as ours:
        train(ours, iterations)
        return learned(ours)


def test_workers_do_not_change_the_result(process_engine: None) -> None:
    alone = trained(8)
    assert trained(8, num_workers=1) == alone
    assert trained(8, num_workers=2) == alone


@pytest.mark.parametrize("shards", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_exactly(shards: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if shards:
        request.getfixturevalue("process_engine")
    expected = trained(24, replay_shards=shards)
    with trainer(Maze, **PROMISED, replay_shards=shards) as first:
        train(first, 17)
        path = first.save(tmp_path)
    with trainer(Maze, **PROMISED, replay_shards=shards) as second:
        second.restore(path)
        train(second, 7)
        assert learned(second) == expected


class Unmasked(Maze):
    """The maze before it had masks: stepping off an end does nothing."""

    action_masks = None  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        self.place += int(np.clip(self.place + action - 1, 0, self.last)) - self.place
        self.steps += 1
        return self._observe(), 0.0, False, self.steps >= 5, {}


def test_a_checkpoint_from_before_the_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps count as if all actions had been allowed. The format without masks has not changed."""
    with trainer(Unmasked, **PROMISED) as first:
        train(first, 10)
        path = first.save(tmp_path)
        assert len(learner_of(first).replay_spec.leaves) == 1
    monkeypatch.setattr(Unmasked, "action_masks", Maze.action_masks)
    with trainer(Unmasked, **PROMISED) as second:
        second.restore(path)
        drawn = next(iter(learner_of(second).replay.draw(50, [np.random.default_rng(0)])))
        assert drawn.next_observations[-1].all()
        train(second, 10)
        drawn = next(iter(learner_of(second).replay.draw(500, [np.random.default_rng(0)])))
        assert not drawn.next_observations[-1].all()

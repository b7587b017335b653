"""DQN with an MLP: the gradients that are written out are those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outplay import DQN
from outplay.learning import qlearning

SETTINGS: dict[str, Any] = {
    "num_workers": 0,
    "num_envs": 2,
    "train_batch_size": 32,
    "learning_starts": 64,
    "buffer_size": 2_000,
    "model": {"fcnet_hiddens": [24, 17]},
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dueling": False},
        {"double_q": False, "prioritized_replay": True},
        {"n_step": 3, "model": {"fcnet_hiddens": [24], "fcnet_activation": "tanh"}},
        {"normalize_observations": True},
        {"model": {"fcnet_hiddens": [96, 80]}},  # wide layers call oneDNN
    ],
)
def test_a_step_is_that_of_autograd(settings: dict[str, Any]) -> None:
    with DQN("CartPole-v1", {**SETTINGS, **settings}) as trainer:
        for _ in range(5):
            trainer.train()
        own = trainer.learner
        assert own.q_network.is_written_out
        ((batch, _),) = own._minibatches(1)
        found = []
        for step in (own._mlp_step, own._step):
            with own.optimizer.deferred() as updates:
                norm, metrics = step(batch, 1e-3)
            found.append((norm, metrics["loss"], metrics["errors"], updates[0].gradient))
        for ours, theirs in zip(*found, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"prioritized_replay": True}])
def test_minibatches_that_are_read_at_a_time_are_those_drawn_one_by_one(settings: dict[str, Any]) -> None:
    with DQN("CartPole-v1", {**SETTINGS, **settings}) as trainer:
        for _ in range(5):
            trainer.train()
        own = trainer.learner
        at_a_time = [(batch.tensors(), places) for batch, places in own._minibatches(5)]
        one_by_one = [(own.to_device(drawn), drawn.places) for drawn in own.replay.draw(*own._sampling(5))]
        assert len(at_a_time) == len(one_by_one) == 5
        for (ours, places), (batch, expected) in zip(at_a_time, one_by_one, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, batch.tensors(), strict=True))
            assert (places == expected).all()


@pytest.mark.parametrize("model", [{"layer_norm": True}, {"use_bias": False}, {"fcnet_hiddens": []}])
def test_other_networks_use_autograd(model: dict[str, Any]) -> None:
    with DQN("CartPole-v1", {**SETTINGS, "model": model}) as trainer:
        assert not trainer.learner.q_network.is_written_out
        for _ in range(4):
            trainer.train()
        assert trainer.learner.updates > 0


def test_the_huber_loss_and_its_slopes() -> None:
    """By hand: errors of 0.5 and −3 with weights 1 and 2, so losses of 0.125 and 2 · 2.5."""
    values = torch.tensor([[1.0, 7.0], [5.0, 4.0]])
    weights, actions = torch.tensor([1.0, 2.0]), torch.tensor([0, 1])
    loss, slopes, errors, taken = qlearning.huber_slopes(values, torch.tensor([1.5, 1.0]), actions, weights)
    assert float(loss) == pytest.approx((0.125 + 5.0) / 2)
    assert slopes.tolist() == [[-0.25, 0.0], [0.0, 1.0]]
    assert errors.tolist() == [0.5, -3.0]
    assert taken.tolist() == [1.0, 4.0]

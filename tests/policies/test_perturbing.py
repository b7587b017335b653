"""Parameter noise of a QPolicy: a perturbed copy explores, the policy itself stays as it is."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from outplay.groups import ModelConfig
from outplay.policies import PolicySpec, QOptions, QPolicy
from outplay.policies.perturbing import perturb, perturbable

Array = np.ndarray
BOX = spaces.Box(-1, 1, (3,), np.float32)


def policy(**model: Any) -> QPolicy:
    made = QPolicy(PolicySpec(BOX, spaces.Discrete(4), ModelConfig(fcnet_hiddens=[8], **model), seed=3))
    made.exploration = {"epsilon": 0.0, "stddev": 0.3, "noise_key": 1.0}
    return made


def acting(of: QPolicy, **exploration: float) -> QPolicy:
    """A policy as a worker has it."""
    of.exploration |= exploration
    other = QPolicy(of.spec)
    other.load(of.snapshot(1))
    return other


def q_values(of: QPolicy, explore: bool, rows: int = 20) -> Array:
    rng = np.random.default_rng(0)
    observations = (rng.uniform(-1, 1, (rows, 3)).astype(np.float32),)
    values: Array = of.act(observations, of.initial_state(rows), None, explore, rng)[2]["dist"]
    return values


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 8}, {"use_attention": True}])
@pytest.mark.parametrize("rows", [2, 20])  # in numpy, in torch
def test_a_perturbed_copy_explores_and_evaluations_are_clean(model: dict[str, Any], rows: int) -> None:
    learning = policy(**model)
    plain = copy.deepcopy(learning)
    plain.exploration = {"epsilon": 0.0}
    for ours in (learning, acting(learning)):
        before = ours.flat.clone()
        assert not np.allclose(q_values(ours, True, rows), q_values(plain, True, rows), atol=0.01)
        assert np.allclose(q_values(ours, False, rows), q_values(plain, False, rows), atol=1e-6)
        assert ours.flat.equal(before)
        assert ours.get_weights().keys() == plain.get_weights().keys()


def test_the_noise_depends_on_the_seed_and_the_key_alone() -> None:
    worker = acting(policy())
    expected = q_values(worker, True)
    for same in (
        acting(policy()),
        pickle.loads(pickle.dumps(worker)),
        copy.deepcopy(worker),
        worker.for_lanes(0, 20, 40),
    ):
        assert np.array_equal(q_values(same, True), expected)
    assert np.allclose(q_values(policy(), True), expected, atol=1e-6)  # on the learner, not frozen
    assert not np.allclose(q_values(acting(policy(), noise_key=2.0), True), expected)
    assert not np.allclose(q_values(acting(policy(), stddev=0.2), True), expected)


def test_new_weights_have_new_noise() -> None:
    learning = policy()
    worker = acting(learning)
    first = q_values(worker, True)
    learning.exploration["noise_key"] = 2.0
    worker.load(learning.snapshot(2))
    assert not np.allclose(q_values(worker, True), first)
    worker.set_weights({name: np.zeros_like(array) for name, array in worker.get_weights().items()})
    assert not q_values(worker, False).any()
    assert not np.allclose(q_values(worker, True), first)
    worker.load(learning.random_weights(3))  # without noise: all actions are random
    assert not q_values(worker, True).any()
    learning.flat.zero_()  # what is trained may change at any time
    changed = q_values(learning, True)
    learning.flat.add_(1.0)
    assert not np.allclose(q_values(learning, True), changed)


def test_epsilon_and_its_spread_apply_to_the_perturbed_copy() -> None:
    spec = PolicySpec(BOX, spaces.Discrete(4), ModelConfig(fcnet_hiddens=[8]), options=QOptions(epsilon_spread=3.0))
    learning = QPolicy(spec)
    learning.exploration = {"epsilon": 0.5, "stddev": 0.3, "noise_key": 1.0}
    worker = acting(learning).for_lanes(0, 2, 2)
    observations = (np.zeros((2, 3), np.float32),)
    rng = np.random.default_rng(0)
    greedy = worker.act(observations, {}, None, True, rng)[2]["dist"].argmax(-1)
    chosen = np.array([worker.act(observations, {}, None, True, rng)[0] for _ in range(2_000)])
    # ε of the lanes: 0.5 and 0.5⁴; a quarter of the random actions is the greedy one.
    assert np.allclose((chosen != greedy).mean(0), [0.75 * 0.5, 0.75 * 0.5**4], atol=0.03)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.LayerNorm(3)
        self.second = nn.Linear(3, 1, bias=False)
        self.own = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", torch.zeros(4))


def test_all_parameters_are_perturbed_but_those_of_normalisation() -> None:
    """In the flat vector: own (2), first (6 + 3), norm (3 + 3), second (3), and the buffer (4)."""
    parts = perturbable(Mixed())
    assert parts == [slice(0, 11), slice(17, 20)]
    flat = torch.zeros(24)
    perturb(flat, parts, 2.0, np.random.default_rng(0))
    expected = np.zeros(24, np.float32)
    rng = np.random.default_rng(0)
    expected[0:11] = 2 * rng.standard_normal(11, np.float32)
    expected[17:20] = 2 * rng.standard_normal(3, np.float32)
    assert np.array_equal(flat.numpy(), expected)


def test_normalisers_of_observations_have_no_noise() -> None:
    box = PolicySpec(BOX, spaces.Discrete(4), ModelConfig(fcnet_hiddens=[8]), normalize_observations=True)
    network = QPolicy(box).q_network
    assert perturbable(network) == [slice(0, sum(p.numel() for p in network.parameters()))]
    assert list(network.buffers())  # behind them

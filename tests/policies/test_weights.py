"""Weights: what acting needs, and nothing more."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import PPO
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec, QPolicy, Weights
from outplay.policies.flat import flatten, ranges
from tests import probes

VECTOR, IMAGE = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (9, 9, 3), np.uint8)


def policy(seed: int = 0, space: spaces.Space[Any] = VECTOR, kind: type[Policy] = Policy, **model: Any) -> Policy:
    return kind(PolicySpec(space, spaces.Discrete(2), ModelConfig(fcnet_hiddens=[8], **model), seed))


def numbers(policy: Policy, *without: str) -> int:
    return sum(array.size for name, array in policy.get_weights().items() if not name.startswith(without))


def act(policy: Policy, space: spaces.Space[Any] = VECTOR, rows: int = 6) -> np.ndarray:
    observations = np.random.default_rng(0).uniform(0, 200 if space is IMAGE else 1, (rows, *(space.shape or ())))
    acted: np.ndarray = policy.act((observations.astype(space.dtype),), {}, None, False, np.random.default_rng(0))[2][
        "dist"
    ]
    return acted


@pytest.mark.parametrize(
    ("space", "model"),
    [(VECTOR, {}), (IMAGE, {"vf_share_layers": False}), (IMAGE, {"vf_share_layers": False, "precision": "bfloat16"})],
    ids=["vector", "image", "bfloat16"],
)
def test_a_critic_does_not_travel_where_only_the_learner_needs_it(space: spaces.Space[Any], model: Any) -> None:
    learning, acting = policy(0, space, **model), policy(1, space, **model)
    weights = learning.snapshot(1)
    assert len(weights.flat) == numbers(learning, "value_") < numbers(learning)
    before = acting.get_weights()
    acting.load(weights)
    after, theirs = acting.get_weights(), learning.get_weights()
    for name in after:
        assert np.array_equal(after[name], (before if name.startswith("value_") else theirs)[name]), name
    assert np.array_equal(act(acting, space), act(learning, space))
    assert acting.snapshot(2).flat.tobytes() == weights.flat.tobytes()


def test_values_that_come_with_the_action_do_travel() -> None:
    shared = policy(vf_share_layers=True)
    assert len(shared.snapshot(1).flat) == numbers(shared)
    other = policy(1, vf_share_layers=True)
    other.load(shared.snapshot(1))
    assert all(np.array_equal(other.get_weights()[name], array) for name, array in shared.get_weights().items())


def test_everything_can_be_asked_for() -> None:
    learning, other = policy(0), policy(1)
    other.load(learning.snapshot(3, everything=True))
    assert all(np.array_equal(other.get_weights()[name], array) for name, array in learning.get_weights().items())


def test_the_weights_are_a_copy() -> None:
    learning = policy()
    weights = learning.snapshot(1)
    before = weights.flat.copy()
    learning.flat.zero_()
    assert np.array_equal(weights.flat, before)


def test_exploration_values_travel_beside_the_parameters() -> None:
    learning, acting = policy(0, kind=QPolicy), policy(1, kind=QPolicy)
    assert "epsilon" not in learning.get_weights()
    assert learning.exploration == {"epsilon": 0.0}
    learning.exploration = {"epsilon": 0.25}
    weights = learning.snapshot(1, updates=7)
    assert (weights.exploration, weights.updates) == ({"epsilon": 0.25}, 7)
    learning.exploration["epsilon"] = 0.5
    acting.load(weights)
    assert acting.exploration == {"epsilon": 0.25}
    assert learning.random_weights(2).exploration == {"epsilon": 1.0}
    assert learning.exploration == {"epsilon": 0.5}
    assert Weights(1, weights.flat).updates == 0


def test_weights_on_a_device_become_an_array_for_other_processes() -> None:
    learning = policy(0)
    given = learning.snapshot(4, updates=2)
    there = Weights(4, torch.from_numpy(given.flat.copy()), {"epsilon": 0.5}, 2)
    assert np.array_equal(there.flat, given.flat)
    sent = pickle.loads(pickle.dumps(there))
    assert isinstance(sent.values, np.ndarray)
    assert (sent.version, sent.exploration, sent.updates) == (4, {"epsilon": 0.5}, 2)
    for weights in (there, sent):
        acting = policy(1)
        acting.load(weights)
        assert acting.version == 4
        assert np.array_equal(acting.snapshot(1).flat, given.flat)
    acting.flat.zero_()
    assert np.array_equal(there.flat, given.flat)


@pytest.mark.parametrize("space", [VECTOR, IMAGE])
def test_a_policy_that_is_made_for_loading_acts_as_the_loaded_one(space: spaces.Space[Any]) -> None:
    learning = policy(3, space)
    acting = learning.spec.make_for_loading()
    assert not np.array_equal(acting.snapshot(1, everything=True).flat, learning.snapshot(1, everything=True).flat)
    acting.load(learning.snapshot(1))
    assert np.array_equal(act(acting, space), act(learning, space))
    again = learning.spec.make()  # the first weights are drawn again after the block
    assert np.array_equal(again.snapshot(1, everything=True).flat, learning.snapshot(1, everything=True).flat)


def test_ranges_of_the_flat_vector_are_merged() -> None:
    network = policy().network
    flat = flatten(network)
    assert ranges(network, lambda _: True) == [slice(0, len(flat))]
    assert ranges(network, lambda _: False) == []
    critic = ranges(network, lambda name: name.startswith("value_"))
    actor = ranges(network, lambda name: not name.startswith("value_"))
    assert len(actor) == 2  # its parameters, and the normalisers of observations
    assert sum(part.stop - part.start for part in (*critic, *actor)) == len(flat)


def test_workers_are_sent_no_critic_and_foreach_worker_sees_everything() -> None:
    with PPO(env=probes.Walk, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 64}) as trainer:
        for _ in range(2):
            trainer.train()
        worker = trainer.workers.pool.local
        assert worker is not None
        ours, theirs = trainer.policy.get_weights(), worker.policy.get_weights()
        assert not np.array_equal(ours["value_head.weight"], theirs["value_head.weight"])
        (seen,) = trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        assert all(np.array_equal(seen[name], ours[name]) for name in ours)

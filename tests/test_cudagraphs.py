"""Captured steps and captured acting on a CPU: buffers, sizes, scalars. tests/learning/test_gpu.py needs a GPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outplay import DQN, PPO, PQN, SAC, TD3, Algorithm
from outplay.cudagraphs import _WARM_UPS, CapturedActing, CapturedStep, Minibatch
from outplay.policies import policy as policies
from tests import probes
from tests.cpu_graphs import use_cpu_graphs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cpu_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_graphs(monkeypatch)


@dataclass
class Points(Minibatch):
    inputs: tuple[Tensor, ...]
    targets: Tensor
    weights: Tensor | None = None


def points(seed: int, rows: int = 4) -> Points:
    rng = torch.Generator().manual_seed(seed)
    inputs = (torch.randn(rows, 2, generator=rng), torch.randn(rows, 1, generator=rng))
    return Points(inputs, torch.randn(rows, generator=rng))


class Line:
    """A linear model and its step: gradient descent with momentum."""

    def __init__(self) -> None:
        self.flat = torch.tensor([0.5, -1.0, 2.0])
        self.momentum = torch.zeros(3)
        self.calls = 0

    def step(self, rows: Points, lr: Any, decay: Any) -> dict[str, Tensor]:
        self.calls += 1
        parameters = self.flat.detach().requires_grad_()
        errors = torch.cat(rows.inputs, 1) @ parameters - rows.targets
        (gradient,) = torch.autograd.grad((errors**2).mean(), parameters)
        with torch.no_grad():
            self.momentum.mul_(decay).add_(gradient)
            self.flat.sub_(lr * self.momentum)
        table = self.momentum.view(3, 1).repeat(1, 2)
        return {"norm": gradient.norm(), "errors": errors.detach(), "table": table}


def test_a_captured_step_is_a_plain_one() -> None:
    """Other rows and other scalars each time; what warming up has changed is set back, and only replays count."""
    captured_line, plain = Line(), Line()
    captured = CapturedStep(captured_line.step, points(9), [0.3, 0.9], [captured_line.flat, captured_line.momentum])
    assert captured_line.flat.equal(plain.flat)
    assert not captured_line.momentum.any()
    assert captured_line.calls == _WARM_UPS + 1
    for seed in range(5):
        lr, decay = 0.1 / (seed + 1), 0.5 + 0.1 * seed
        metrics, expected = captured(points(seed), lr, decay), plain.step(points(seed), lr, decay)
        assert {name: tuple(v.shape) for name, v in metrics.items()} == {"norm": (), "errors": (4,), "table": (3, 2)}
        for name, values in expected.items():
            assert torch.allclose(metrics[name], values, atol=1e-6)
        assert torch.allclose(captured_line.flat, plain.flat, atol=1e-6)
    assert captured_line.calls == _WARM_UPS + 1  # no Python code of the step has run since


def test_results_belong_to_the_caller_and_rows_are_copied() -> None:
    line = Line()
    rows = points(0)
    captured = CapturedStep(line.step, rows, [0.1, 0.9], [line.flat, line.momentum])
    metrics = captured(rows, 0.1, 0.9)
    kept = {name: value.clone() for name, value in metrics.items()}
    before = [tensor.clone() for tensor in rows.tensors()]
    captured(points(1), 0.2, 0.8)
    assert all(metrics[name].equal(value) for name, value in kept.items())
    assert all(mine.equal(old) for mine, old in zip(rows.tensors(), before, strict=True))  # the example is not written


def test_what_does_not_fit_what_was_captured_is_refused() -> None:
    line = Line()
    captured = CapturedStep(line.step, points(0), [0.1, 0.9], [line.flat, line.momentum])
    with pytest.raises(ValueError, match="zip"):
        captured(points(1), 0.1)
    with pytest.raises(ValueError, match="zip"):
        captured(Points(points(1).inputs, points(1).targets, torch.ones(4)), 0.1, 0.9)
    with pytest.raises(RuntimeError, match="size"):
        captured(points(1, rows=3), 0.1, 0.9)


def test_a_minibatch_has_tensors_tuples_and_nothing() -> None:
    rows = points(0)
    assert len(rows) == 4
    assert [tensor.shape for tensor in rows.tensors()] == [(4, 2), (4, 1), (4,)]
    doubled = rows.each(lambda tensor: 2 * tensor)
    assert isinstance(doubled, Points)
    assert doubled.weights is None
    assert doubled.inputs[1].equal(2 * rows.inputs[1])
    assert len(Points(rows.inputs, rows.targets, torch.ones(4)).tensors()) == 4


def test_captured_acting_reads_weights_and_inputs_where_they_are() -> None:
    weights = torch.tensor([[1.0, 2.0]])
    calls = []

    def function(inputs: tuple[Tensor, ...]) -> Tensor:
        calls.append(1)
        return inputs[0] @ weights + inputs[1]

    captured = CapturedActing(function, (np.zeros((3, 1), np.float32), np.zeros((3, 2), np.float32)), CPU)
    first = captured((np.ones((3, 1)), np.zeros((3, 2))))
    assert first.tolist() == [[1.0, 2.0]] * 3
    weights.copy_(torch.tensor([[5.0, 7.0]]))  # as an optimizer writes them: in place
    second = captured((np.full((3, 1), 2.0), np.ones((3, 2))))
    assert second.tolist() == [[11.0, 15.0]] * 3
    assert first.tolist() == [[1.0, 2.0]] * 3  # the first result was the caller's
    assert len(calls) == _WARM_UPS + 2  # one to know the shape of the result, one that is captured
    with pytest.raises(ValueError, match="zip"):
        captured((np.ones((3, 1)),))


def test_captured_acting_has_copies_of_what_it_was_given() -> None:
    """Images of other layouts in memory, read-only ones, and observations of several parts."""
    images = np.arange(48, dtype=np.uint8).reshape(2, 4, 3, 2).transpose(0, 3, 1, 2)
    images.flags.writeable = False
    numbers = np.ones((2, 3), np.float32)

    def function(inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0].float().sum((2, 3)) + inputs[1].sum(1, keepdim=True)

    captured = CapturedActing(function, (images, numbers), CPU)
    expected = images.sum((2, 3)) + 3.0
    assert captured((images, numbers)).tolist() == expected.tolist()
    assert captured((images[::-1], 2 * numbers)).tolist() == (expected[::-1] + 3).tolist()
    assert (numbers == 1).all()


# In the algorithms

SMALL = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "seed": 3, "model": {"fcnet_hiddens": [8]}}
OFF_POLICY: dict[str, Any] = {
    "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 500, "lr": 3e-3,
    "exploration_config": {"random_timesteps": 20},
}  # fmt: skip
CONTINUOUS = {"env_config": {"continuous": True}}
CASES: dict[str, tuple[type[Algorithm], dict[str, Any], int]] = {
    # 80 rows in minibatches of 32, 32 and 16: two graphs; rates that change, and a coefficient that adapts
    "PPO": (
        PPO,
        {
            "train_batch_size": 80, "sgd_minibatch_size": 32, "num_sgd_iter": 2, "kl_coeff": 0.2, "kl_target": 1e-4,
            "lr_schedule": [[0, 1e-2], [400, 0.0]], "normalize_observations": True,
        },
        2,
    ),
    "DQN": (
        DQN,
        {
            "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 500, "lr": 3e-3,
            "target_network_update_freq": 5, "prioritized_replay": True, "n_step": 2,
        },
        1,
    ),
    "PQN": (
        PQN,
        {
            "train_batch_size": 80, "sgd_minibatch_size": 32, "num_sgd_iter": 2, "normalize_observations": True,
            "lr_schedule": [[0, 1e-2], [400, 0.0]],
        },
        2,
    ),
    "DQN with parameter noise": (
        DQN,
        {
            "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 500,
            "exploration_config": {"type": "ParameterNoise", "initial_epsilon": 0.1},
        },
        1,
    ),
    "SAC": (SAC, {**OFF_POLICY, "prioritized_replay": True}, 1),
    "SAC, continuous": (SAC, {**OFF_POLICY, **CONTINUOUS}, 1),
    "TD3 with batch normalisation": (  # of the critics alone, and of critics and policy
        TD3, {**OFF_POLICY, **CONTINUOUS, "critic_norm": "batch", "use_target_network": False}, 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_that_captures_learns_as_one_that_does_not(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, config, sizes = CASES[case]
    with algorithm(env=probes.Walk, config={**SMALL, **config}) as plain:
        assert not plain.learner.captures
        expected = [plain.train()["learner"] for _ in range(4)]
    monkeypatch.setattr(algorithm.Learner, "captures", True)
    with algorithm(env=probes.Walk, config={**SMALL, **config}) as trainer:
        results = [trainer.train()["learner"] for _ in range(4)]
        graphs = [captured._graph for captured in trainer.learner._captured.values()]
        assert len(graphs) == sizes
        assert all(graph.replays > 3 for graph in graphs)
        assert torch.allclose(trainer.policy.flat, plain.policy.flat, atol=1e-4)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-3)


def test_a_policy_captures_once_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And acts with the weights that were loaded last."""
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        plain, policy = trainer.policy, copy.deepcopy(trainer.policy)
        policy.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
        monkeypatch.setattr(policies, "CapturedActing", lambda function, rows, _: CapturedActing(function, rows, CPU))
        rng = np.random.default_rng(0)
        batches = [(rng.normal(size=(rows, 2)).astype(np.float32),) for rows in (8, 6, 8, 6)]
        for weights in (plain.snapshot(1), plain.random_weights(2)):
            plain.load(weights)
            policy.load(weights)
            for batch in batches:
                assert policy._torch_outputs(batch) == pytest.approx(plain._torch_outputs(batch), abs=1e-6)
        assert sorted(policy._captured) == [6, 8]
        assert [captured._graph.replays for captured in policy._captured.values()] == [4, 4]
        policy.device = CPU
        assert copy.deepcopy(policy)._captured == {}  # its tensors are others

"""Traced steps and forward passes with written-out gradients: the same numbers as plain steps and as autograd."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torch import nn

from outplay import SAC, TD3
from outplay.groups import OptimizerConfig
from outplay.learning import learner, traces
from outplay.learning.optimizers import Optimizer, ParameterGroup
from outplay.learning.shares import Share
from outplay.policies.fused import Layers
from outplay.policies.passes import AutogradPass, slopes_of
from outplay.policies.squashed import SquashedGaussian

SETTINGS: dict[str, Any] = {
    "num_workers": 0,
    "num_envs": 2,
    "train_batch_size": 32,
    "sgd_minibatch_size": 16,
    "learning_starts": 64,
    "buffer_size": 2_000,
    "model": {"fcnet_hiddens": [72, 64]},
}


def trained(
    algorithm: type[SAC] | type[TD3], iterations: int = 6, **settings: Any
) -> tuple[torch.Tensor, dict[str, Any]]:
    with algorithm("Pendulum-v1", {**SETTINGS, **settings}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        return trainer.learner.policy.flat.clone(), dict(result["learner"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"grad_clip": 0.5, "lr_schedule": [[0, 1e-2], [400, 0.0]], "policy_delay": 2},
        {"normalize_observations": True, "prioritized_replay": True, "n_step": 2},
        {"model": {"precision": "bfloat16"}},
    ],
)
@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_a_traced_run_has_the_weights_of_a_plain_one(
    algorithm: type[SAC] | type[TD3], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**settings, "model": {**SETTINGS["model"], **settings.get("model", {})}}
    calls = []
    call = traces.TracedSteps.__call__
    monkeypatch.setattr(traces.TracedSteps, "__call__", lambda *args: calls.append(1) or call(*args))
    weights, result = trained(algorithm, **settings)
    assert calls, "nothing was traced"
    monkeypatch.setattr(learner, "can_trace", lambda: False)
    plain, expected = trained(algorithm, **settings)
    assert torch.equal(weights, plain)
    for name in ("critic_loss", "actor_loss", "grad_norm", "actor_grad_norm"):
        assert result[name] == expected[name]


@pytest.mark.parametrize("algorithm", [SAC, TD3])
@pytest.mark.parametrize("threads", [2, 3])
def test_critics_and_policy_are_computed_in_two_threads(
    algorithm: type[SAC] | type[TD3], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computes on all rows, so the result is that of one thread, bit by bit."""
    settings = {"sgd_minibatch_size": 97, "prioritized_replay": True, "grad_clip": 0.5, "policy_delay": 1}
    alone, expected = trained(algorithm, **settings)
    used, call = set(), traces._Part.__call__
    monkeypatch.setattr(traces._Part, "__call__", lambda *args: used.add(threading.get_ident()) or call(*args))
    found, result = trained(algorithm, **settings, learner_threads=threads)
    assert len(used) == 2
    assert torch.equal(found, alone)
    for name in ("critic_loss", "actor_loss", "grad_norm", "actor_grad_norm"):
        assert result[name] == expected[name]


@pytest.mark.parametrize(("algorithm", "delay", "counts"), [(SAC, 1, {2}), (TD3, 2, {2, 4})])
def test_threads_share_the_rows_of_a_minibatch(
    algorithm: type[SAC] | type[TD3], delay: int, counts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four threads: two for each of critics and policy, or four for the critics alone. The result is that of one
    thread, up to rounding, and always the same."""
    settings = {"sgd_minibatch_size": 260, "prioritized_replay": True, "grad_clip": 0.5, "policy_delay": delay}
    numbers, computed = set(), traces._joined
    monkeypatch.setattr(traces, "_joined", lambda parts, shares: numbers.add(len(parts)) or computed(parts, shares))
    # A few updates: with priorities, a difference in the last bit leads to other minibatches before long.
    alone, expected = trained(algorithm, 3, **settings)
    assert numbers == {1}
    numbers.clear()
    shared, found = trained(algorithm, 3, **settings, learner_threads=4)
    assert numbers == counts
    assert torch.allclose(shared, alone, atol=1e-5)
    for name in ("critic_loss", "actor_loss", "grad_norm", "actor_grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    assert torch.equal(shared, trained(algorithm, 3, **settings, learner_threads=4)[0])


def test_small_minibatches_are_not_shared() -> None:
    with SAC("Pendulum-v1", {**SETTINGS, "learner_threads": 2, "sgd_minibatch_size": 63}) as trainer:
        for _ in range(3):
            trainer.train()
        assert not any(steps._uses_threads for steps in trainer.learner._captured.values())


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with SAC("Pendulum-v1", {**SETTINGS, "learner_threads": 2, "sgd_minibatch_size": 64}) as trainer:
        for _ in range(3):
            trainer.train()

        def failing(*_: Any) -> Any:
            raise ValueError("in a thread")

        for steps in trainer.learner._captured.values():
            monkeypatch.setitem(steps._parts, "actor_grad_norm", [failing])
        with pytest.raises(ValueError, match="in a thread"):
            trainer.train()


def test_prepared_updates_are_those_of_finish() -> None:
    """Parameters change when they are told to, not before: other threads read them."""
    for kind in ("adam", "sgd", "rmsprop"):
        weights = [torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2)]
        settings = OptimizerConfig(type=kind)
        first, second = (Optimizer([ParameterGroup("all", [w], w.data, settings, 0.5, True)]) for w in weights)
        for _ in range(3):
            gradient, before = torch.tensor([3.0, 0.0, 4.0]), weights[1].detach().clone()
            expected = first.finish(["all"], gradient.clone(), 0.1, 2.5)
            norm, change = second.prepare(["all"], gradient.clone(), 0.1, 2.5)
            assert float(norm) == float(expected) == 5.0
            assert torch.equal(weights[1], before)
            change()
            assert torch.equal(weights[1], weights[0])
            assert not torch.equal(weights[1], before)


def test_joined_results_are_those_of_all_rows() -> None:
    """By hand: rows 1, 2, 6 and 7, of which the first thread has one. Means are 4."""
    rows = torch.tensor([1.0, 2.0, 6.0, 7.0])
    shares = [Share(0, 1, 4), Share(1, 4, 4)]
    parts = [
        traces._Found({"mean": rows[s.rows].mean(), "errors": rows[s.rows]}, [], [rows[s.rows].mean()[None]])
        for s in shares
    ]
    found = traces._joined(parts, shares)
    assert found.metrics["mean"] == 4.0
    assert found.metrics["errors"].tolist() == rows.tolist()
    assert [gradient.tolist() for gradient in found.gradients] == [[4.0]]


def test_the_optimizer_keeps_its_state_while_a_step_is_traced() -> None:
    with SAC("Pendulum-v1", SETTINGS) as trainer:
        for _ in range(3):
            trainer.train()
        own = trainer.learner
        before = [tensor.clone() for tensor in (*own.optimizer.tensors, *own.networks.values())]
        ((batch, _),) = own._minibatches(1)
        traces.TracedSteps({"norm": own.critic_step}, batch, [1e-3], own.optimizer)
        after = (*own.optimizer.tensors, *own.networks.values())
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("reuses", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("inputs", [1, 5, 20])
def test_written_out_gradients_are_those_of_autograd(
    inputs: int, outputs: int, activation: type[nn.Module], reuses: bool
) -> None:
    torch.manual_seed(0)
    sizes = [(inputs + 2, 24), (24, 17), (17, outputs)]
    tensors = [t for a, b in sizes for t in (torch.randn(2, b, a), torch.randn(2, b))]
    parameters = [tensor.clone().requires_grad_() for tensor in tensors]
    observations, actions = torch.randn(7, inputs), torch.randn(7, 2)

    def network(given: torch.Tensor | None) -> torch.Tensor:
        assert given is not None
        hidden = torch.cat([observations, given], -1).expand(2, -1, -1)
        for i in range(0, 6, 2):
            hidden = torch.baddbmm(parameters[i + 1][:, None], hidden, parameters[i].mT)
            hidden = activation()(hidden) if i < 4 else hidden
        return hidden

    run = Layers(tensors, activation, torch.float32).run(torch.cat([observations, actions], -1), None, 2, reuses)
    slopes = torch.randn(2, 7, outputs)
    expected = AutogradPass(network, parameters, actions)
    assert torch.allclose(run.outputs, expected.outputs, atol=1e-5)
    (flat,) = run.weight_gradients(slopes)
    wanted = torch.cat([gradient.reshape(-1) for gradient in expected.weight_gradients(slopes)])
    assert torch.allclose(flat, wanted, rtol=1e-4, atol=1e-4)
    again = AutogradPass(network, parameters, actions)
    assert torch.allclose(run.input_gradient(slopes), again.input_gradient(slopes), rtol=1e-4, atol=1e-4)


def test_products_in_bfloat16_are_close_to_those_in_float32() -> None:
    torch.manual_seed(0)
    sizes = [(5, 128), (128, 96), (96, 1)]
    tensors = [t for a, b in sizes for t in (torch.randn(2, b, a) / a**0.5, torch.zeros(2, b))]
    x, slopes = torch.randn(32, 5), torch.randn(2, 32, 1)
    exact, low = (Layers(tensors, nn.ReLU, dtype).run(x) for dtype in (torch.float32, torch.bfloat16))
    assert torch.allclose(exact.outputs, low.outputs, atol=0.05)
    wanted, found = (run.weight_gradients(slopes)[0] for run in (exact, low))
    assert 0 < float((wanted - found).norm() / wanted.norm()) < 0.02


def test_slopes_of_drawn_actions_are_those_of_autograd() -> None:
    """A loss that uses actions and log-probabilities, also where log σ is clipped (no slope there)."""
    torch.manual_seed(1)
    params, noise, weights = torch.randn(6, 4), torch.randn(6, 2), torch.randn(6, 2)
    params[0, 2] = 5.0
    distribution = SquashedGaussian(2)

    def loss(given: torch.Tensor) -> torch.Tensor:
        mean, log_std = given.chunk(2, -1)
        log_std = log_std.clamp(-20.0, 2.0)
        u = mean + log_std.exp() * noise
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
        log_prob = log_prob - 2 * (torch.log(torch.tensor(2.0)) - u - nn.functional.softplus(-2 * u))
        return (0.3 * log_prob.sum(-1)).sum() + (weights * u.tanh()).sum()

    drawn = distribution.draw(params, noise)
    value, expected = slopes_of(loss, params)
    assert torch.allclose((0.3 * drawn.log_prob).sum() + (weights * drawn.actions).sum(), value, rtol=1e-4)
    assert torch.allclose(drawn.slopes(weights, torch.tensor(0.3)), expected, rtol=1e-3, atol=1e-4)


def test_one_dnn_sets_back_what_it_set() -> None:
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    with traces.one_dnn():
        a, b = torch.randn(200, 150), torch.randn(150, 180)
        error = ((a @ b).double() - a.double() @ b.double()).abs().max()
    assert settings.fp32_precision == before
    assert float(error) < 1e-3, "products are those of float32, not of bfloat16"


@pytest.mark.skipif("MALLOC_TRIM_THRESHOLD_" in os.environ, reason="malloc is set by the environment")
def test_freed_memory_is_kept_once() -> None:
    traces.keep_freed_memory()
    assert traces.keep_freed_memory.cache_info().currsize == 1


def test_results_of_threads_are_those_of_their_callers() -> None:
    """Two trainers may learn at the same time, and an interrupted one leaves a result that nobody takes."""
    thread = traces._Thread(0)
    results = [traces._Found({}, [], []) for _ in range(3)]
    queues = [thread.begin(lambda found=found: found) for found in results]  # type: ignore[misc]
    assert queues[2].get() is results[2]
    assert queues[0].get() is results[0]

    def fails() -> traces._Found:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        traces._value(thread.begin(fails).get())
    assert thread.begin(lambda: results[1]).get() is results[1]

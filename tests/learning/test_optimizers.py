"""Optimizers: the steps of torch.optim, clipping, parameter groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outplay.groups import OptimizerConfig
from outplay.learning.optimizers import Optimizer, ParameterGroup


def group(parameter: torch.Tensor, flat: torch.Tensor, is_fused: bool = False, **config: Any) -> ParameterGroup:
    return ParameterGroup("all", [parameter], flat.detach(), OptimizerConfig(**config), is_fused=is_fused)


@pytest.mark.parametrize(
    ("config", "theirs"),
    [
        ({"type": "adam"}, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-5)),
        ({"type": "adam", "is_fused": True}, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-5)),
        ({"type": "rmsprop"}, lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.99, eps=1e-5)),
        ({"type": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    ],
    ids=["adam", "fused adam", "rmsprop", "sgd"],
)
def test_steps_are_those_of_torch(config: dict[str, Any], theirs: Any) -> None:
    flat = torch.randn(10, generator=torch.Generator().manual_seed(0))
    parameter = flat.view(10).requires_grad_()
    copy = flat.detach().clone().requires_grad_()
    ours, reference = Optimizer([group(parameter, flat, **config)]), theirs([copy])
    for step in range(20):
        weights = torch.arange(10.0) + step
        ours.step((parameter**2 * weights).sum(), lr=0.01)
        reference.zero_grad()
        (copy**2 * weights).sum().backward()
        reference.step()
    assert torch.allclose(parameter, copy, atol=1e-6)


def test_gradients_are_clipped_to_the_norm() -> None:
    flat = torch.zeros(2)
    parameter = flat.view(2).requires_grad_()
    optimizer = Optimizer([group(parameter, flat, type="sgd")])
    norm = optimizer.step((parameter * torch.tensor([3.0, 4.0])).sum(), lr=1.0, grad_clip=1.0)
    assert norm == pytest.approx(5.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8])
    optimizer.step((parameter * torch.tensor([0.3, 0.4])).sum(), lr=1.0, grad_clip=1.0)  # shorter ones stay
    assert parameter.tolist() == pytest.approx([-0.9, -1.2])


def actor_and_critic(kind: str, critic_kind: str | None = None, **more: Any) -> tuple[Any, Any, Optimizer]:
    flat = torch.zeros(5)  # the last one is not a parameter: a buffer
    actor, critic = flat[:2].requires_grad_(), flat[2:4].requires_grad_()
    whole = ParameterGroup("actor", [actor, critic], flat.detach(), OptimizerConfig(type=kind))
    first, second = whole.split("critic", [critic], **{"lr_scale": 1.0, **more})
    if critic_kind is not None:
        second = ParameterGroup("critic", second.parameters, second.flat, OptimizerConfig(type=critic_kind))
    return actor, critic, Optimizer([first, second])


def test_fused_groups_have_their_own_learning_rate_and_only_adam_is_fused() -> None:
    for kind in ("adam", "sgd"):
        flats = [torch.ones(2), torch.ones(2)]
        parameters = [flat.view(2).requires_grad_() for flat in flats]
        groups = [
            ParameterGroup(f"{i}", [parameters[i]], flats[i].detach(), OptimizerConfig(type=kind), i + 1.0, True)
            for i in range(2)
        ]
        Optimizer(groups).step(sum(parameters).sum(), lr=0.1)
        moved = [1 - float(parameter[0].detach()) for parameter in parameters]
        assert moved == pytest.approx([0.1, 0.2], rel=1e-3)


@pytest.mark.parametrize("kind", ["adam", "rmsprop", "sgd"])
def test_a_group_has_its_own_learning_rate(kind: str) -> None:
    actor, critic, optimizer = actor_and_critic(kind, lr_scale=3.0)
    for _ in range(3):
        optimizer.step(((actor + critic) * torch.tensor([1.0, -2.0])).sum(), lr=0.01)
    assert torch.allclose(critic, 3 * actor)
    assert (actor.sign() == torch.tensor([-1.0, 1.0])).all()


def test_a_group_has_its_own_settings_and_is_trained_alone() -> None:
    actor, critic, optimizer = actor_and_critic("adam", critic_kind="sgd")
    loss = ((actor + critic) * torch.tensor([1.0, -2.0])).sum()
    norm = optimizer.step(loss, lr=0.5, only=["critic"])
    assert norm == pytest.approx(5**0.5)
    assert (actor.tolist(), critic.tolist()) == ([0.0, 0.0], [-0.5, 1.0])
    optimizer.step(((actor + critic) * torch.tensor([1.0, -2.0])).sum(), lr=0.5, only=["actor"])
    assert actor.tolist() == pytest.approx([-0.5, 0.5], abs=1e-4)  # Adam: of size lr
    assert optimizer.steps.tolist() == [1, 1]


def test_state_goes_there_and_back_and_one_count_of_steps_fits_all_groups() -> None:
    actor, critic, optimizer = actor_and_critic("adam")
    optimizer.step((actor.sum() + (critic**2).sum() + critic.sum()), lr=0.1)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    _, _, other = actor_and_critic("adam")
    other.load(state)
    assert all(a.equal(b) for a, b in zip(other.tensors[2:], optimizer.tensors[2:], strict=True))
    other.load({**state, "steps": torch.tensor(7)})  # as version 0.2 wrote it
    assert other.steps.tolist() == [7, 7]


def test_a_group_is_split_at_one_place() -> None:
    flat = torch.zeros(4)
    first, second = flat[:2], flat[2:]
    whole = ParameterGroup("whole", [first, second], flat, OptimizerConfig())
    with pytest.raises(ValueError, match="must be the last ones of group 'whole'"):
        whole.split("critic", [first], 1.0)

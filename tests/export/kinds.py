"""Policies of every kind, with random weights and normalisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.export.verifying import random_rows
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec, QOptions, QPolicy
from outplay.policies.box import DeterministicPolicy, NoiseOptions, SoftPolicy
from outplay.policies.distributions import DiagonalGaussian
from outplay.sequences import Padded, Reading, text

Array = np.ndarray

VECTOR = spaces.Box(-2, 2, (5,), np.float32)
THREE = spaces.Discrete(3)
ARM = spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 5.0, np.inf], np.float32))
BOUNDED = spaces.Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 7.0], np.float32))
DICT = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (12, 12, 3), np.uint8),
        "inner": spaces.Tuple([spaces.Discrete(4, start=-1), spaces.MultiDiscrete([2, 3])]),
        "pose": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        "switches": spaces.MultiBinary(3),
        "bytes": spaces.Box(-5, 5, (2,), np.int16),
    }
)
NESTED_ACTION = spaces.Dict(
    {
        "wheel": spaces.Box(-3, 3, (2,), np.float32),
        "gear": spaces.Discrete(4, start=1),
        "more": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]), spaces.Box(0, 9, (1,), np.int32)]),
    }
)


class Squeezed(DiagonalGaussian):
    """A custom distribution whose mode is written in numpy."""

    def __init__(self, space: Any) -> None:
        super().__init__(int(np.prod(space.shape)))

    def mode(self, params: Array) -> Array:
        return np.tanh(super().mode(params))


class Plain(DiagonalGaussian):
    """A custom distribution whose mode works on tensors, too."""

    def __init__(self, space: Any) -> None:
        super().__init__(int(np.prod(space.shape)))

    def mode(self, params: Array) -> Array:
        return super().mode(params) * 0.5


class Net(nn.Module):
    """A custom model. It uses len() of a tensor, which only the strict mode of torch.export traces."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x.view(len(x), -1))
        return hidden.relu()


class RecurrentNet(nn.Module):
    def __init__(self, space: Any) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 6)

    def initial_state(self) -> dict[str, Tensor]:
        return {"h": torch.linspace(0, 1, 6)}

    def forward(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        h = self.cell(x, state["h"])
        return h, {"h": h}


def on_policy(observations: Any = VECTOR, actions: Any = THREE, model: Any = None, **options: Any) -> PolicySpec:
    settings = {"fcnet_hiddens": [16, 16], **(model or {})}
    if "custom_model" in settings:
        del settings["fcnet_hiddens"]
    return PolicySpec(observations, actions, model=ModelConfig(**settings), seed=3, **options)


def q(options: QOptions | None = None, **others: Any) -> PolicySpec:
    return on_policy(policy_class=QPolicy, options=options or QOptions(dueling=False), **others)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


LSTM, PREVIOUS = {"use_lstm": True, "lstm_cell_size": 12}, {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
ATTENTION = {"use_attention": True, "attention_dim": 8, "attention_head_dim": 4, "attention_memory_inference": 6}
EMBEDDINGS = spaces.Dict({"choices": spaces.Box(-1, 1, (3, 4), np.float32), "rest": VECTOR})

KINDS: dict[str, Callable[[], PolicySpec]] = {
    "discrete": lambda: on_policy(actions=spaces.Discrete(4, start=7), normalize_observations=True),
    "shared layers": lambda: on_policy(model={"vf_share_layers": True}),
    "multi discrete": lambda: on_policy(actions=spaces.MultiDiscrete([3, 2, 4], start=[1, 0, -2])),
    "multi discrete matrix": lambda: on_policy(actions=spaces.MultiDiscrete(np.full((2, 2), 3))),
    "multi binary": lambda: on_policy(actions=spaces.MultiBinary(4)),
    "box": lambda: on_policy(actions=ARM),
    "box not normalised": lambda: on_policy(actions=ARM, normalize_actions=False),
    "box clipped": lambda: on_policy(actions=ARM, normalize_actions=False, clip_actions=True),
    "box matrix of doubles": lambda: on_policy(actions=spaces.Box(-4, 3, (2, 2), np.float64)),
    "box of integers": lambda: on_policy(actions=spaces.Box(0, 200, (3,), np.uint8)),
    "dict action": lambda: on_policy(actions=NESTED_ACTION),
    "tuple action": lambda: on_policy(actions=spaces.Tuple([THREE, BOUNDED])),
    "dict observation": lambda: on_policy(DICT),
    "dict observation, normalised": lambda: on_policy(DICT, normalize_observations=True),
    "tuple observation": lambda: on_policy(spaces.Tuple([VECTOR, spaces.Discrete(3)])),
    "scalar observation": lambda: on_policy(spaces.Discrete(6, start=2)),
    "image, channels last": lambda: on_policy(image(20, 24, 3)),
    "image, channels first": lambda: on_policy(image(3, 40, 40), normalize_observations=True),
    "image, gray": lambda: on_policy(image(16, 16)),
    "image, stack": lambda: on_policy(image(4, 84, 84)),
    "image, stack of colours": lambda: on_policy(image(2, 16, 16, 3)),
    "image, layer norm": lambda: on_policy(image(3, 16, 16), model={"layer_norm": True}),
    "sparse inputs": lambda: on_policy(spaces.Box(-1, 1, (16,), np.int8), model={"sparse_inputs": True}),
    "sequence": lambda: on_policy(Padded(spaces.Box(-1, 1, (3,), np.float32), 7)),
    "sequence, attention": lambda: on_policy(
        Padded(spaces.Discrete(5, start=2), 7), model={"sequence_pooling": "attention"}
    ),
    "text": lambda: on_policy(text(spaces.Text(20), Reading(9, with_text=True))),
    "lstm": lambda: on_policy(model=LSTM, normalize_observations=True),
    "lstm, previous": lambda: on_policy(actions=NESTED_ACTION, model={**LSTM, **PREVIOUS}),
    "lstm, previous reward": lambda: on_policy(model={**LSTM, "lstm_use_prev_reward": True}),
    "gru, previous action": lambda: on_policy(
        actions=BOUNDED, model={"use_gru": True, "lstm_cell_size": 12, "lstm_use_prev_action": True}
    ),
    "attention": lambda: on_policy(model=ATTENTION),
    "attention, image, mask": lambda: on_policy(image(16, 16, 1), model={**ATTENTION, **PREVIOUS}, with_masks=True),
    "mask": lambda: on_policy(with_masks=True),
    "mask of several": lambda: on_policy(actions=spaces.MultiDiscrete([3, 4]), with_masks=True),
    "action embeddings": lambda: on_policy(EMBEDDINGS, model={"action_embeddings": "choices"}),
    "layer norm, swish": lambda: on_policy(model={"layer_norm": True, "fcnet_activation": "swish"}),
    "no critic": lambda: on_policy(with_value=False),
    "bfloat16": lambda: on_policy(model={"precision": "bfloat16"}),
    "bfloat16, image": lambda: on_policy(image(16, 16, 3), model={"precision": "bfloat16"}),
    "dqn": q,
    "dqn, dueling": lambda: q(QOptions(dueling=True), actions=spaces.Discrete(3, start=1)),
    "dqn, c51": lambda: q(QOptions(distributional="c51", num_atoms=11)),
    "dqn, qr": lambda: q(QOptions(distributional="qr", num_atoms=5)),
    "dqn, noisy": lambda: q(QOptions(noisy=True), normalize_observations=True),
    "dqn, image, mask": lambda: q(QOptions(), observations=image(4, 36, 36), with_masks=True),
    "dqn, embeddings": lambda: q(observations=EMBEDDINGS, model={"action_embeddings": "choices"}),
    "r2d2": lambda: q(QOptions(), model={**LSTM, **PREVIOUS}),
    "pqn": lambda: q(model={"layer_norm": True}),
    "sac": lambda: on_policy(actions=BOUNDED, policy_class=SoftPolicy, with_value=False),
    "sac, bfloat16": lambda: on_policy(
        actions=BOUNDED, policy_class=SoftPolicy, with_value=False, model={"precision": "bfloat16"}
    ),
    "sac, discrete": lambda: on_policy(policy_class=SoftPolicy, with_value=False, with_masks=True),
    "td3": lambda: on_policy(actions=BOUNDED, policy_class=DeterministicPolicy, with_value=False),
    "ddpg": lambda: on_policy(
        actions=BOUNDED, policy_class=DeterministicPolicy, with_value=False, options=NoiseOptions(0.15, 0.2)
    ),
    "custom model": lambda: on_policy(model={"custom_model": Net}),
    "custom model, recurrent": lambda: on_policy(model={"custom_model": RecurrentNet}, normalize_observations=True),
    "custom distribution": lambda: on_policy(actions=BOUNDED, model={"custom_action_dist": Plain}),
    "custom distribution in numpy": lambda: on_policy(actions=BOUNDED, model={"custom_action_dist": Squeezed}),
}


def policy_of(kind: str) -> Policy:
    """A policy with random weights that chooses different actions for different observations."""
    for seed in range(50):
        policy = KINDS[kind]().make()
        randomize(policy, torch.Generator().manual_seed(seed))
        rng = np.random.default_rng(seed)
        rows, state = random_rows(policy.leaves, 100, rng), policy.initial_state(100)
        if len({action.tobytes() for action in policy.act(rows, state, None, False, rng)[0].reshape(100, -1)}) > 2:
            return policy
    raise AssertionError(f"{kind}: all observations lead to the same two actions")


@torch.no_grad()
def randomize(policy: Policy, generator: torch.Generator) -> None:
    """Random weights and normalisers."""
    for tensor in policy.network.parameters():
        tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
    for i, leaf in enumerate(policy.leaves):
        if hasattr(policy.network, f"observation_mean_{i}"):
            mean, scale = (getattr(policy.network, f"observation_{name}_{i}") for name in ("mean", "scale"))
            mean.copy_(torch.rand(mean.shape, generator=generator) * (255 if leaf.is_image else 1))
            scale.copy_((0.5 + torch.rand(scale.shape, generator=generator)) / (100 if leaf.is_image else 1))


def in_float32(policy: Policy) -> Policy:
    """The policy with the same weights, without lower precision."""
    spec = policy.spec
    model = spec.model.model_copy(update={"precision": "float32"})
    other = PolicySpec(**{**vars(spec), "model": model}).make()
    other.set_weights(policy.get_weights())
    return other

"""Custom models: a user's `torch.nn.Module` in the place of the encoder and the hidden layers.

    class Net(nn.Module):
        def __init__(self, observation_space, size=64):  # and custom_model_config as keyword arguments
            ...

        def forward(self, observation):  # a batch of B observations, in the structure of the observation space
            return features  # (B, any number)

Outplay adds the heads for actions and values. A recurrent model also has a state:

        def initial_state(self):
            return {"h": torch.zeros(32)}  # of one episode, at its start

        def forward(self, observation, state):  # one step of B episodes; the state has B rows
            return features, {"h": next_h}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.policies.encoder import CLIP_RANGE, Normalisers
from outplay.policies.recurrent import PREVIOUS, Core, State
from outplay.spaces import Leaf

Array = np.ndarray


class CustomEncoder(nn.Module):
    """Features of observations by a custom model that is not recurrent."""

    is_sparse = False

    def __init__(self, model: nn.Module, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = leaves
        self.model = model
        outputs = _tried(model, lambda: model(nested(_zeros(leaves, 2), leaves)))
        self.num_features = _num_features(model, outputs)

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        inputs = zip(_normalised(observations, normalisers), self.leaves, strict=True)
        features: Tensor = self.model(nested(tuple(x.to(_dtype(leaf)) for x, leaf in inputs), self.leaves))
        return features


class FlatEncoder(nn.Module):
    """All leaves of an observation as one row of numbers, for a recurrent custom model."""

    is_sparse = False

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = leaves
        self.num_features = sum(int(np.prod(leaf.shape)) for leaf in leaves)

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        parts = [x.reshape(len(x), -1).float() for x in _normalised(observations, normalisers)]
        return torch.cat(parts, -1)


class CustomCore(Core):
    """A recurrent custom model, called once per step."""

    def __init__(self, model: nn.Module, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.model = model
        self.leaves = leaves
        self._initial = _checked_state(model)
        rows = torch.cat([x.reshape(2, -1).float() for x in _zeros(leaves, 2)], -1)
        state = {name: torch.from_numpy(np.stack([array] * 2)) for name, array in self._initial.items()}
        outputs = _tried(model, lambda: self._step(rows, state))
        if not (isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], Mapping)):
            raise _wrong(model, "has initial_state(), so forward() must return (features, next state as a dict)")
        shapes = {name: tuple(tensor.shape) for name, tensor in outputs[1].items()}
        if shapes != (expected := {name: (2, *array.shape) for name, array in self._initial.items()}):
            raise _wrong(model, f"must return a state of the same shapes: for two episodes {expected}, not {shapes}")
        self.num_outputs = _num_features(model, outputs[0])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._initial.items()}

    def initial(self, sequences: int) -> dict[str, Array]:
        return {name: np.stack([array] * sequences) for name, array in self._initial.items()}

    def initialize(self, generator: torch.Generator) -> None:
        """The model has drawn its own weights."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for rows in x:
            features, state = self._step(rows, state)
            outputs.append(features)
        return torch.stack(outputs), state

    def _step(self, rows: Tensor, state: State) -> Any:
        sizes = [int(np.prod(leaf.shape)) for leaf in self.leaves]
        observations = tuple(
            part.reshape(len(rows), *leaf.shape).to(_dtype(leaf))
            for part, leaf in zip(torch.split(rows, sizes, -1), self.leaves, strict=True)
        )
        return self.model(nested(observations, self.leaves), state)


def make_model(
    kind: Any, config: Mapping[str, Any], space: spaces.Space[Any], generator: torch.Generator | None
) -> nn.Module:
    """An instance of a custom model. `generator` determines the weights that it draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        try:
            model = kind(space, **config)
        except TypeError as error:
            raise ConfigError(
                f"model.custom_model {kind.__name__}: it is called with the observation space, and custom_model_config "
                f"as keyword arguments ({', '.join(config) or 'none are given'}): {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.custom_model {kind.__name__}: a torch.nn.Module is needed, not {type(model).__name__}"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dtype != torch.float32:
            raise _wrong(
                model,
                f"must have float32 parameters and buffers, and {name!r} is {tensor.dtype} (instead of batch "
                "normalisation, use layer normalisation or normalize_observations)",
            )
    return model


def is_recurrent(model: nn.Module) -> bool:
    return hasattr(model, "initial_state")


def nested(observations: tuple[Tensor, ...], leaves: tuple[Leaf, ...]) -> Any:
    """Leaves in the structure of their space: dicts for Dict, tuples for Tuple, else a tensor."""
    if leaves[0].path == ():
        return observations[0]
    first = {leaf.path[0] for leaf in leaves}
    parts = {}
    for key in dict.fromkeys(leaf.path[0] for leaf in leaves):
        inner = [(x, leaf) for x, leaf in zip(observations, leaves, strict=True) if leaf.path[0] == key]
        shorter = tuple(Leaf(leaf.path[1:], leaf.space) for _, leaf in inner)
        parts[key] = nested(tuple(x for x, _ in inner), shorter)
    return tuple(parts.values()) if all(isinstance(key, int) for key in first) else parts


def _normalised(observations: tuple[Tensor, ...], normalisers: Normalisers) -> tuple[Tensor, ...]:
    return tuple(
        x if normaliser is None else ((x.float() - normaliser[0]) * normaliser[1]).clamp(-CLIP_RANGE, CLIP_RANGE)
        for x, normaliser in zip(observations, normalisers, strict=True)
    )


def _dtype(leaf: Leaf) -> torch.dtype:
    """Discrete observations stay integers. Others are floats: they may be normalised."""
    is_discrete = isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete))
    return torch.int64 if is_discrete else torch.float32


def _zeros(leaves: tuple[Leaf, ...], rows: int) -> tuple[Tensor, ...]:
    return tuple(torch.zeros((rows, *leaf.shape), dtype=_dtype(leaf)) for leaf in leaves)


def _tried(model: nn.Module, call: Any) -> Any:
    """The outputs of a first call. Raises ConfigError if it fails."""
    try:
        with torch.no_grad():
            return call()
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else ""
        raise _wrong(model, f"raised {type(error).__name__} for a batch of two zero observations: {first}") from error


def _num_features(model: nn.Module, outputs: Any) -> int:
    if not isinstance(outputs, Tensor):
        raise _wrong(model, f"must return a tensor of features (batch, number), not {type(outputs).__name__}")
    if outputs.dim() != 2 or len(outputs) != 2 or not outputs.is_floating_point():
        raise _wrong(
            model,
            f"must return features of shape (batch, number) as floats: for two observations it returned shape "
            f"{tuple(outputs.shape)} of {outputs.dtype}",
        )
    return int(outputs.shape[1])


def _checked_state(model: nn.Module) -> dict[str, Array]:
    state = _tried(model, model.initial_state)
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()) or not state:
        raise _wrong(model, "must return a dict of tensors from initial_state(): the state of one episode at its start")
    if PREVIOUS in state:
        raise _wrong(model, f"must not name a state {PREVIOUS!r}")
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}


def _wrong(model: nn.Module, problem: str) -> ConfigError:
    return ConfigError(f"model.custom_model {type(model).__name__} {problem}")

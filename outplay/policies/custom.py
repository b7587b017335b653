"""Custom models: a user's `torch.nn.Module` in the place of the encoder and the hidden layers.

    class Net(nn.Module):
        def __init__(self, observation_space, size=64):  # and custom_model_config as keyword arguments
            ...

        def forward(self, observation):  # a batch of B observations, in the structure of the observation space
            return features  # (B, F); F is up to the model

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
from outplay.policies.foreign import running, trying
from outplay.policies.recurrent import Core, State
from outplay.policies.trial import check_features, check_layers, initial_state, num_features, who, wrong
from outplay.spaces import Leaf

Array = np.ndarray


class CustomEncoder(nn.Module):
    """Features of observations by a custom model that is not recurrent."""

    is_sparse = False

    def __init__(self, model: nn.Module, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = leaves
        self.model = model
        self._who = who(model)
        self.num_features = num_features(model, lambda rows: model(nested(_examples(leaves, rows), leaves)))

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        inputs = zip(_normalised(observations, normalisers), self.leaves, strict=True)
        observation = nested(tuple(x.to(_dtype(leaf)) for x, leaf in inputs), self.leaves)
        with running(self._who):
            features: Tensor = self.model(observation)
        check_features(self._who, features, observations[0].shape[0], self.num_features)
        return features.float()


class FlatEncoder(nn.Module):
    """All leaves of an observation as one row of numbers, for a recurrent custom model."""

    is_sparse = False

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.leaves = leaves
        self.num_features = sum(int(np.prod(leaf.shape)) for leaf in leaves)

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        parts = [x.reshape(x.shape[0], -1).float() for x in _normalised(observations, normalisers)]
        return torch.cat(parts, -1)


class CustomCore(Core):
    """A recurrent custom model, called once per step."""

    def __init__(self, model: nn.Module, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.model = model
        self.leaves = leaves
        self._who = who(model)
        self._initial = initial_state(model)
        self.num_outputs = num_features(model, self._tried_features)

    def _tried_features(self, rows: int) -> Any:
        """The features of the second step of `rows` episodes."""
        state = {name: torch.from_numpy(array) for name, array in self.initial(rows).items()}
        expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        inputs = torch.cat([x.reshape(rows, -1).float() for x in _examples(self.leaves, rows)], -1)
        features: Any = None
        for _ in range(2):
            outputs = self._step(inputs, state)
            if not (isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], Mapping)):
                raise wrong(self._who, "has initial_state(), so forward() must return (features, next state as a dict)")
            features, state = outputs[0], dict(outputs[1])
            if any(not isinstance(tensor, Tensor) for tensor in state.values()):
                raise wrong(self._who, "must return a state of tensors")
            found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
            if found != expected:
                raise wrong(
                    self._who,
                    f"must return a state of the same shapes and types as initial_state(): for a batch of {rows} "
                    f"{_in_words(expected)}, not {_in_words(found)}",
                )
        return features

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._initial.items()}

    def initial(self, sequences: int) -> dict[str, Array]:
        return {name: np.stack([array] * sequences) for name, array in self._initial.items()}

    def initialize(self, generator: torch.Generator) -> None:
        """The model has drawn its own weights."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for rows in x:
            with running(self._who):
                features, state = self._step(rows, state)
            check_features(self._who, features, rows.shape[0], self.num_outputs)
            outputs.append(features.float())
        return torch.stack(outputs), state

    def _step(self, rows: Tensor, state: State) -> Any:
        sizes = [int(np.prod(leaf.shape)) for leaf in self.leaves]
        observations = tuple(
            part.reshape(rows.shape[0], *leaf.shape).to(_dtype(leaf))
            for part, leaf in zip(torch.split(rows, sizes, -1), self.leaves, strict=True)
        )
        return self.model(nested(observations, self.leaves), state)


def make_model(
    kind: Any, config: Mapping[str, Any], space: spaces.Space[Any], generator: torch.Generator | None
) -> nn.Module:
    """An instance of a custom model. `generator` determines the weights that it draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        keywords = f" and the keyword arguments {', '.join(config)}" if config else ""
        with trying(f"model.custom_model {kind.__name__}", f"when called with the observation space{keywords}"):
            model = kind(space, **config)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.custom_model {kind.__name__}: a torch.nn.Module is needed, not {type(model).__name__}"
        )
    check_layers(model)
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


def _examples(leaves: tuple[Leaf, ...], rows: int) -> tuple[Tensor, ...]:
    """Observations to try a model with: in their spaces, and not 0 where that is possible."""
    return tuple(torch.from_numpy(np.stack([_example(leaf.space)] * rows)).to(_dtype(leaf)) for leaf in leaves)


def _example(space: spaces.Space[Any]) -> Array:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.broadcast_to(np.asarray(space.start), space.shape or ())
    if isinstance(space, spaces.Box):
        example: Array = np.clip(np.full(space.shape, 0.5), space.low, space.high)
        return example
    return np.zeros(space.shape or ())


def _in_words(state: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str:
    """h (2, 16) float32."""
    return ", ".join(f"{name} {shape} {str(kind).removeprefix('torch.')}" for name, (shape, kind) in state.items())

"""Trial of a custom model before a run: its layers, its features for batches of several sizes, its initial state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from outplay.errors import ConfigError
from outplay.policies.foreign import trying
from outplay.policies.recurrent import PREVIOUS

Array = np.ndarray

_BATCHES = (1, 2, 64)


def who(model: nn.Module) -> str:
    return f"model.custom_model {type(model).__name__}"


def wrong(who: str, problem: str) -> ConfigError:
    return ConfigError(f"{who} {problem}")


def check_layers(model: nn.Module) -> None:
    """Raise ConfigError if the model has a layer or a parameter with which a run would not be reproducible."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            raise wrong(
                who(model),
                f"has the layer {name!r}, a {type(layer).__name__}, whose result depends on the other rows of the "
                "batch; use layer normalisation or normalize_observations",
            )
        if layer.training and _is_random(layer):
            raise wrong(
                who(model),
                f"has the layer {name!r}, a {type(layer).__name__} that draws random numbers: runs would not be "
                "reproducible and greedy actions would be random; set its dropout to 0, or leave it out",
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise wrong(who(model), f"has the lazy parameter {name!r}; give its layer the number of inputs")
        if tensor.dtype != torch.float32:
            raise wrong(who(model), f"must have float32 parameters and buffers, and {name!r} is {tensor.dtype}")


def _is_random(layer: nn.Module) -> bool:
    """Whether its results are random. Layers made of others, as a transformer's, are not: their parts are checked."""
    if isinstance(layer, _DropoutNd):
        return bool(layer.p > 0)
    if isinstance(layer, nn.RNNBase):
        return bool(layer.dropout > 0 and layer.num_layers > 1)
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout > 0)
    return isinstance(layer, nn.RReLU) and bool(layer.lower < layer.upper)


def num_features(model: nn.Module, features: Callable[[int], Any]) -> int:
    """The number of features. `features(rows)` are those of a batch of equal observations.

    Raises ConfigError if the model raises, if its features have a wrong shape or are random, or if their number depends
    on the batch. The model is as before afterwards.
    """
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    numbers = {}
    with torch.random.fork_rng(devices=[]):
        for rows in _BATCHES:
            found = _tried(model, features, rows)
            check_features(who(model), found, rows)
            numbers[rows] = int(found.shape[1])
        if len(set(numbers.values())) > 1:
            listed = ", ".join(f"{number} for a batch of {rows}" for rows, number in numbers.items())
            raise wrong(who(model), f"must return the same number of features for every batch, and returned {listed}")
        if not torch.equal(found.nan_to_num(), _tried(model, features, rows).nan_to_num()):
            raise wrong(
                who(model),
                "must return the same features for the same observations, and two calls differ (random numbers, or a "
                "buffer that forward() changes)",
            )
    model.load_state_dict(before)
    return numbers[1]


def _tried(model: nn.Module, features: Callable[[int], Any], rows: int) -> Any:
    """The features for a batch. Small batches also try the gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with (
        trying(who(model), f"for a batch of {rows} observation{'s' * (rows > 1)}"),
        torch.set_grad_enabled(rows == 2 and bool(parameters)),
    ):
        found = features(rows)
        if isinstance(found, Tensor) and found.requires_grad:
            torch.autograd.grad(found.sum(), parameters, allow_unused=True)
    return found


def check_features(who: str, features: Any, rows: int, number: int | None = None) -> None:
    """Raise ConfigError unless features have the shape (rows, number)."""
    if not isinstance(features, Tensor):
        raise wrong(who, f"must return a tensor of features (batch, number), not {type(features).__name__}")
    is_shape = features.dim() == 2 and features.shape[0] == rows and number in (None, features.shape[1])
    if not is_shape or not features.is_floating_point() or not features.shape[1]:
        needed = "number" if number is None else number
        raise wrong(
            who,
            f"must return features of shape (batch, {needed}) as floats: for {rows} observation{'s' * (rows > 1)} it "
            f"returned shape {tuple(features.shape)} of {features.dtype}",
        )


def initial_state(model: nn.Module) -> dict[str, Array]:
    """The state of one episode at its start. Raises ConfigError if it is not a dict of tensors."""
    with trying(who(model), "in initial_state()"), torch.no_grad():
        state = model.initial_state()  # type: ignore[operator]
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()) or not state:
        raise wrong(
            who(model), "must return a dict of tensors from initial_state(): the state of one episode at its start"
        )
    if PREVIOUS in state:
        raise wrong(who(model), f"must not name a state {PREVIOUS!r}")
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

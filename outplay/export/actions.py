"""From the parameters of the action distribution to the environment's actions, in torch: the policy's mode, scaled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.errors import ExportError
from outplay.policies.custom_distribution import CustomDistribution
from outplay.policies.distributions import (
    ActingDistribution,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Independent,
    MultiCategorical,
)
from outplay.policies.scaling import ActionScaling
from outplay.policies.squashed import Deterministic, SquashedGaussian

Path = tuple[str | int, ...]


def action_leaves(space: spaces.Space[Any], path: Path = ()) -> list[tuple[Path, spaces.Space[Any]]]:
    """(path, space) of each part of an action, in the order of `outplay.spaces.action_parts`."""
    if isinstance(space, spaces.Dict):
        return [leaf for key in sorted(space.spaces) for leaf in action_leaves(space.spaces[key], (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in action_leaves(part, (*path, i))]
    return [(path, space)]


def modes(distribution: ActingDistribution, params: Tensor, sizes: list[int], in_numpy: bool) -> list[Tensor]:
    """The most likely actions, one tensor (B,) or (B, n) for each part of the action. Discrete ones count from 0.

    `sizes`: numbers of each part. `in_numpy`: the mode of a custom distribution is computed in numpy, which
    torch.export can trace in its strict mode.
    """
    if isinstance(distribution, Independent):
        return [_mode(part, distribution._part_params(i, params)) for i, part in enumerate(distribution.parts)]
    if not isinstance(distribution, CustomDistribution):
        return [_mode(distribution, params)]
    custom: Any = distribution.custom
    found = torch.as_tensor(custom.mode(params.numpy())) if in_numpy else custom.mode(params)
    if not isinstance(found, Tensor):
        raise ExportError(f"mode() of {type(custom).__name__} returned {type(found).__name__} for a tensor")
    return [found] if len(sizes) == 1 else list(torch.split(found, sizes, -1))


def _mode(distribution: Any, params: Tensor) -> Tensor:
    if isinstance(distribution, Categorical):
        return params.argmax(-1)
    if isinstance(distribution, MultiCategorical):
        return torch.stack([piece.argmax(-1) for piece in torch.split(params, distribution.sizes, -1)], -1)
    if isinstance(distribution, Bernoulli):
        return (params > 0).to(torch.int8)
    if isinstance(distribution, DiagonalGaussian):
        return params[..., : distribution.n]
    if isinstance(distribution, SquashedGaussian):
        return params[..., : distribution.n].tanh()
    if isinstance(distribution, Deterministic):
        return params.tanh()
    raise ExportError(f"the action distribution {type(distribution).__name__} cannot be exported")


class Scaling(nn.Module):
    """`ActionScaling` of one part of an action, in torch. The result has the dtype and the shape of its space."""

    start: Tensor
    middle: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, scaling: ActionScaling) -> None:
        super().__init__()
        self.shape = scaling.shape
        self.is_box, self.clips = scaling.is_box, scaling.clips
        self.rounds = self.is_box and scaling.rounds
        self.is_shifted = bool(np.any(scaling.start))
        self.out_dtype = torch_dtype(np.dtype(scaling.space.dtype))
        arrays: dict[str, Any] = {"start": np.asarray(scaling.start, np.int64)}
        if self.is_box:
            arrays |= {name: getattr(scaling, name) for name in ("middle", "scale", "low", "high")}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))

    def forward(self, actions: Tensor) -> Tensor:
        if not self.is_box:
            actions = actions.reshape(actions.shape[0], *self.shape)
            return (actions + self.start if self.is_shifted else actions).to(self.out_dtype)
        actions = self.middle + self.scale * actions.reshape(actions.shape[0], -1)
        if self.rounds:
            actions = actions.round()
        if self.clips:
            wide = torch.promote_types(actions.dtype, self.low.dtype)
            actions = torch.minimum(torch.maximum(actions.to(wide), self.low.to(wide)), self.high.to(wide))
        return actions.reshape(actions.shape[0], *self.shape).to(self.out_dtype)


class PreviousAction(nn.Module):
    """Encodes actions for the next step, as `PreviousInputs.encoded`: one-hot where they are discrete."""

    def __init__(self, choices: list[int]) -> None:
        """`choices`: for each number of an action, how many values it has; 0 if it is not discrete."""
        super().__init__()
        self.choices = choices
        self.num_outputs = sum(max(1, number) for number in choices)

    def forward(self, parts: list[Tensor]) -> Tensor:
        """(B, num_outputs) from the parts of the policy's actions."""
        columns = [column for part in parts for column in part.reshape(part.shape[0], -1).unbind(-1)]
        encoded = [
            (column.long().unsqueeze(-1) == torch.arange(number)).float() if number else column.float().unsqueeze(-1)
            for column, number in zip(columns, self.choices, strict=True)
        ]
        return torch.cat(encoded, -1)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


def part_sizes(space: spaces.Space[Any]) -> list[int]:
    return [math.prod(part.shape or ()) for _, part in action_leaves(space)]

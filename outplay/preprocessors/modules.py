"""Preprocessors as torch modules, in front of an agent's network.

All buffers are float32: they are parts of the policy's flat vector, so they are sent and saved with the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.preprocessors.frames import LUMINANCE, resampling
from outplay.spaces import Leaf

if TYPE_CHECKING:
    from outplay.preprocessors.base import Preprocessor

Array = np.ndarray


class Op(nn.Module):
    """One step of preprocessing, (B, …) to (B, …). `space` is that of its outputs."""

    space: spaces.Space[Any]


class Preprocessing(nn.Module):
    """The preprocessor of an agent: from the leaves of its observations to those that its network sees."""

    def __init__(self, preprocessor: Preprocessor, leaves: tuple[Leaf, ...]) -> None:
        super().__init__()
        self.steps = nn.ModuleList()
        seen = []
        for leaf in leaves:
            ops = preprocessor.ops(".".join(map(str, leaf.path)), leaf.space)
            self.steps.append(nn.Sequential(*ops))
            seen.append(Leaf(leaf.path, ops[-1].space) if ops else leaf)
        self.leaves = tuple(seen)
        if not any(len(step) for step in self.steps):  # type: ignore[arg-type]
            names = ", ".join(repr(".".join(map(str, leaf.path))) for leaf in leaves)
            raise ConfigError(f"preprocessor: {preprocessor!r} converts no part of the observation ({names})")

    def forward(self, observations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(step(x) for step, x in zip(self.steps, observations, strict=True))


def _float_box(shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf) -> spaces.Box:
    return spaces.Box(low, high, shape, np.float32)


class Affine(Op):
    """(x − shift) · factor + offset, clipped to `bounds` if there are any."""

    shift: Tensor
    factor: Tensor

    def __init__(
        self,
        space: spaces.Space[Any],
        shift: Array,
        factor: Array,
        offset: float,
        bounds: tuple[float, float] | None,
        name: str,
    ) -> None:
        super().__init__()
        _check_box(space, name)
        if tuple(space.shape or ()) != shift.shape:
            raise ConfigError(
                f"preprocessor: {name or 'the observation'} has shape {tuple(space.shape or ())}, but it was fitted to "
                f"rows of shape {shift.shape}"
            )
        self._offset, self._bounds = offset, bounds
        self.space = _float_box(shift.shape, *(bounds or ()))
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32))
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        found = (x.float() - self.shift) * self.factor + self._offset
        return found if self._bounds is None else found.clamp(*self._bounds)


class _Categories(Op):
    categories: Tensor

    def __init__(self, space: spaces.Space[Any], categories: Array, name: str) -> None:
        super().__init__()
        kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, kinds) or categories.dtype.kind not in "biuf":
            raise ConfigError(f"preprocessor: categories of {name or 'the observation'} must be numbers")
        values = torch.tensor(categories.astype(np.float64), dtype=torch.float32)
        if len(np.unique(values.numpy())) != len(categories):
            raise ConfigError(f"preprocessor: categories of {name or 'the observation'} are equal in single precision")
        self.register_buffer("categories", values)

    def _matches(self, x: Tensor) -> Tensor:
        return x.float().unsqueeze(-1) == self.categories


class OneHot(_Categories):
    def __init__(self, space: spaces.Space[Any], categories: Array, name: str) -> None:
        super().__init__(space, categories, name)
        self.space = _float_box((*(space.shape or ()), len(categories)), 0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self._matches(x).float()


class Ordinal(_Categories):
    """The position of the nearest category: an observation that is none has a code, too."""

    def __init__(self, space: spaces.Space[Any], categories: Array, name: str) -> None:
        super().__init__(space, categories, name)
        shape, number = tuple(space.shape or ()), len(categories)
        self.space = spaces.MultiDiscrete(np.full(shape, number)) if shape else spaces.Discrete(number)

    def forward(self, x: Tensor) -> Tensor:
        return (x.float().unsqueeze(-1) - self.categories).abs().argmin(-1)


class Fill(Op):
    """Replaces missing values."""

    fill: Tensor

    def __init__(self, space: spaces.Space[Any], fill: Array, missing: float | None, name: str) -> None:
        super().__init__()
        _check_box(space, name)
        if fill.dtype.kind not in "biuf" or fill.shape not in ((), tuple(space.shape or ())):
            raise ConfigError(f"preprocessor: SimpleImputer does not fit {name or 'the observation'} of space {space}")
        self._missing = missing
        self.space = _float_box(tuple(space.shape or ()))
        self.register_buffer("fill", torch.tensor(fill, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        values = x.float()
        is_missing = values.isnan() if self._missing is None else values == self._missing
        return torch.where(is_missing, self.fill, values)


class Gray(Op):
    weights: Tensor

    def __init__(self, space: spaces.Space[Any], axis: int) -> None:
        super().__init__()
        self._axis = axis
        shape = list(space.shape or ())
        del shape[axis]
        self.space = _bytes_box(tuple(shape))
        self.register_buffer("weights", torch.tensor(LUMINANCE))

    def forward(self, x: Tensor) -> Tensor:
        return _as_bytes(torch.movedim(x, self._axis, -1).float() @ self.weights)


class Resampled(Op):
    vertical: Tensor
    horizontal: Tensor

    def __init__(self, space: spaces.Space[Any], axes: tuple[int, int], size: tuple[int, int]) -> None:
        super().__init__()
        self._axes = axes
        shape = list(space.shape or ())
        for name, axis, new in zip(("vertical", "horizontal"), axes, size, strict=True):
            self.register_buffer(name, torch.tensor(resampling(shape[axis], new), dtype=torch.float32))
            shape[axis] = new
        self.space = _bytes_box(tuple(shape))

    def forward(self, x: Tensor) -> Tensor:
        found = x.float()
        for matrix, axis in zip((self.vertical, self.horizontal), self._axes, strict=True):
            found = torch.movedim(torch.movedim(found, axis, -1) @ matrix.T, -1, axis)
        return _as_bytes(found)


class Part(Op):
    """A part of each row."""

    def __init__(self, space: spaces.Space[Any], index: tuple[slice, ...]) -> None:
        super().__init__()
        self._index = (slice(None), *index)
        shape = np.empty(space.shape or (), np.uint8)[index].shape
        self.space = _bytes_box(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x[self._index]


def _check_box(space: spaces.Space[Any], name: str) -> None:
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ConfigError(
            f"preprocessor: {name or 'the observation'} has the space {space}; only a Box can be scaled or filled"
        )


def _bytes_box(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def _as_bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)

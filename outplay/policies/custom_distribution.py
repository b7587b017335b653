"""Custom action distributions: a user's class with the methods of `Distribution`, checked before a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from outplay.errors import ConfigError
from outplay.policies.distributions import distribution_for
from outplay.policies.foreign import running, trying
from outplay.spaces import action_parts, in_one_line, is_composite

Array = np.ndarray

_METHODS = ("sample", "mode", "log_prob", "entropy", "kl")
_ATTRIBUTES = ("num_params", "num_constant", "shape")
_MOST_ROWS = 64


class CustomDistribution:
    """An instance `custom` of a user's class. What its methods raise is attributed to the class."""

    def __init__(self, kind: type, space: spaces.Space[Any]) -> None:
        self._who = f"model.custom_action_dist {kind.__name__}"
        self._check_names(kind, _METHODS)
        with trying(self._who, f"when called with the action space {in_one_line(space)}"):
            self.custom = kind(space)
        self._check_names(self.custom, _ATTRIBUTES)
        self.num_params: int = self.custom.num_params
        self.num_constant: int = self.custom.num_constant
        self.shape: tuple[int, ...] = self.custom.shape
        self._check_attributes(space)
        for rows in (1, min(max(2, self.num_params), _MOST_ROWS)):
            with trying(self._who, f"for a batch of {rows}"):
                self._try(space, _examples(rows, self.num_params))

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        with running(f"{self._who}: sample()"):
            return self.custom.sample(params, rng)  # type: ignore[no-any-return]

    def mode(self, params: Array) -> Array:
        with running(f"{self._who}: mode()"):
            return self.custom.mode(params)  # type: ignore[no-any-return]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        with running(f"{self._who}: log_prob()"):
            return self.custom.log_prob(params, actions)  # type: ignore[no-any-return]

    def entropy(self, params: Tensor) -> Tensor:
        with running(f"{self._who}: entropy()"):
            return self.custom.entropy(params)  # type: ignore[no-any-return]

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        with running(f"{self._who}: kl()"):
            return self.custom.kl(old, new)  # type: ignore[no-any-return]

    def check_masks(self, sizes: list[int]) -> None:
        """Raise ConfigError unless action masks of these sizes fit the parameters."""
        if sum(sizes) != self.num_params:
            raise self._wrong(
                f"has {self.num_params} parameters, and action masks have {sum(sizes)} entries: masks are applied to "
                "the parameters as logits, so the numbers must be equal"
            )

    def _check_names(self, owner: Any, names: tuple[str, ...]) -> None:
        if missing := [name for name in names if not hasattr(owner, name)]:
            is_network = isinstance(owner, type) and issubclass(owner, torch.nn.Module)
            hint = "; a network is a custom_model" if is_network else ""
            raise self._wrong(
                f"has no {', '.join(missing)}; outplay.policies.Distribution lists what a distribution needs{hint}"
            )

    def _check_attributes(self, space: spaces.Space[Any]) -> None:
        for name, least in (("num_params", 1), ("num_constant", 0)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                raise self._wrong(
                    f"has {name} {value!r}; a number of at least {least} is needed (the class is called with the "
                    "action space)"
                )
        if self.num_constant >= self.num_params:
            raise self._wrong(
                f"has num_constant {self.num_constant}, which must be less than num_params, {self.num_params}"
            )
        if self.shape != (needed := distribution_for(space).shape):
            raise self._wrong(
                f"has shape {self.shape!r}; an action of {in_one_line(space)} has shape {needed} in a policy"
            )

    def _try(self, space: spaces.Space[Any], params: Array) -> None:
        """Call all methods once, and check what they return."""
        drawn = self.custom.sample(params, np.random.default_rng(0))
        self._check_actions("sample", drawn, space, len(params))
        flat: Array = np.zeros((_MOST_ROWS, self.num_params), np.float32)  # so many draws do not agree by chance
        first, second = (self.custom.sample(flat, np.random.default_rng(0)) for _ in range(2))
        if not np.array_equal(first, second):
            raise self._wrong("must draw from the generator that sample() gets: two calls with one seed differ")
        self._check_actions("mode", self.custom.mode(params), space, len(params))
        tensor = torch.from_numpy(params).requires_grad_()
        actions = torch.from_numpy(np.asarray(drawn))
        with torch.enable_grad():
            for name, result in (
                ("log_prob", self.custom.log_prob(tensor, actions)),
                ("entropy", self.custom.entropy(tensor)),
                ("kl", self.custom.kl(tensor.detach().roll(1, 0), tensor)),
            ):
                if not isinstance(result, Tensor) or result.shape != (len(params),) or not result.is_floating_point():
                    raise self._wrong(f"must return from {name}() {_expected(len(params), result)}")
                if result.requires_grad:
                    torch.autograd.grad(result.sum(), tensor, allow_unused=True)

    def _check_actions(self, method: str, actions: Any, space: spaces.Space[Any], rows: int) -> None:
        """Raise ConfigError unless `actions` (rows, *shape) are in the space, where numbers of Discrete start at 0."""
        expected = (rows, *self.shape)
        if not isinstance(actions, np.ndarray) or actions.shape != expected or actions.dtype.kind not in "iufb":
            found = f"of shape {actions.shape}" if isinstance(actions, np.ndarray) else type(actions).__name__
            raise self._wrong(f"must return from {method}() a numpy array of numbers of shape {expected}, not {found}")
        choices = np.array([number for part in action_parts(space) for number in _choices(part)])
        numbers = actions.reshape(rows, -1)
        if not is_composite(space) and choices.all() and actions.dtype.kind == "f":
            raise self._wrong(f"must return integers from {method}(), not {actions.dtype}")
        is_outside = (choices > 0) & ((numbers < 0) | (numbers >= choices) | (numbers != np.floor(numbers)))
        if is_outside.any():
            row, column = np.argwhere(is_outside)[0]
            raise self._wrong(
                f"must return from {method}() actions of {in_one_line(space)}, counted from 0: {numbers[row, column]} "
                f"is none of the {choices[column]} choices"
            )

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._who} {problem}")


def _examples(rows: int, num_params: int) -> Array:
    """Parameters of which one after the other is the largest."""
    params: Array = np.zeros((rows, num_params), np.float32)
    params[np.arange(rows), np.linspace(num_params - 1, 0, rows).astype(int)] = 3.0
    return params


def _choices(space: spaces.Space[Any]) -> list[int]:
    """For each number of an action: how many values it has; 0 if it is not discrete."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [2 if isinstance(space, spaces.MultiBinary) else 0] * int(np.prod(space.shape or ()))


def _expected(rows: int, result: Any) -> str:
    found = f"{result.dtype} of shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
    return f"a tensor of floats with one number per row, here of shape ({rows},), not {found}"

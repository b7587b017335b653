"""Checks an exported policy against the policy itself, on random observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import ExportError
from outplay.export.actions import action_leaves
from outplay.export.formats import Runner
from outplay.export.module import MASK, PREVIOUS_ACTION, PREVIOUS_REWARD, PolicyModule, own_copy
from outplay.masks import mask_sizes
from outplay.policies import Policy
from outplay.policies.recurrent import PREVIOUS
from outplay.sequences import Padded
from outplay.spaces import Leaf, Leaves, nested_action

Array = np.ndarray

OBSERVATIONS = 1000
_ROWS = 50  # per call
_RANGE, _INTEGERS = 10.0, 1000.0  # of random observations without bounds
_TOLERANCE = 1e-4  # of parameters, relative to the largest of them: float32 sums in another order


@dataclass(frozen=True)
class Verified:
    """How many of `observations` gave the same action. In the others, two actions are equally good up to rounding."""

    observations: int
    equal: int


def verify(module: PolicyModule, policy: Policy, run: Runner, observations: int = OBSERVATIONS) -> Verified:
    """Compare the file, through `run`, with the policy. Raises ExportError if it does not act as the policy does.

    A recurrent policy plays sequences, each side with its own state.
    """
    rng = np.random.default_rng(0)
    reference = own_copy(policy)
    lanes, steps = _ROWS, -(-observations // _ROWS)
    state = reference.initial_state(lanes)
    own = {name: np.stack([array] * lanes) for name, array in module.initial_state().items()}
    equal = 0
    for _ in range(steps):
        rows = random_rows(reference.leaves, lanes, rng)
        mask = random_masks(mask_sizes(reference.action_space), lanes, rng) if module.has_mask else None
        rewards = rng.standard_normal(lanes).astype(np.float32)
        if PREVIOUS in state:
            state = reference.with_rewards(state, rewards)
        actions, state, extras = reference.act(rows, state, mask, False, rng)
        outputs = run(feed(module, rows, mask, rewards, own))
        own = {name: outputs[f"next_{name}"] for name in own}
        _check(module, reference, outputs, extras["dist"], mask)
        is_equal = _equal_rows(module, reference, outputs, reference.to_env(actions))
        if module.previous is not None:  # where they chose otherwise, both continue with the policy's action
            encoded = state[PREVIOUS][:, : module.previous.num_outputs]
            name = f"state.{PREVIOUS_ACTION}"
            own[name] = np.where(is_equal[:, None], own[name], encoded)
        equal += int(is_equal.sum())
    return Verified(lanes * steps, equal)


def feed(
    module: PolicyModule, rows: Leaves, mask: Array | None, rewards: Array, state: dict[str, Array]
) -> dict[str, Array]:
    """The inputs by name."""
    found = dict(zip(module.leaf_names, rows, strict=True))
    if mask is not None:
        found[MASK] = mask
    if module.uses_reward:
        found[PREVIOUS_REWARD] = rewards
    return {**found, **state}


def _check(module: PolicyModule, policy: Policy, outputs: dict[str, Array], params: Array, mask: Array | None) -> None:
    """The parameters are those of the policy up to rounding, and the actions are the mode of these parameters."""
    found = outputs[module.params_name]
    if mask is not None and (found[~mask] != params[~mask]).any():
        raise ExportError("the exported policy does not act as the policy: it does not apply action masks")
    allowed = np.ones(params.shape, bool) if mask is None else mask
    limit = _TOLERANCE * max(1.0, float(np.abs(params[allowed]).max(initial=0.0)))
    difference = float(np.abs(found - params)[allowed].max(initial=0.0))
    if not difference <= limit:  # also if it is not a number
        is_foreign = not type(policy).__module__.startswith("outplay.")
        hint = f"; {type(policy).__name__} may override what the graph contains" if is_foreign else ""
        raise ExportError(
            f"the exported policy does not act as the policy: its {module.params_name} differ by {difference:.2g}{hint}"
        )
    chosen = policy.to_env(policy._choose(found, mask, False, np.random.default_rng(0)))
    if not _equal_rows(module, policy, outputs, chosen, rounding=1).all():
        raise ExportError("the exported policy does not act as the policy: its actions are not the mode of its params")


def _equal_rows(
    module: PolicyModule, policy: Policy, outputs: dict[str, Array], expected: Array, rounding: int = 0
) -> Array:
    """For each row, whether the action is the expected one: exactly, or for a Box of floats within 1e-5.

    `rounding`: how much numbers of a Box of integers may differ. Next to a half, they are rounded up or down.
    """
    space, rows = policy.action_space, len(expected)
    equal = np.ones(rows, bool)
    parts = [_leaves_of(space, nested_action(space, row)) for row in expected]
    for i, (name, (_, part_space)) in enumerate(zip(module.action_names, action_leaves(space), strict=True)):
        found, wanted = outputs[name], np.stack([np.asarray(part[i]) for part in parts])
        if found.dtype.kind == "f":
            scale = np.maximum(np.abs(wanted), 1.0)
            same = np.abs(found - wanted) <= 1e-5 * scale
        elif isinstance(part_space, spaces.Box):
            same = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) <= rounding
        else:
            same = found == wanted
        equal &= same.reshape(rows, -1).all(-1)
    return equal


def _leaves_of(space: spaces.Space[Any], action: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        return [leaf for key in sorted(space.spaces) for leaf in _leaves_of(space.spaces[key], action[key])]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, action, strict=True)
        return [leaf for part, inner in pairs for leaf in _leaves_of(part, inner)]
    return [action]


def random_rows(leaves: tuple[Leaf, ...], rows: int, rng: np.random.Generator) -> Leaves:
    """Random observations."""
    return tuple(_random(leaf, rows, rng) for leaf in leaves)


def _random(leaf: Leaf, rows: int, rng: np.random.Generator) -> Array:
    space, shape = leaf.space, (rows, *leaf.shape)
    if isinstance(space, Padded):
        return _random_sequences(space, rows, rng)
    if isinstance(space, spaces.Discrete):
        chosen: Array = space.start + rng.integers(0, space.n, shape)
        return chosen.astype(leaf.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(0, space.nvec, shape)).astype(leaf.dtype)
    if isinstance(space, spaces.MultiBinary) or leaf.dtype == bool:
        return rng.integers(0, 2, shape).astype(leaf.dtype)
    assert isinstance(space, spaces.Box)
    is_integer = leaf.dtype.kind in "iu"
    most = _INTEGERS if is_integer else _RANGE
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    low = np.where(low > -most, low, np.minimum(-most, high - most).clip(min=low))
    high = np.where(high < most, high, np.maximum(most, low + most).clip(max=high))
    drawn: Array = rng.uniform(low, high + is_integer, shape)
    return (np.floor(drawn) if is_integer else drawn).clip(low, high).astype(leaf.dtype)


def _random_sequences(space: Padded, rows: int, rng: np.random.Generator) -> Array:
    lengths = rng.integers(0, space.max_length + 1, rows)
    is_present = np.arange(space.max_length) < lengths[:, None]
    if isinstance(space.element, spaces.Discrete):
        return np.where(is_present, rng.integers(1, space.element.n + 1, is_present.shape), 0).astype(space.dtype)
    numbers = rng.standard_normal((rows, *(space.shape or ())))
    numbers[..., 0] = 1.0
    return (numbers * is_present[..., None]).astype(space.dtype)


def random_masks(sizes: list[int], rows: int, rng: np.random.Generator) -> Array:
    """Random masks that allow at least one choice in each part."""
    parts = []
    for size in sizes:
        part = rng.random((rows, size)) < 0.5
        part[np.arange(rows), rng.integers(0, size, rows)] = True
        parts.append(part)
    return np.concatenate(parts, -1)

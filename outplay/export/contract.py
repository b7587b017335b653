"""The contract: what goes into an exported policy and what comes out, as JSON beside the file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from outplay.export.actions import action_leaves
from outplay.export.module import MASK, PREVIOUS_ACTION, PREVIOUS_REWARD, VALUE, PolicyModule
from outplay.masks import MaskPart, mask_key
from outplay.policies.distributions import Bernoulli, DiagonalGaussian, Independent, MultiCategorical
from outplay.policies.squashed import Deterministic, SquashedGaussian
from outplay.sequences import Padded
from outplay.spaces import Leaf, LeftOut, left_out

VERSION = 1  # of the contract
BATCH = "batch"  # the name of the dynamic axis


def contract(module: PolicyModule) -> dict[str, Any]:
    """The inputs and outputs of a policy, and its spaces."""
    policy = module.policy
    trained = policy.spec.model.precision
    return {
        "contract_version": VERSION,
        "actions": "deterministic: the mode of the policy",
        "precision": "float32",
        "trained_precision": trained,
        "inputs": _inputs(module),
        "outputs": _outputs(module),
        "observation_space": described_space(policy.observation_space),
        "ignored_observations": left_out(policy.observation_space),
        "normalize_observations": policy.spec.normalize_observations,
        "action_space": described_space(policy.action_space),
    }


def _entry(name: str, role: str, dtype: torch.dtype, shape: tuple[int, ...], meaning: str) -> dict[str, Any]:
    kind = str(dtype).removeprefix("torch.")
    return {"name": name, "role": role, "dtype": kind, "shape": [BATCH, *shape], "meaning": meaning}


def _inputs(module: PolicyModule) -> list[dict[str, Any]]:
    leaves = dict(zip(module.leaf_names, module.policy.leaves, strict=True))
    initial = module.initial_state()
    found = []
    for name, (dtype, shape) in module.inputs().items():
        if name in leaves:
            leaf = leaves[name]
            entry = _entry(name, "observation", dtype, shape, _observation_meaning(leaf))
            entry |= {"path": list(leaf.path), "space": described_space(leaf.space)}
        elif name == MASK:
            entry = _entry(name, "action_mask", dtype, shape, "true where a choice is allowed")
            entry |= _mask_source(module.policy.observation_space)
        elif name == PREVIOUS_REWARD:
            entry = _entry(name, "previous_reward", dtype, shape, "the reward of the last step; 0 in the first one")
        else:
            meaning = "the recurrent state: `initial` at the start of an episode, then the output `next`"
            entry = _entry(name, "state", dtype, shape, meaning)
            entry |= {"initial": _compact(initial[name]), "next": f"next_{name}"}
        found.append(entry)
    return found


def _mask_source(space: spaces.Space[Any]) -> dict[str, Any]:
    """Where the mask is in an observation: its path; None if the environment gives it otherwise."""
    key = mask_key(space)
    if key is None:
        return {"path": None}
    assert isinstance(space, spaces.Dict)
    part = space.spaces[key]
    assert isinstance(part, MaskPart)
    return {"path": [key], "stack": part.stack}  # of stacked masks, the last one


def _observation_meaning(leaf: Leaf) -> str:
    if not isinstance(leaf.space, Padded):
        return f"{leaf.name}, as the environment returns it"
    if leaf.space.is_text:
        return f"{leaf.name}: for each character min(code, 255) + 1, then zeros"
    if isinstance(leaf.space.element, spaces.Discrete):
        return f"{leaf.name}: each element minus its space's start plus 1, then zeros"
    return f"{leaf.name}: for each element a row of 1 and its numbers, then rows of zeros"


def _outputs(module: PolicyModule) -> list[dict[str, Any]]:
    with torch.no_grad():
        tensors = module(module.examples(2))
    actions = dict(zip(module.action_names, action_leaves(module.policy.action_space), strict=True))
    found = []
    for name, tensor in tensors.items():
        dtype, shape = tensor.dtype, tuple(tensor.shape[1:])
        if name in actions:
            path, space = actions[name]
            entry = _entry(name, "action", dtype, shape, "the action, as the environment takes it")
            entry |= {"path": list(path), "space": described_space(space)}
        elif name.startswith("next_state."):
            is_action = name.endswith(f".{PREVIOUS_ACTION}")
            meaning = "this action, encoded" if is_action else "the recurrent state after this step"
            entry = _entry(
                name, "state", dtype, shape, f"{meaning}: the input {name.removeprefix('next_')} of the next"
            )
        elif name == VALUE:
            entry = _entry(name, "value", dtype, shape, "the estimated return from here on")
        else:
            entry = _entry(name, "params", dtype, shape, _params_meaning(module))
        found.append(entry)
    return found


def _params_meaning(module: PolicyModule) -> str:
    distribution = module.policy.distribution
    masked = "; -1e30 where the mask forbids it" if module.has_mask else ""
    if module.params_name == "q_values":
        return f"the Q-value of each action{masked}"
    if isinstance(distribution, Bernoulli):
        return "the logit of 1, for each number of the action"
    if isinstance(distribution, MultiCategorical):
        return f"the logits of the choices, part by part{masked}"
    if module.params_name == "logits":
        return f"the logit of each action{masked}"
    if isinstance(distribution, DiagonalGaussian):
        return "means, then log standard deviations, before scaling to the action space"
    if isinstance(distribution, SquashedGaussian):
        return "means, then log standard deviations, before tanh"
    if isinstance(distribution, Deterministic):
        return "the action before tanh"
    if isinstance(distribution, Independent):
        return "part by part: logits, or means; then the log standard deviations of all parts"
    return "the parameters of the custom distribution"


def described_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as JSON."""
    kind: dict[str, Any] = {"type": type(space).__name__}
    if isinstance(space, spaces.Dict):
        return kind | {"spaces": {str(key): described_space(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return kind | {"spaces": [described_space(part) for part in space.spaces]}
    if isinstance(space, MaskPart):
        return {"type": "ActionMask", "sizes": space.sizes}
    if isinstance(space, LeftOut):
        return {"type": "Text", "ignored": True}
    if isinstance(space, Padded):
        element = {} if space.is_text else {"element": described_space(space.element)}
        return {"type": "Text" if space.is_text else "Sequence", "max_length": space.max_length} | element
    kind |= {"dtype": str(np.dtype(space.dtype)), "shape": list(space.shape or ())}
    if isinstance(space, spaces.Discrete):
        return kind | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return kind | {"nvec": space.nvec.tolist(), "start": _compact(space.start)}
    if isinstance(space, spaces.Box):
        return kind | {"low": _compact(space.low), "high": _compact(space.high)}
    return kind


def _compact(array: np.ndarray) -> Any:
    """An array as JSON: a number if all its values are equal. None stands for values that are not finite."""
    if array.size and (array == array.flat[0]).all():
        number = array.flat[0].item()
        return number if math.isfinite(number) else None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        numbers = array.astype(object)
        numbers[~np.isfinite(array)] = None
        return numbers.tolist()
    return array.tolist()

"""PolicyModule: one torch module from the environment's observations to its actions. All formats are made of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outplay.export.actions import PreviousAction, Scaling, action_leaves, modes, part_sizes, torch_dtype
from outplay.masks import mask_sizes
from outplay.policies import Policy, QPolicy, masked
from outplay.policies.box import Actor
from outplay.policies.custom_distribution import CustomDistribution
from outplay.policies.distributions import Bernoulli, Categorical, MultiCategorical
from outplay.policies.qnetwork import QNetwork
from outplay.policies.recurrent import Memory
from outplay.policies.sparse import SparseLinear

Array = np.ndarray

ACTION = "action"
MASK = "action_mask"
PREVIOUS_ACTION = "previous_action"
PREVIOUS_REWARD = "previous_reward"
VALUE = "value"


class PolicyModule(nn.Module):
    """The deterministic policy as a function of named tensors, each with the batch as its first axis.

    >>> module = PolicyModule(policy)
    >>> outputs = module({"observation": observations})  # {"action": …, "logits": …}

    Inputs are the leaves of the observation as the environment returns them and, if the policy has them, the action
    mask, the recurrent state and the previous reward. Outputs are the actions as the environment takes them, the
    recurrent state after the step, and the parameters the actions were chosen by. It computes in float32.
    """

    def __init__(self, policy: Policy, in_numpy: bool = False) -> None:
        """`in_numpy`: see `modes`."""
        super().__init__()
        self.policy = own_copy(policy)  # not a module: its network is
        self.network = self.policy.network
        self.in_numpy = in_numpy
        self.leaf_names = _unique([_joined("observation", leaf.path) for leaf in policy.leaves])
        self.action_names = _unique([_joined(ACTION, path) for path, _ in action_leaves(policy.action_space)])
        self._sizes = part_sizes(policy.action_space)
        scaling = policy.spec.action_scaling()
        self.scalings = nn.ModuleList(Scaling(part) for part in scaling.parts or [scaling])
        self.has_mask = policy.spec.with_masks
        core = self.network.core
        self.state_names = [] if core is None else list(core.shapes())
        previous = self.policy._previous
        self.previous = PreviousAction(previous._choices) if core is not None and previous._choices else None
        self.uses_reward = core is not None and previous.uses_reward
        self.params_name = _params_name(policy)
        self.has_value = self.policy._values_when_acting

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        memory = self._memory(inputs)
        outputs = self.policy._outputs(tuple(inputs[name] for name in self.leaf_names), memory)
        params = outputs[:, : self.policy.distribution.num_params]
        if self.has_mask:
            params = masked(params, inputs[MASK])
        parts = modes(self.policy.distribution, params, self._sizes, self.in_numpy)
        named = zip(self.action_names, self.scalings, parts, strict=True)
        found: dict[str, Tensor] = {name: scaling(part) for name, scaling, part in named}
        if memory is not None:
            found |= {f"next_state.{name}": memory.next_state[name] for name in self.state_names}
            if self.previous is not None:
                found[f"next_state.{PREVIOUS_ACTION}"] = self.previous(parts)
        found[self.params_name] = params
        if self.has_value:
            found[VALUE] = outputs[:, -1]
        return found

    def _memory(self, inputs: dict[str, Tensor]) -> Memory | None:
        if self.network.core is None:
            return None
        previous = [inputs[f"state.{PREVIOUS_ACTION}"]] if self.previous is not None else []
        if self.uses_reward:
            previous.append(inputs[PREVIOUS_REWARD].unsqueeze(-1))
        state = {name: inputs[f"state.{name}"] for name in self.state_names}
        return Memory(state, previous=torch.cat(previous, -1) if previous else None)

    def initial_state(self) -> dict[str, Array]:
        """The recurrent state of one episode at its start, by the names of the inputs."""
        if self.network.core is None:
            return {}
        initial = {f"state.{name}": array[0] for name, array in self.network.core.initial(1).items()}
        if self.previous is not None:
            initial[f"state.{PREVIOUS_ACTION}"] = np.zeros(self.previous.num_outputs, np.float32)
        return initial

    def inputs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """(dtype, shape without the batch axis) of each input."""
        pairs = zip(self.leaf_names, self.policy.leaves, strict=True)
        found = {name: (torch_dtype(leaf.dtype), leaf.shape) for name, leaf in pairs}
        if self.has_mask:
            found[MASK] = (torch.bool, (sum(mask_sizes(self.policy.action_space)),))
        if self.uses_reward:
            found[PREVIOUS_REWARD] = (torch.float32, ())
        state = self.initial_state().items()
        return found | {name: (torch_dtype(array.dtype), array.shape) for name, array in state}

    def examples(self, rows: int) -> dict[str, Tensor]:
        """Inputs to trace the module with."""
        found = {name: torch.zeros((rows, *shape), dtype=dtype) for name, (dtype, shape) in self.inputs().items()}
        return found | ({MASK: torch.ones_like(found[MASK])} if self.has_mask else {})

    @property
    def custom_parts(self) -> str:
        """The settings of the user's own classes in it; empty without one."""
        model = self.policy.spec.model
        has_distribution = isinstance(self.policy.distribution, CustomDistribution)
        names = [("model.custom_model", model.custom_model)] * self.network.is_custom
        names += [("model.custom_action_dist", model.custom_action_dist)] * has_distribution
        return " and ".join(f"{setting} {getattr(kind, '__name__', kind)}" for setting, kind in names)


def own_copy(policy: Policy) -> Policy:
    """A copy on the CPU that computes in float32, and whose tensors are not views of one vector."""
    own = copy.deepcopy(policy).to("cpu")
    network = own.network
    network.autocasts, network.dtype, network._frozen = False, torch.float32, None
    own._dense = None
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.requires_grad_(False)
        tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(network, QNetwork):
        network.draw_noise(None)
    if isinstance(network, Actor):
        network.is_fused = False
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, SparseLinear):
                setattr(module, name, _DenseLinear(child))
    return own


class _DenseLinear(nn.Module):
    """A SparseLinear that also reads the zeros: the graph has no shapes that depend on values."""

    def __init__(self, sparse: SparseLinear) -> None:
        super().__init__()
        self.weight, self.bias = sparse.weight, sparse.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight.T, self.bias)


def _params_name(policy: Policy) -> str:
    if isinstance(policy, QPolicy):
        return "q_values"
    is_logits = isinstance(policy.distribution, (Categorical, MultiCategorical, Bernoulli))
    return "logits" if is_logits else "params"


def _joined(first: str, path: tuple[Any, ...]) -> str:
    """observation.camera.0."""
    return ".".join([first, *map(str, path)])


def _unique(names: list[str]) -> list[str]:
    """Names that are all different: keys of a Dict may contain dots."""
    found: list[str] = []
    for name in names:
        number, new = 2, name
        while new in found:
            new, number = f"{name}_{number}", number + 1
        found.append(new)
    return found

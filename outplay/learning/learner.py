"""The Learner: owns the trained networks, their optimizer and the observation normalisers.

`OnPolicyLearner` (onpolicy.py) and `ReplayLearner` (offpolicy.py) extend it; an algorithm extends one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from outplay.config import AlgorithmConfig
from outplay.cudagraphs import CapturedStep, Minibatch
from outplay.fragments import Batch, Fragment
from outplay.learning.optimizers import Optimizer, ParameterGroup
from outplay.metrics import RunningMoments
from outplay.policies import Policy, is_normalisable
from outplay.policies.flat import flatten
from outplay.policies.network import Network
from outplay.schema import FiniteNumber, Part, check_array, validated_part
from outplay.settings import at
from outplay.spaces import Leaves

Array = np.ndarray
C = TypeVar("C", bound=AlgorithmConfig)
Segments = Mapping[str, Callable[[], dict[str, Array]]]  # by name: a function that returns the arrays of a segment
JsonAndTensors = tuple[dict[str, Any], dict[str, Tensor]]

_MAX_IMAGES = 128  # per batch, for the moments of image observations


class LearnerState(Part):
    """What a learner writes as JSON. Subclasses add the state of their algorithm."""

    counts: dict[str, Annotated[FiniteNumber, Field(ge=0)]]


class Learner(Generic[C]):
    """Trains a policy's network.

    A synchronous algorithm calls `update(batch, …)` once per iteration. An asynchronous one calls `take(fragments, …)`
    for experience as it arrives, `learn(n)` for at most `due` updates, and `metrics()` once per iteration.

    `frame_stack` is the number of frames that each observation stacks; a replay buffer stores them once.
    """

    State: ClassVar[type[LearnerState]] = LearnerState
    supports_recurrence: ClassVar[bool] = True  # whether it can train recurrent networks

    def __init__(self, policy: Policy, config: C, frame_stack: int = 1) -> None:
        self.config = config
        self.frame_stack = frame_stack
        self.device = torch.device("cuda" if config.num_gpus else "cpu")
        self.policy = policy
        self.network = policy.network
        self.distribution = policy.distribution
        self.updates = 0  # gradient updates so far, where the learner counts them
        self.networks: dict[str, Tensor] = {}  # flat vectors of the networks beside the policy's, by name
        self._normalised: list[nn.Module] = [self.network]
        self.moments = {i: RunningMoments(leaf.shape) for i, leaf in enumerate(policy.leaves) if is_normalisable(leaf)}
        self.make_networks()
        self.optimizer = Optimizer(self.parameter_groups())
        self._captured: dict[int, CapturedStep[Any]] = {}  # by the number of rows

    def make_networks(self) -> None:
        """Make the networks that are trained beside the policy's (critics, a temperature), with `add_network`."""

    def add_network(self, name: str, network: nn.Module) -> Tensor:
        """Train and save a network beside the policy's. Returns its parameters as one flat vector."""
        flat = self.networks[name] = flatten(network, self.device)
        for part in network.modules():
            if isinstance(part, Network):
                part.normalises = self.network.normalises
                self._normalised.append(part)
        return flat

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        """The named parameter groups of the optimizer: one, unless a subclass splits it."""
        return [ParameterGroup("policy", self.policy.parameters, self.policy.flat, self.config.optimizer)]

    # Learning, synchronous or asynchronous.

    def start_iteration(self) -> None:
        """Called before each iteration collects."""

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        """Learn from one Batch and return metrics. `timesteps` are those before the Batch."""
        raise TypeError(f"{type(self).__name__} cannot learn synchronously: it has no update()")

    def take(self, fragments: Sequence[Fragment], timesteps: int) -> None:  # noqa: ARG002
        """Accept new experience; `timesteps` include it."""
        raise TypeError(f"{type(self).__name__} cannot learn asynchronously: it has no take()")

    @property
    def due(self) -> int:
        """How many updates can be made now."""
        return 0

    def learn(self, updates: int) -> None:
        """Make this many updates."""

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        return {}

    # What updates are built from.

    def lr(self, timesteps: int) -> float:
        return at(self.config.lr_schedule, self.config.lr, timesteps)

    @property
    def captures(self) -> bool:
        """Whether steps run as CUDA graphs: on a GPU, if the network allows it."""
        return self.device.type == "cuda" and self.network.capturable

    def captured(
        self, step: Callable[..., tuple[Tensor, dict[str, Tensor]]], rows: Minibatch, *scalars: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`step(rows, *scalars)` as a CUDA graph, captured once per number of rows."""
        if len(rows) not in self._captured:
            self._captured[len(rows)] = CapturedStep(step, rows, scalars, self.optimizer.tensors)
        return self._captured[len(rows)](rows, *scalars)

    def rewards(self, batch: Batch | Fragment) -> Array:
        """Rewards scaled by `reward_scale` and clipped by `clip_rewards`."""
        scaled = batch.rewards * np.float32(self.config.reward_scale)
        limit = self.config.clip_rewards
        return scaled if limit is None else scaled.clip(-limit, limit)

    def no_bootstrap(self, batch: Batch | Fragment) -> Array:
        """Where nothing is bootstrapped: at terminations, and at rewards with `cut_returns_at_rewards`."""
        if not self.config.cut_returns_at_rewards:
            return batch.terminated
        ends: Array = batch.terminated | (batch.rewards != 0)
        return ends

    def tensors(self, observations: Leaves) -> tuple[Tensor, ...]:
        """Observations on the device, in the layout that the network takes."""
        return self.network.arranged(tuple(self.tensor(leaf) for leaf in observations))

    def tensor(self, array: Array) -> Tensor:
        # Arrays from another process are read-only, and torch would warn; nothing here writes into them.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    # Observation normalisers: updated once per iteration, from the whole Batch in EnvGroup order.

    @property
    def is_normaliser_fitted(self) -> bool:
        return all(moments.count > 0 for moments in self.moments.values())

    @torch.no_grad()
    def update_normalisers(self, batch: Batch) -> None:
        for i, moments in self.moments.items():
            is_image = self.policy.leaves[i].is_image
            if is_image:  # images are large and similar: a sample of them is enough, in single precision
                images = self.tensor(batch.subsample(i, _MAX_IMAGES)).float()
                mean = images.mean(0)
                square = images.sub_(mean).square_().mean(0)
                moments.merge(len(images), mean.double().cpu().numpy(), square.double().cpu().numpy())
            else:
                moments.update(batch.rows(batch.observations[i]))
            variance = moments.variance.mean() if is_image else moments.variance
            for network in self._normalised:
                getattr(network, f"observation_mean_{i}").copy_(torch.from_numpy(moments.mean))
                getattr(network, f"observation_scale_{i}").copy_(torch.as_tensor(1.0 / np.sqrt(variance + 1e-8)))

    # State.

    def state(self) -> JsonAndTensors:
        """The learner's state beside the weights: (what is written as JSON, what is written as tensors)."""
        return {"counts": {str(i): m.count for i, m in self.moments.items()}}, self.fixed_tensors()

    def fixed_tensors(self) -> dict[str, Tensor]:
        """The saved tensors whose shapes never change."""
        moments = {
            f"moments.{i}.{name}": torch.from_numpy(np.array(value))
            for i, m in self.moments.items()
            for name, value in (("mean", m.mean), ("variance", m.variance))
        }
        networks = {f"network.{name}": flat for name, flat in self.networks.items()}
        return {**self.optimizer.state(), **moments, **networks}

    def segments(self, known: Collection[str]) -> Segments:  # noqa: ARG002
        """State that is written in pieces, of which most never change; `known` are on disk already."""
        return {}

    def check(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> None:  # noqa: ARG002
        """Raise ValueError unless a learner like this one saved the state. Changes nothing."""
        validated_part(self.State, state)
        self.check_moments(state, tensors)
        for name, own in self.fixed_tensors().items():
            # Version 0.2 counted the optimizer's steps once for all parameter groups.
            shape = () if name == "steps" and name in tensors and not tensors[name].shape else tuple(own.shape)
            check_array(tensors, name, shape, own.dtype)

    def check_moments(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Raise ValueError unless the saved normalisers have the shapes of this learner's."""
        counts = validated_part(LearnerState, state).counts
        for i, moments in self.moments.items():
            if str(i) not in counts:
                raise ValueError(f"counts.{i} is missing")
            for name in ("mean", "variance"):
                check_array(tensors, f"moments.{i}.{name}", moments.mean.shape, torch.float64)

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:  # noqa: ARG002
        """Restore saved state. Returns whether `segments` are now what `self.segments` returns."""
        self.load_moments(state, tensors)
        self.optimizer.load(tensors)
        for name, flat in self.networks.items():
            flat.copy_(tensors[f"network.{name}"])
        return True

    def load_moments(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what the normalisers (which are part of the weights) are computed from."""
        for i, moments in self.moments.items():
            mean, variance = (tensors[f"moments.{i}.{name}"].numpy() for name in ("mean", "variance"))
            moments.load(float(state["counts"][str(i)]), mean, variance)

    def start_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Continue with the normalisers of another run, whose weights the network was given.

        Their counts matter: with a count of 0, the first batch would replace them.
        """
        self.load_moments(state, tensors)

    def rollback_point(self) -> Callable[[], None]:
        """A function that restores the weights and the learner to their present state, from memory."""
        state, tensors = self.state()
        return self.restorer(state, tensors, lambda state, tensors: self.load(state, tensors, {}))

    def restorer(
        self,
        state: dict[str, Any],
        tensors: dict[str, Tensor],
        load: Callable[[dict[str, Any], dict[str, Tensor]], Any],
    ) -> Callable[[], None]:
        weights, exploration = self.policy.flat.detach().clone(), dict(self.policy.exploration)
        copies = {name: tensor.clone() for name, tensor in tensors.items()}

        @torch.no_grad()
        def restore() -> None:
            self.policy.flat.copy_(weights)
            self.policy.exploration = dict(exploration)
            load(state, copies)

        return restore


def mean_metrics(minibatches: list[dict[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over minibatches."""
    return {name: float(torch.stack([metrics[name] for metrics in minibatches]).mean()) for name in minibatches[0]}

"""The Learner: owns the trained networks, their optimizer and the observation normalisers.

`OnPolicyLearner` (onpolicy.py) and `ReplayLearner` (offpolicy.py) extend it; an algorithm extends one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from outplay.config import AlgorithmConfig
from outplay.cudagraphs import CapturedStep, Minibatch, Scalar
from outplay.fragments import Batch, Fragment
from outplay.learning.optimizers import DeferredUpdate, Optimizer, ParameterGroup
from outplay.learning.shares import Share, share_of
from outplay.learning.traces import Step, TracedSteps, can_trace, keep_freed_memory
from outplay.metrics import RunningMoments
from outplay.policies import Policy, is_normalisable
from outplay.policies.flat import flatten
from outplay.policies.network import Network
from outplay.schema import FiniteNumber, Part, check_array, validated_part
from outplay.settings import at
from outplay.spaces import Leaf, Leaves

if TYPE_CHECKING:
    from outplay.learning.communicator import Communicator
    from outplay.learning.mirrors import Mirrors

Array = np.ndarray
C = TypeVar("C", bound=AlgorithmConfig)
Segments = Mapping[str, Callable[[], dict[str, Array]]]  # by name: a function that returns the arrays of a segment
JsonAndTensors = tuple[dict[str, Any], dict[str, Tensor]]

_ROWS_PER_THREAD = 64  # at least, of a minibatch on which several threads compute
_MAX_IMAGES = 128  # per batch, for the moments of image observations


class LearnerState(Part):
    """What a learner writes as JSON. Subclasses add the state of their algorithm."""

    counts: dict[str, Annotated[FiniteNumber, Field(ge=0)]]


class Learner(Generic[C]):
    """Trains a policy's network.

    A synchronous algorithm calls `update(batch, …)` once per iteration. An asynchronous one calls `take(fragments, …)`
    for experience as it arrives, `learn(n)` for at most `due` updates, and `metrics()` once per iteration. Before it is
    saved, evaluated or stopped, it calls `finish()`.

    `frame_stack` is the number of frames that each observation stacks; a replay buffer stores them once.
    """

    State: ClassVar[type[LearnerState]] = LearnerState
    supports_recurrence: ClassVar[bool] = True  # whether it can train recurrent networks
    collects: ClassVar[bool] = True  # whether it learns from collected experience; else from a data set
    measures_lag: ClassVar[bool] = False  # whether its metrics have the policy lag of what was learned from

    def __init__(self, policy: Policy, config: C, frame_stack: int = 1) -> None:
        keep_freed_memory()
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
        self.mirrors: Mirrors | None = None  # the other learners (num_learners); only the first one has them
        self.loads = 0  # how often `load` was called
        # By the names of the steps, then the number of rows.
        self._captured: dict[tuple[str | int, ...], CapturedStep[Any] | TracedSteps[Any]] = {}

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

    @classmethod
    def check_input(cls, config: Any, leaves: tuple[Leaf, ...], action_space: Any, has_masks: bool) -> None:
        """Raise if the data set of an algorithm that learns from one does not fit the environment."""

    # Learning, synchronous or asynchronous.

    def start_iteration(self) -> None:
        """Called before each iteration collects."""

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        """Learn from one Batch and return metrics. `timesteps` are those before the Batch."""
        raise TypeError(f"{type(self).__name__} cannot learn synchronously: it has no update()")

    def take(self, fragments: Sequence[Fragment], timesteps: int) -> None:  # noqa: ARG002
        """Accept new experience; `timesteps` include it."""
        raise TypeError(f"{type(self).__name__} cannot learn asynchronously: it has no take()")

    def update_from_data(self, timesteps: int) -> tuple[int, dict[str, float]]:  # noqa: ARG002
        """Learn from a data set, without collecting: (rows, metrics). `timesteps` are the rows before."""
        raise TypeError(f"{type(self).__name__} cannot learn from a data set: it has no update_from_data()")

    @property
    def due(self) -> int:
        """How many updates can be made now."""
        return 0

    def learn(self, updates: int) -> None:
        """Make this many updates."""

    def finish(self) -> None:
        """Make all updates that accepted experience is worth. Nothing waits to be learned from afterwards."""
        self.learn(self.due)

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        return {}

    # Data-parallel learners (num_learners): calls that all make, each on its part of every minibatch.

    @property
    def communicator(self) -> Communicator | None:
        """What the learners exchange sums with, in a call that all make. None outside of it, and with one learner."""
        found = self.optimizer.communicator
        return found if found is not None and found.is_active else None

    @property
    def is_first(self) -> bool:
        """Whether this is the learner that is saved, and has the replay buffer and the metrics."""
        return self.optimizer.communicator is None or self.optimizer.communicator.rank == 0

    def on_all(self, method: str, *arguments: Any) -> Any:
        """Call a method of this learner on all learners, with the same arguments. Returns this learner's result."""
        if self.mirrors is None:
            return getattr(self, method)(*arguments)
        return self.mirrors.call(method, *arguments)

    def update_on_all(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        """`update` on all learners. A subclass whose `update` itself calls `on_all` overrides it."""
        metrics: dict[str, float] = self.on_all("update", batch, timesteps, iteration)
        return metrics

    @contextmanager
    def share(self, total: int, is_sum: bool = False) -> Iterator[slice]:
        """The rows that this learner computes on, of a minibatch of `total` rows: all, unless there are several.

        Losses in this block are means over these rows; with `is_sum`, sums over them. The optimizer adds the
        gradients of all learners, weighted by their rows, so that they are those of the whole minibatch.
        """
        if self.communicator is None:
            yield slice(0, total)
            return
        share = share_of(total, self.communicator.rank, self.communicator.size)
        with self.communicator.sharing(share, is_sum):
            yield share.rows

    def weighted(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of this learner's part of a minibatch, for `summed`: means over rows, weighted by the rows."""
        communicator = self.communicator
        if communicator is None:
            return metrics
        return {name: value * communicator.weight for name, value in metrics.items()}

    def summed(self, measured: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Metrics of minibatches, from the `weighted` ones of all learners."""
        communicator = self.communicator
        if communicator is None or not measured:
            return measured
        values = torch.stack([value for metrics in measured for value in metrics.values()])
        total = iter(communicator.sum(values).unbind())
        return [{name: next(total) for name in metrics} for metrics in measured]

    def mean_of_parts(self, mean: Tensor) -> Tensor:
        """The mean over the rows of a minibatch, from that over this learner's part."""
        return self.summed([self.weighted({"mean": mean})])[0]["mean"]

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows of all learners' parts of a minibatch, in order."""
        return rows if self.communicator is None else self.communicator.gathered(rows)

    def part_of(self, number: int) -> Share:
        """Where this learner's part of a minibatch lies in all of it; `number`: its rows, of one learner all."""
        share = None if self.communicator is None else self.communicator.share
        return Share(0, number, number) if share is None else share

    def own(self, rows: Tensor) -> Tensor:
        """This learner's part of rows that it knows all."""
        return rows[self.part_of(len(rows)).rows]

    def mirrored(self) -> JsonAndTensors:
        """The state that other learners start from, beside the weights."""
        return self.state()

    def load_mirrored(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.load(state, tensors, {})

    # What updates are built from.

    def lr(self, timesteps: int) -> float:
        return at(self.config.lr_schedule, self.config.lr, timesteps)

    @property
    def captures(self) -> bool:
        """Whether steps run as CUDA graphs: on a GPU, if the network allows it, with one learner."""
        return self.device.type == "cuda" and self.network.capturable and self.config.num_learners == 1

    @property
    def can_trace(self) -> bool:
        """Whether steps that do not use autograd are traced: on a CPU, with one learner."""
        return self.device.type == "cpu" and self.config.num_learners == 1 and can_trace()

    @property
    def is_traced(self) -> bool:
        """Whether the steps of this learner are traced. Then each thread computes on its rows of a minibatch."""
        return False

    def together(self, steps: Mapping[str, Step], rows: Minibatch, *scalars: Scalar) -> dict[str, Tensor]:
        """Make gradient steps that start from the same parameters; the first scalar is the learning rate.

        Returns the metrics of all steps, and the gradient norm of each under its name.

        >>> self.together({"grad_norm": self.critic_step, "actor_grad_norm": self.actor_step}, batch, lr)
        """
        metrics: dict[str, Tensor] = {}
        updates: Iterable[DeferredUpdate] = ()
        with ExitStack() as stack:
            if len(steps) > 1:
                updates = stack.enter_context(self.optimizer.deferred())
            for name, step in steps.items():
                norm, found = step(rows, *scalars)
                metrics |= {name: norm, **found}
        for update in updates:
            self.optimizer.finish(update.groups, update.gradient, scalars[0], update.grad_clip)
        return metrics

    def captured_together(self, steps: Mapping[str, Step], rows: Minibatch, *scalars: float) -> dict[str, Tensor]:
        """`together` as a CUDA graph, or traced, once per number of rows."""
        key: tuple[str | int, ...] = *(step.__name__ for step in steps.values()), len(rows)
        if key not in self._captured:
            if self.captures:
                changed = [*self.optimizer.tensors, *self.networks.values()]
                self._captured[key] = CapturedStep(partial(self.together, steps), rows, scalars, changed)
            else:
                threads = self.config.learner_threads
                assert isinstance(threads, int)
                parts = max(1, min(threads, len(steps) * (len(rows) // _ROWS_PER_THREAD)))
                self._captured[key] = TracedSteps(steps, rows, scalars, self.optimizer, parts)
        return self._captured[key](rows, *scalars)

    def captured(self, step: Step, rows: Minibatch, *scalars: float) -> tuple[Tensor, dict[str, Tensor]]:
        """`step(rows, *scalars)` as a CUDA graph, or traced, once per number of rows: (gradient norm, metrics)."""
        metrics = self.captured_together({"norm": step}, rows, *scalars)
        return metrics.pop("norm"), metrics

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
            self._write_normaliser(i, self._normalised)

    def _write_normaliser(self, leaf: int, networks: Sequence[nn.Module]) -> None:
        """Write the mean and scale of an observation leaf into networks."""
        moments = self.moments[leaf]
        variance = moments.variance.mean() if self.policy.leaves[leaf].is_image else moments.variance
        for network in networks:
            getattr(network, f"observation_mean_{leaf}").copy_(torch.from_numpy(moments.mean))
            getattr(network, f"observation_scale_{leaf}").copy_(torch.as_tensor(1.0 / np.sqrt(variance + 1e-8)))

    @torch.no_grad()
    def start_networks(self, tensors: dict[str, Tensor]) -> None:
        """Continue with the other networks of a run whose weights the policy was given, if they have the same size.

        The normalisers of others are those of the policy.
        """
        for leaf, moments in self.moments.items():
            if moments.count:
                self._write_normaliser(leaf, self._normalised[1:])
        for name, flat in self.networks.items():
            saved = tensors.get(f"network.{name}")
            if saved is not None and saved.shape == flat.shape:
                flat.copy_(saved)

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
        for name, flat in self.networks.items():  # first: from them follow the shapes of the optimizer's tensors
            saved = tensors.get(f"network.{name}")
            if saved is not None and saved.numel() != flat.numel():
                raise ValueError(
                    f"network {name!r} has {saved.numel()} parameters in the checkpoint and {flat.numel()} with these "
                    "settings; leave the settings of the networks as they were"
                )
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
        self.loads += 1
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
    """The mean of each metric over the minibatches that have it."""
    names = dict.fromkeys(name for metrics in minibatches for name in metrics)
    return {name: float(torch.stack([m[name] for m in minibatches if name in m]).mean()) for name in names}

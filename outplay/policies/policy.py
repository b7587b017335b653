"""The Policy: a network, its action distribution, and its weights as one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from outplay import spaces
from outplay.cudagraphs import CapturedActing
from outplay.errors import CheckpointError, ConfigError, EnvError, described
from outplay.masks import checked_mask, mask_in, mask_key, mask_sizes
from outplay.policies.actor_critic import ActorCritic
from outplay.policies.custom_distribution import CustomDistribution
from outplay.policies.dense import Dense
from outplay.policies.distributions import ActingDistribution, distribution_for, masked_array
from outplay.policies.flat import flatten, ranges
from outplay.policies.network import Network
from outplay.policies.previous import PreviousInputs
from outplay.policies.recurrent import PREVIOUS, Memory
from outplay.policies.weights import Weights
from outplay.spaces import Leaf, Leaves, leaves
from outplay.streams import seed_for

if TYPE_CHECKING:
    from outplay.policies.spec import PolicySpec

Array = np.ndarray

_SAME_NETWORK = "the algorithm, the spaces and the model settings must be those of the run that saved them"


class Policy:
    """Chooses actions.

    >>> policy = Policy(PolicySpec(observation_space, action_space))
    >>> state = policy.initial_state(lanes)
    >>> actions, state, extras = policy.act(observations, state, mask=None, explore=True, rng=rng)

    With `model: {use_lstm: true}` and the like, the network has a recurrent core, and the state is that of the core. A
    policy class with a state of its own overrides `initial_state` (arrays with one row per lane) and `act` (returns the
    next state as new arrays).
    """

    # Whether exploring samples from `distribution` alone, so that its log-probabilities are those of the actions taken.
    samples_distribution: ClassVar[bool] = True

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.observation_space = spec.observation_space
        self.action_space = spec.action_space
        self.leaves: tuple[Leaf, ...] = leaves(spec.observation_space)
        preprocessing = None if spec.preprocessor is None else spec.preprocessor.module(self.leaves)
        self.seen: tuple[Leaf, ...] = self.leaves if preprocessing is None else preprocessing.leaves  # by the network
        self.distribution: ActingDistribution = self._make_distribution()
        if spec.with_masks:
            self.check_masks()
        self._previous = PreviousInputs(spec.action_space, spec.model)
        self.network = self._make_network(torch.Generator().manual_seed(seed_for(spec.seed, "weights")))
        self.network.normalises = spec.normalize_observations
        if preprocessing is not None:  # then its buffers are sent and saved with the weights
            self.network.preprocessor = preprocessing
        self.flat = flatten(self.network)
        self._values_when_acting = self.network.values_when_acting
        self._acting = ranges(self.network, self.network.is_for_acting)
        self.exploration: dict[str, float] = {}  # exploration values by name, which travel with the Weights
        self._scaling = spec.action_scaling()
        self.version = 0
        self.device = torch.device("cpu")
        self._captured: dict[int, CapturedActing] = {}  # by the number of rows
        self._dense: Dense | None = None  # the network in numpy, for small batches

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("flat", "_captured", "_dense")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After unpickling or a deep copy, make the parameters views of one flat vector again."""
        vars(self).update(state, _captured={}, _dense=None)
        self.flat = flatten(self.network, self.device)
        if self.network.is_frozen:
            self._freeze()

    def __copy__(self) -> Self:
        """A shallow copy that shares the network."""
        shared = object.__new__(type(self))
        vars(shared).update(vars(self))
        return shared

    @staticmethod
    def options_from(config: Any) -> Any:  # noqa: ARG004 - a subclass may have options
        """`PolicySpec.options` for this policy class, from an algorithm's config. Default: None."""
        return None

    def to(self, device: str) -> Self:
        """Move the network to a device."""
        if torch.device(device) != self.device:
            self.device = torch.device(device)
            self.flat = flatten(self.network, self.device)
            self._dense = None
        return self

    @property
    def model(self) -> Network:
        """The network: an alias for code written for RLlib."""
        return self.network

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def _before_acting(self, explore: bool, rng: np.random.Generator) -> None:
        """Called before each step of acting, for example to draw the noise of noisy layers."""

    def act(
        self,
        observations: Leaves,
        state: dict[str, Array],
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """(actions, next state, extras) for a batch of B observations.

        `mask` (B, n): True where an action is allowed; None allows all. Extras: the distribution's parameters as "dist"
        (with a mask, forbidden actions have the logit -1e30), and "value" if the network computes it when acting.
        """
        self._before_acting(explore, rng)
        if self.network.core is not None:
            return self._act_recurrently(observations, state, mask, explore, rng)
        if self._dense is not None and len(observations[0]) <= self._dense.most_rows:
            outputs = self._dense(observations)
        else:
            outputs = self._torch_outputs(observations)
        actions, extras = self._actions(outputs, mask, explore, rng)
        return actions, state, extras

    def _actions(
        self, outputs: Array, mask: Array | None, explore: bool, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """(actions, extras) from the outputs of the network."""
        params = outputs[:, : self.distribution.num_params]
        if mask is not None:
            params = masked_array(params, mask)
        extras = {"dist": params}
        if self._values_when_acting:
            extras["value"] = outputs[:, -1]
        return self._choose(params, mask, explore, rng), extras

    def _act_recurrently(
        self, observations: Leaves, state: dict[str, Array], mask: Array | None, explore: bool, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """`act` with a recurrent core. The inputs of the core beside the observation are an extra, for the learner."""
        memory = self.memory(state)
        with torch.inference_mode():
            arrays = tuple(torch.from_numpy(np.ascontiguousarray(leaf)).to(self.device) for leaf in observations)
            outputs = self._outputs(arrays, memory).cpu().numpy()
        actions, extras = self._actions(outputs, mask, explore, rng)
        after = {name: tensor.cpu().numpy() for name, tensor in memory.next_state.items()}
        if self._previous.size:
            extras[PREVIOUS] = state[PREVIOUS]
            after[PREVIOUS] = self._previous.encoded(actions)
        return actions, after, extras

    def memory(self, state: Mapping[str, Array]) -> Memory:
        """A state with one row per observation, as input of a recurrent network."""
        tensors = {name: torch.from_numpy(np.array(array)).to(self.device) for name, array in state.items()}
        return Memory(tensors, previous=tensors.pop(PREVIOUS, None))

    @property
    def sequence_length(self) -> int | None:
        """The state is recorded every this many steps, for a learner that starts there. None: at the start only."""
        return self.spec.model.max_seq_len if self.network.core is not None else None

    def with_rewards(self, state: dict[str, Array], rewards: Array) -> dict[str, Array]:
        """The state after a step that gave these rewards. `act` returned the state before they were known."""
        if not self._previous.uses_reward:
            return state
        previous = state[PREVIOUS].copy()
        previous[:, -1] = rewards
        return {**state, PREVIOUS: previous}

    def act_by_name(
        self,
        observations: Mapping[Any, Any],
        state: dict[str, Array],
        masks: Mapping[Any, Any] | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[dict[Any, Any], dict[str, Array], dict[str, Array]]:
        """(actions by name in the environment's format, next state, extras) for observations by name.

        `state` has one row per observation. `masks` are by name, too; default: those in the observations, if they have
        any.
        """
        rows = spaces.empty(self.leaves, len(observations))
        for row, observation in enumerate(observations.values()):
            spaces.write(observation, self.leaves, rows, row, "")
        if masks is None and mask_key(self.observation_space) is not None:
            masks = {name: mask_in(seen, self.observation_space, "") for name, seen in observations.items()}
        mask = None if masks is None else self._checked_masks(masks, list(observations))
        in_env, next_state, extras = self.act_on_rows(rows, state, mask, explore, rng)
        # Scalars become Python numbers; arrays stay arrays.
        plain = {
            name: in_env[row].item() if in_env.ndim == 1 else spaces.nested_action(self.action_space, in_env[row])
            for row, name in enumerate(observations)
        }
        return plain, next_state, extras

    def act_on_rows(
        self,
        rows: Leaves,
        state: dict[str, Array],
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """As `act`, for a user's observations, which are checked. The actions are the environment's."""
        for leaf, values in zip(self.leaves, rows, strict=True):
            if (wrong := spaces.invalid_value(leaf, values)) is not None:
                raise EnvError(described("", spaces.element(leaf, wrong[0][1:]), f"that {wrong[1]}"))
        if mask is not None:
            self.check_masks()
        actions, next_state, extras = self.act(rows, state, mask, explore, rng)
        return self.to_env(actions), next_state, extras

    def state_from(self, given: Any, rewards: Array | None, lanes: int) -> dict[str, Array]:
        """The state before the next step, from a user's: a dict, or a list in the order of its names. None starts
        episodes. `rewards` are those of the last step, for a network that gets them."""
        initial = self.initial_state(lanes)
        if given is None:
            return initial
        state = _as_arrays(given, initial)
        expected = {name: (array.shape, array.dtype) for name, array in initial.items()}
        if state is None or {name: (array.shape, array.dtype) for name, array in state.items()} != expected:
            names = f" ({', '.join(initial)})" if initial else ""
            raise ConfigError(
                f"this recurrent state{names} does not fit the policy: get_policy().initial_state({lanes}) gives the "
                "first one, and each call returns the next"
            )
        if rewards is None and self._previous.uses_reward:
            raise ConfigError(
                "the network gets the previous reward (lstm_use_prev_reward): with a state, give prev_reward, too; at "
                "the start of an episode it is 0"
            )
        return state if rewards is None else self.with_rewards(state, rewards)

    def _checked_masks(self, masks: Mapping[Any, Any], names: list[Any]) -> Array:
        if not isinstance(masks, Mapping) or set(masks) != set(names):
            raise ConfigError("masks must have the same names as the observations")
        sizes = mask_sizes(self.action_space)
        return np.stack([checked_mask(masks[name], sizes, "") for name in names])

    def _make_distribution(self) -> ActingDistribution:
        custom, space = self.spec.model.custom_action_dist, self.action_space
        return CustomDistribution(custom, space) if isinstance(custom, type) else distribution_for(space)

    def check_masks(self) -> None:
        """Raise ConfigError if action masks do not fit the parameters of a custom distribution."""
        if isinstance(self.distribution, CustomDistribution):
            self.distribution.check_masks(mask_sizes(self.action_space))

    def _make_network(self, generator: torch.Generator) -> Network:
        sizes = self.distribution.num_params, self.distribution.num_constant
        return ActorCritic(self.seen, *sizes, self.spec.model, self.spec.with_value, generator, self._previous.size)

    def _choose(self, params: Array, mask: Array | None, explore: bool, rng: np.random.Generator) -> Array:  # noqa: ARG002
        """Choose actions from the distribution's parameters, which are already masked."""
        return self.distribution.sample(params, rng) if explore else self.distribution.mode(params)

    @torch.inference_mode()
    def _torch_outputs(self, observations: Leaves) -> Array:
        if self.device.type == "cuda" and self.network.is_frozen and self.network.capturable:
            if (rows := len(observations[0])) not in self._captured:
                self._captured[rows] = CapturedActing(self._outputs, observations, self.device)
            return self._captured[rows](observations)
        arrays = tuple(torch.from_numpy(np.ascontiguousarray(leaf)) for leaf in observations)
        return self._outputs(tuple(array.to(self.device) for array in arrays)).cpu().numpy()

    def _outputs(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        """The distribution's parameters (B, P). If acting computes values, they are one more column."""
        model, inputs = self.network, self.network.arranged(observations)
        assert isinstance(model, ActorCritic)
        if not self._values_when_acting:
            return model.policy(inputs, memory)
        params, value = model.both(inputs, memory)
        return torch.cat([params, model.denormalised(value).unsqueeze(-1)], -1)

    def for_lanes(self, first: int, number: int, total: int) -> Self:  # noqa: ARG002
        """The policy for lanes `first` to `first + number` of `total`. Most policies act the same in all lanes."""
        return self

    @property
    def uses_previous_reward(self) -> bool:
        """Whether the network gets the reward of the last step (`lstm_use_prev_reward`)."""
        return self._previous.uses_reward

    def initial_state(self, lanes: int) -> dict[str, Array]:
        """The recurrent state at the start of an episode: arrays by name, one row per lane; {} without a core."""
        if self.network.core is None:
            return {}
        return {**self.network.core.initial(lanes), **self._previous.initial(lanes)}

    def to_env(self, actions: Array) -> Array:
        """Convert the policy's actions to the environment's: shifted, scaled and clipped to its space."""
        return self._scaling(actions)

    def from_env(self, actions: Array) -> Array:
        """Convert the environment's actions to the policy's: the inverse of `to_env`, apart from clipping."""
        return self._scaling.inverse(actions)

    def get_weights(self) -> dict[str, Array]:
        """The parameters by name, as copies."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.network.state_dict().items()}

    def check_weights(self, weights: Mapping[str, Array]) -> None:
        """Raise CheckpointError if the names or shapes differ from this network's."""
        own = self.network.state_dict()
        if set(weights) != set(own):
            wrong = sorted(set(weights) ^ set(own))[0]
            raise CheckpointError(f"these weights are of another network: they differ in {wrong!r}; {_SAME_NETWORK}")
        for name, p in own.items():
            if np.shape(weights[name]) != tuple(p.shape):
                raise CheckpointError(
                    f"these weights are of another network: {name!r} has shape {np.shape(weights[name])}, "
                    f"here {tuple(p.shape)}; {_SAME_NETWORK}"
                )

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Set the parameters by name, as returned by `get_weights`."""
        self.check_weights(weights)
        with torch.no_grad():
            for name, p in self.network.state_dict().items():
                p.copy_(torch.as_tensor(np.array(weights[name])))
        if self.network.is_frozen:
            self._freeze()

    def snapshot(self, version: int, updates: int = 0, everything: bool = False) -> Weights:
        """The Weights for acting; with `everything`, critics included. `updates`: updates of the learner so far."""
        parts = [self.flat.detach()] if everything else [self.flat.detach()[part] for part in self._acting]
        copied = torch.cat(parts)
        return Weights(version, copied if copied.is_cuda else copied.numpy(), dict(self.exploration), updates)

    def random_weights(self, version: int) -> Weights:
        """Weights of a random policy: uniform for discrete actions, normal around 0 for continuous ones."""
        other = copy.deepcopy(self)
        other._act_at_random()
        return other.snapshot(version)

    @torch.no_grad()
    def _act_at_random(self) -> None:
        self.flat.zero_()  # then logits, means and log standard deviations are 0, too

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Load weights for acting. This copy of the policy is not trained."""
        self.version = weights.version
        self.exploration = dict(weights.exploration)
        given = weights.values
        if not isinstance(given, Tensor) or given.device.type != self.device.type:
            # The array may be a view of shared memory. A copy has the same alignment everywhere.
            given = torch.from_numpy(np.array(weights.flat))
        parts = [slice(0, len(self.flat))] if len(given) == len(self.flat) else self._acting
        sizes = [part.stop - part.start for part in parts]
        for part, values in zip(parts, torch.split(given, sizes), strict=True):
            self.flat[part].copy_(values)
        self._freeze()

    def _freeze(self) -> None:
        """Precompute everything that depends only on the weights. Called after each change of the weights."""
        self.network.freeze()
        self._dense = Dense.of(self.network) if self.device.type == "cpu" else None


def _as_arrays(given: Any, initial: dict[str, Array]) -> dict[str, Array] | None:
    """A user's state by name, None if it is none. In a list, as RLlib's, the state of one episode may lack an axis."""
    try:
        if isinstance(given, Mapping):
            return {name: np.asarray(array) for name, array in given.items()}
        if not isinstance(given, (list, tuple)) or len(given) != len(initial):
            return None
        rows = [np.asarray(array, first.dtype) for array, first in zip(given, initial.values(), strict=True)]
    except (TypeError, ValueError):  # not numbers, or ragged
        return None
    pairs = zip(rows, initial.items(), strict=True)
    return {name: row[None] if (1, *row.shape) == first.shape else row for row, (name, first) in pairs}

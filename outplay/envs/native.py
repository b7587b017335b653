"""Native vectors: ale-py's for Atari, Gymnasium's CartPole vector (its state can be saved), and EnvPool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from outplay import spaces
from outplay.envs.lookup import EnvSpec
from outplay.envs.vector import Array, State
from outplay.errors import EnvError
from outplay.schema import check_array
from outplay.spaces import Leaves

_ATARI_EPISODES_PER_SEED = 32
# Games whose reset does not depend on earlier episodes: tests/envs/test_vectors.py checks each. Other games, such as
# ice_hockey and yars_revenge, keep some state across resets.
_INDEPENDENT_RESETS = frozenset({"breakout", "pong", "qbert", "space_invaders"})


class _Native:
    """Base of native vectors that wrap a VectorEnv."""

    inexact = ""
    episodes_per_seed = 1
    action_masks: Array | None = None

    def __init__(self, name: str, env: VectorEnv[Any, Any, Any]) -> None:
        self.name = name
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.leaves = spaces.leaves(self.observation_space)
        self._info: Mapping[str, Any] = {}  # of the last step, with one array per key

    def info(self, lane: int) -> Mapping[str, Any]:
        return info_of_lane(self._info, lane)

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        pass

    def close(self) -> None:
        self.env.close()

    def _reject_tasks(self, tasks: Sequence[Any] | None) -> None:
        if tasks is not None and any(task is not None for task in tasks):
            raise EnvError(f"env_task_fn is set, but {type(self.env).__name__} has no tasks")


def info_of_lane(info: Mapping[str, Any], lane: int) -> dict[str, Any]:
    """One lane of a vector environment's info. Gymnasium marks in `_key` which lanes have a value for `key`.

    >>> info_of_lane({"goal": np.array([1.0, 0.0]), "_goal": np.array([True, False])}, 0)
    {'goal': np.float64(1.0)}
    """
    own: dict[str, Any] = {}
    for key, values in info.items():
        marks = info.get(f"_{key}")
        if (marks is not None and not marks[lane]) or (key.startswith("_") and key[1:] in info):
            continue
        if isinstance(values, Mapping):
            own[key] = info_of_lane(values, lane)
        elif len(np.shape(values)) and len(values) > lane:
            own[key] = values[lane]
    return own


class CartPoleVector(_Native):
    """Gymnasium's vectorised CartPole. All lanes share one random generator, which is part of the saved state.

    Gymnasium's autoreset would restart an ended lane one step late, with a dummy step. This class resets it at once.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

        limit = spec.max_episode_steps or gymnasium.spec(spec.id).max_episode_steps or 500
        self.cart: Any = CartPoleVectorEnv(num_envs, max_episode_steps=limit, **spec.env_config)
        super().__init__(spec.name, self.cart)

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        self._reject_tasks(tasks)
        cart = self.cart
        if cart.state is None or lanes.all():
            cart.reset(seed=seeds[0])
        else:
            cart.state[:, lanes] = cart.np_random.uniform(cart.low, cart.high, (4, len(seeds)))
            cart.steps[lanes] = 0
            cart.prev_done[lanes] = False
        return (cart.state.T.astype(np.float32),)

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:  # noqa: ARG002
        observations, rewards, terminated, truncated, self._info = self.cart.step(actions)
        return (observations,), rewards, terminated, truncated

    def render(self) -> Array:
        """An RGB picture of the first lane."""
        self.cart.render_mode = "rgb_array"
        picture: Array = self.cart.render()[0]
        return picture

    def get_state(self) -> State | None:
        cart = self.cart
        return {
            "state": cart.state.copy(),
            "steps": cart.steps.copy(),
            "random": cart.np_random.bit_generator.state,
        }

    def set_state(self, state: State) -> Leaves:
        cart = self.cart
        cart.reset(seed=0)
        for name in ("state", "steps"):
            own = getattr(cart, name)
            check_array(state, name, own.shape, own.dtype)
            setattr(cart, name, np.array(state[name]))
        cart.np_random.bit_generator.state = state["random"]
        return (cart.state.T.astype(np.float32),)


class AtariVector:
    """ale-py's vector: emulators in C++ threads, with the usual preprocessing. Every lane has its own seed.

    ale-py's vector always steps all of its games. If lanes have to wait for others to end their episodes, use
    `separate=True`: each lane is then a vector of one game, and a waiting lane costs nothing. The price is one thread
    and one call per lane.

    Seeding a game reloads its ROM, which takes as long as a few hundred steps. Some games are random only at reset (the
    number of no-ops), and their reset does not depend on earlier episodes. These are seeded once per
    `episodes_per_seed` episodes: the no-ops of the following resets are determined by that seed.
    """

    inexact = ""
    action_masks: Array | None = None

    def __init__(self, spec: EnvSpec, num_envs: int, num_threads: int, separate: bool = False) -> None:
        options = _atari_options(spec)
        sizes = [1] * num_envs if separate else [num_envs]
        self.name = spec.name
        self.num_envs = num_envs
        # A thread without a game would look for one all the time.
        self._parts = [_atari_part(spec, size, min(size, num_threads), options) for size in sizes]
        self.observation_space: gymnasium.Space[Any] = self._parts[0].single_observation_space
        self.action_space: gymnasium.Space[Any] = self._parts[0].single_action_space
        self.leaves = spaces.leaves(self.observation_space)
        self._fire = _fire_action(self._parts[0]) if spec.fire_on_reset else None
        self._lives = np.zeros(num_envs, np.int64)
        self._life_lost = np.zeros(num_envs, bool)
        is_independent = options["game"] in _INDEPENDENT_RESETS and not options["repeat_action_probability"]
        self.episodes_per_seed = _ATARI_EPISODES_PER_SEED if is_independent else 1
        self._started = False
        self._begun: list[int] | None = None  # indices of the parts whose step is under way
        # Only with `separate`: the last results of all lanes.
        self._observations = np.zeros((num_envs, *self.leaves[0].shape), self.leaves[0].dtype)
        self._rewards = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)
        self._infos: list[Mapping[str, Any]] = [{}] * len(self._parts)  # of the last step of each part

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        if tasks is not None and any(task is not None for task in tasks):
            raise EnvError("env_task_fn is set, but ale-py's games have no tasks")
        if self._begun is not None:  # finish a step that was begun before an error
            for part in self._begun:
                self._parts[part].recv()
            self._begun = None
        self._life_lost[lanes] = False
        if len(self._parts) > 1:
            for lane, seed in zip(np.flatnonzero(lanes).tolist(), seeds, strict=True):
                observation, info = self._parts[lane].reset(seed=_atari_seeds([seed]))
                self._observations[lane], self._lives[lane] = observation[0], info["lives"][0]
            return (self._observations,)
        options = {"reset_mask": np.asarray(lanes, bool)} if self._started else None
        self._started = True
        observations, info = self._parts[0].reset(seed=_atari_seeds(seeds), options=options)
        self._lives[:] = info["lives"]
        return (observations,)

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        if self._fire is not None:
            actions = np.where(self._life_lost, self._fire, actions)
        self._begun = []
        if len(self._parts) == 1:
            self._parts[0].send(actions)
            self._begun.append(0)
            return
        for lane in range(self.num_envs) if lanes is None else np.flatnonzero(lanes).tolist():
            self._parts[lane].send(actions[lane : lane + 1])
            self._begun.append(lane)

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:
        if self._begun is None:
            self.begin(actions, lanes)
        begun, self._begun = self._begun or [], None
        if len(self._parts) == 1:
            observations, rewards, terminated, truncated, info = self._parts[0].recv()
            self._infos[0] = info
            self._count_lives(slice(None), info["lives"])
            return (observations,), rewards, terminated, truncated
        for lane in begun:
            observation, reward, terminated, truncated, info = self._parts[lane].recv()
            self._infos[lane] = info
            self._count_lives(slice(lane, lane + 1), info["lives"])
            self._observations[lane] = observation[0]
            self._rewards[lane], self._terminated[lane], self._truncated[lane] = reward[0], terminated[0], truncated[0]
        return (self._observations,), self._rewards, self._terminated, self._truncated

    def info(self, lane: int) -> Mapping[str, Any]:
        is_separate = len(self._parts) > 1
        return info_of_lane(self._infos[lane if is_separate else 0], 0 if is_separate else lane)

    def _count_lives(self, lanes: slice, lives: Array) -> None:
        self._life_lost[lanes] = lives < self._lives[lanes]
        self._lives[lanes] = lives

    def action_names(self) -> list[str]:
        """The names of the actions, such as FIRE; empty if they are continuous."""
        return _action_names(self._parts[0])

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:  # noqa: ARG002
        raise EnvError("ale-py's vector has no state to restore; replay its actions instead")

    def close(self) -> None:
        for part in self._parts:
            part.close()


def _fire_action(part: Any) -> int | None:
    """The index of the action FIRE. None if the game has no such action, or its actions are continuous."""
    names = _action_names(part)
    return names.index("FIRE") if "FIRE" in names else None


def _action_names(part: Any) -> list[str]:
    return [] if part.continuous else [action.name for action in part.ale.get_action_set()]


def _atari_seeds(seeds: Sequence[int | None]) -> Array:
    return np.array([-1 if seed is None else seed for seed in seeds], np.int64)


def _atari_options(spec: EnvSpec) -> dict[str, Any]:
    import ale_py

    gymnasium.register_envs(ale_py)
    registered = dict(gymnasium.spec(spec.id).kwargs)
    frames = (spec.max_episode_steps or 0) * spec.frame_skip
    return {
        "game": registered["game"],
        "repeat_action_probability": registered.get("repeat_action_probability", 0.0),
        "full_action_space": registered.get("full_action_space", False),
        "max_num_frames_per_episode": registered.get("max_num_frames_per_episode", 108_000),
        "reward_clipping": False,  # metrics report unclipped returns; clip_rewards affects the learner only
        **({} if spec.frame_stack == 1 else {"stack_num": spec.frame_stack}),
        **({} if spec.max_episode_steps is None else {"max_num_frames_per_episode": frames}),
        **spec.env_config,
    }


def _atari_part(spec: EnvSpec, num_envs: int, num_threads: int, options: dict[str, Any]) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    mode = AutoresetMode.NEXT_STEP
    try:
        return AtariVectorEnv(num_envs=num_envs, num_threads=num_threads, autoreset_mode=mode, **options)
    except TypeError as error:
        raise EnvError(
            f"environment {spec.name!r} could not be created with env_config {spec.env_config}: {error}; with "
            "atari_preprocessing: false it is a plain Gymnasium environment, and takes that environment's arguments"
        ) from error


class EnvPoolVector:
    """EnvPool's vector, for ids like envpool/Pong-v5. EnvPool seeds environments only when they are created."""

    inexact = "EnvPool seeds its environments once, not at each episode"
    episodes_per_seed = 1
    action_masks: Array | None = None

    def __init__(self, spec: EnvSpec, num_envs: int, num_threads: int) -> None:
        try:
            import envpool
        except ImportError as error:
            raise EnvError(f"environment {spec.name!r} needs EnvPool: pip install 'outplay[envpool]'") from error
        self.name = spec.name
        self.num_envs = num_envs
        options = dict(spec.env_config)
        if spec.max_episode_steps is not None:
            options["max_episode_steps"] = spec.max_episode_steps
        if spec.frame_stack > 1:
            options["stack_num"] = spec.frame_stack
        task = spec.name.removeprefix("envpool/")
        self._make = partial(envpool.make_gymnasium, task, num_envs=num_envs, num_threads=num_threads, **options)
        try:
            self._pool: Any = self._make(seed=0)
        except Exception as error:
            raise EnvError(f"environment {spec.name!r} could not be created by EnvPool: {error}") from error
        self.observation_space: gymnasium.Space[Any] = self._pool.observation_space
        self.action_space: gymnasium.Space[Any] = self._pool.action_space
        self.leaves = spaces.leaves(self.observation_space)
        self._observations = spaces.empty(self.leaves, num_envs)
        self._info: Mapping[str, Any] = {}

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        if tasks is not None and any(task is not None for task in tasks):
            raise EnvError("env_task_fn is set, but EnvPool's environments have no tasks")
        if lanes.all():
            self._pool = self._make(seed=list(seeds))
        chosen = np.flatnonzero(lanes).astype(np.int32)
        observations, info = self._pool.reset(chosen)
        for into, leaf in zip(self._observations, spaces.split(observations, self.leaves), strict=True):
            into[info["env_id"]] = leaf
        return self._observations

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:  # noqa: ARG002
        given = actions.astype(np.int32) if np.issubdtype(actions.dtype, np.integer) else actions
        observations, rewards, terminated, truncated, self._info = self._pool.step(given)
        # A copy: EnvPool's threads overwrite its arrays.
        self._observations = tuple(np.array(leaf) for leaf in spaces.split(observations, self.leaves))
        return self._observations, rewards, terminated, truncated

    def info(self, lane: int) -> Mapping[str, Any]:
        return info_of_lane(self._info, lane)

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        pass  # EnvPool's asynchronous results come in another order

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:  # noqa: ARG002
        raise EnvError("EnvPool's environments have no state to restore")

    def close(self) -> None:
        self._pool.close()

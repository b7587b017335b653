"""Vectors that step natively: ale-py's for Atari, Gymnasium's own where its state can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from outplay import spaces
from outplay.envs.lookup import EnvSpec
from outplay.envs.vector import Array, State
from outplay.errors import EnvError
from outplay.spaces import Leaves


class _Native:
    """What native vectors share: they wrap a VectorEnv."""

    inexact = ""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.leaves = spaces.leaves(self.observation_space)

    def close(self) -> None:
        self.env.close()

    def _refuse(self, tasks: Sequence[Any] | None) -> None:
        if tasks is not None and any(task is not None for task in tasks):
            raise EnvError(f"env_task_fn is set, but {type(self.env).__name__} has no tasks")


class CartPoleVector(_Native):
    """Gymnasium's vector CartPole. Its environments share one stream, which is saved with their arrays.

    The vector would restart an ended environment one step late, with a step that is none; here it is restarted at once.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

        limit = spec.max_episode_steps or gymnasium.spec(spec.name).max_episode_steps or 500
        self.cart: Any = CartPoleVectorEnv(num_envs, max_episode_steps=limit, **spec.env_config)
        super().__init__(self.cart)

    def reset(self, lanes: Array, seeds: Sequence[int], tasks: Sequence[Any] | None = None) -> Leaves:
        self._refuse(tasks)
        cart = self.cart
        if cart.state is None or lanes.all():
            cart.reset(seed=int(seeds[0]))
        else:
            cart.state[:, lanes] = cart.np_random.uniform(cart.low, cart.high, (4, len(seeds)))
            cart.steps[lanes] = 0
            cart.prev_done[lanes] = False
        return (cart.state.T.astype(np.float32),)

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:  # noqa: ARG002
        observations, rewards, terminated, truncated, _ = self.cart.step(actions)
        return (observations,), rewards, terminated, truncated

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
        cart.state = np.array(state["state"])
        cart.steps = np.array(state["steps"])
        cart.np_random.bit_generator.state = state["random"]
        return (cart.state.T.astype(np.float32),)


class AtariVector(_Native):
    """ale-py's vector: emulators in C++ threads, with the usual preprocessing. Every game takes its own seed."""

    def __init__(self, spec: EnvSpec, num_envs: int, num_threads: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        registered = dict(gymnasium.spec(spec.name).kwargs)
        frames = (spec.max_episode_steps or 0) * int(spec.env_config.get("frameskip", 4))
        options = {
            "game": registered["game"],
            "repeat_action_probability": registered.get("repeat_action_probability", 0.0),
            "full_action_space": registered.get("full_action_space", False),
            "max_num_frames_per_episode": registered.get("max_num_frames_per_episode", 108_000),
            "reward_clipping": False,  # returns are reported as they are; clip_rewards is for the learner
            **({} if spec.frame_stack == 1 else {"stack_num": spec.frame_stack}),
            **({} if spec.max_episode_steps is None else {"max_num_frames_per_episode": frames}),
            **spec.env_config,
        }
        try:
            env = AtariVectorEnv(
                num_envs=num_envs, num_threads=num_threads, autoreset_mode=AutoresetMode.NEXT_STEP, **options
            )
        except TypeError as error:
            raise EnvError(
                f"environment {spec.name!r} could not be made with env_config {spec.env_config}: {error}; with "
                "atari_preprocessing: false it is a plain Gymnasium environment with its arguments"
            ) from error
        super().__init__(env)
        self._started = False

    def reset(self, lanes: Array, seeds: Sequence[int], tasks: Sequence[Any] | None = None) -> Leaves:
        self._refuse(tasks)
        options = {"reset_mask": np.asarray(lanes, bool)} if self._started else None
        each: Any = np.asarray(seeds, np.int64)
        observations, _ = self.env.reset(seed=each, options=options)
        self._started = True
        return (observations,)

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:  # noqa: ARG002
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        return (observations,), rewards, terminated, truncated

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:  # noqa: ARG002
        raise EnvError("ale-py's vector is rebuilt from its actions; it has no state to set")


class EnvPoolVector:
    """EnvPool's vector, for ids like envpool/Pong-v5. Its environments are seeded when they are made, and only then."""

    inexact = "EnvPool seeds its environments once and not each episode"

    def __init__(self, spec: EnvSpec, num_envs: int, num_threads: int) -> None:
        try:
            import envpool
        except ImportError as error:
            raise EnvError(f"environment {spec.name!r} needs EnvPool: pip install 'outplay[envpool]'") from error
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
            raise EnvError(f"environment {spec.name!r} could not be made by EnvPool: {error}") from error
        self.observation_space: gymnasium.Space[Any] = self._pool.observation_space
        self.action_space: gymnasium.Space[Any] = self._pool.action_space
        self.leaves = spaces.leaves(self.observation_space)
        self._observations = spaces.empty(self.leaves, num_envs)

    def reset(self, lanes: Array, seeds: Sequence[int], tasks: Sequence[Any] | None = None) -> Leaves:
        if tasks is not None and any(task is not None for task in tasks):
            raise EnvError("env_task_fn is set, but EnvPool's environments have no tasks")
        if lanes.all():
            self._pool = self._make(seed=[int(seed) for seed in seeds])
        chosen = np.flatnonzero(lanes).astype(np.int32)
        observations, info = self._pool.reset(chosen)
        for into, leaf in zip(self._observations, spaces.split(observations, self.leaves), strict=True):
            into[info["env_id"]] = leaf
        return self._observations

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:  # noqa: ARG002
        given = actions.astype(np.int32) if np.issubdtype(actions.dtype, np.integer) else actions
        observations, rewards, terminated, truncated, _ = self._pool.step(given)
        # A copy: the pool's own arrays are written by its threads.
        self._observations = tuple(np.array(leaf) for leaf in spaces.split(observations, self.leaves))
        return self._observations, rewards, terminated, truncated

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:  # noqa: ARG002
        raise EnvError("EnvPool's environments have no state to set")

    def close(self) -> None:
        self._pool.close()

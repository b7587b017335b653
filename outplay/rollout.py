"""RolloutWorkers host EnvGroups and collect Fragments; the WorkerSet is all of them, here or in other processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch

from outplay.config import ModelConfig
from outplay.engine import api as engine
from outplay.engine.remote import ActorHandle, remote
from outplay.envs import EnvGroup, EnvSpec, GroupState, Vector, make_vector
from outplay.errors import ActorDiedError, OutplayError, RunError, TaskError
from outplay.fragments import Fragment
from outplay.policies import ActionScaling, Policy, Weights
from outplay.streams import seed_for, stream

log = logging.getLogger("outplay")

_MOST_DEATHS = 2  # of workers, one after the other, without a Fragment in between


@dataclass(frozen=True)
class PolicySpec:
    """What a process needs to make the same policy."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    model: ModelConfig
    seed: int
    with_value: bool
    normalize_observations: bool
    normalize_actions: bool
    clip_actions: bool

    def make(self) -> Policy:
        return Policy(**{name: getattr(self, name) for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class RolloutSpec:
    """What a RolloutWorker needs to know: the same for all of them."""

    env: EnvSpec
    policy: PolicySpec
    seed: int
    group_sizes: list[int]
    fragment_length: int
    complete_episodes: bool
    explore: bool


@dataclass
class EpisodeResults:
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    finished: bool = True  # no episode was cut off


@contextmanager
def one_thread() -> Iterator[None]:
    """Acting runs on one thread wherever it runs: small batches gain nothing from more."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RolloutWorker:
    """Hosts EnvGroups: takes Weights, returns Fragments. The same in the program itself and in another process."""

    def __init__(
        self, spec: RolloutSpec, states: dict[int, GroupState], weights: Weights | None = None, num_threads: int = 1
    ) -> None:
        self.spec = spec
        self.num_threads = num_threads
        self.policy = spec.policy.make()
        if weights is not None:
            self.policy.load(weights)
        self.groups = {
            index: EnvGroup(make_vector(spec.env, spec.group_sizes[index], num_threads), index, spec.seed, state)
            for index, state in states.items()
        }
        self._evaluation: dict[int, Vector] = {}

    def collect(self, weights: Weights, task: Any = None) -> list[Fragment]:
        """One Fragment from each EnvGroup, in order."""
        self.load(weights)
        spec = self.spec
        fragments = []
        with one_thread():
            for group in self.groups.values():
                if task is not None:
                    group.set_task(task)
                fragments.append(
                    group.collect(
                        self.policy, spec.fragment_length, spec.explore, weights.version, spec.complete_episodes
                    )
                )
        return fragments

    def load(self, weights: Weights) -> None:
        if weights.version != self.policy.version:
            self.policy.load(weights)

    def play(
        self, weights: Weights, key: tuple[int, ...], episodes: int, most_steps: int | None, explore: bool
    ) -> EpisodeResults:
        """Play this many episodes side by side, on seeds of their own; or stop after `most_steps` steps in all."""
        self.load(weights)
        if episodes not in self._evaluation:
            self._evaluation[episodes] = make_vector(self.spec.env, episodes, self.num_threads)
        with one_thread():
            return play_episodes(self._evaluation[episodes], self.policy, self.spec.seed, key, most_steps, explore)

    def get_policy(self) -> Policy:
        return self.policy

    def apply(self, function: Callable[[RolloutWorker], Any]) -> Any:
        return function(self)

    def process(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()

    def close(self) -> None:
        for vector in (*(group.vector for group in self.groups.values()), *self._evaluation.values()):
            vector.close()


def play_episodes(
    vector: Vector, policy: Policy, seed: int, key: tuple[int, ...], most_steps: int | None, explore: bool
) -> EpisodeResults:
    """One episode in each lane. What is cut off by `most_steps` counts only if nothing else has ended."""
    lanes = vector.num_envs
    rng = stream(seed, "evaluation actions", *key)
    observations = vector.reset(
        np.ones(lanes, bool), [seed_for(seed, "evaluation episode", *key, lane) for lane in range(lanes)]
    )
    playing = np.ones(lanes, bool)
    returns, lengths = np.zeros(lanes), np.zeros(lanes, np.int64)
    state = policy.initial_state(lanes)
    while playing.any() and (most_steps is None or lengths.sum() < most_steps):
        actions, state, _ = policy.act(observations, state, explore, rng)
        observations, rewards, terminated, truncated = vector.step(policy.to_env(actions))
        returns += rewards * playing
        lengths += playing
        ended = terminated | truncated
        playing &= ~ended
        if ended.any() and playing.any():
            again = [seed_for(seed, "unheeded", *key, int(lane)) for lane in np.flatnonzero(ended)]
            observations = vector.reset(ended, again)
    finished = ~playing if not playing.all() else playing
    return EpisodeResults(
        [float(r) for r in returns[finished]],
        [int(n) for n in lengths[finished]],
        int(lengths.sum()),
        not playing.any(),
    )


class WorkerSet:
    """All RolloutWorkers of a run. With `num_workers=0` it is one, in the program itself.

    It keeps, for every EnvGroup, how to build it again: a worker that dies is replaced and the result is the same.
    """

    def __init__(self, spec: RolloutSpec, num_workers: int, states: list[GroupState] | None, weights: Weights) -> None:
        self.spec = spec
        self.num_workers = min(num_workers, len(spec.group_sizes))
        if num_workers > self.num_workers:
            log.warning(
                "num_workers is %d, but %d environments in %d EnvGroups keep only %d busy; raise num_env_groups",
                num_workers, sum(spec.group_sizes), len(spec.group_sizes), self.num_workers,
            )  # fmt: skip
        self.states = states or [GroupState(size) for size in spec.group_sizes]
        self.task: Any = next((state.task for state in self.states), None)
        self.weights = weights
        self.local: RolloutWorker | None = None
        self.remote: list[ActorHandle] = []
        self.replaced = 0
        if self.num_workers == 0:
            self.local = RolloutWorker(spec, self._states_of(0, 1), weights, num_threads=os.cpu_count() or 1)
        else:
            self.remote = [self._start(index) for index in range(self.num_workers)]

    def _states_of(self, index: int, workers: int) -> dict[int, GroupState]:
        return {group: self.states[group] for group in range(index, len(self.states), workers)}

    def _start(self, index: int) -> ActorHandle:
        states = self._states_of(index, self.num_workers)
        worker: ActorHandle = remote(RolloutWorker).remote(self.spec, states, self.weights)
        return worker

    def collect(self, weights: Weights) -> list[Fragment]:
        """One Fragment from each EnvGroup, in EnvGroup order."""
        self.weights = weights
        if self.local is not None:
            fragments = self.local.collect(weights, self.task)
        else:
            stored = engine.put(weights)
            calls = [worker.collect.remote(stored, self.task) for worker in self.remote]
            fragments = [f for index, call in enumerate(calls) for f in self._result(index, call, stored)]
        fragments.sort(key=lambda fragment: fragment.group)
        to_env = self._to_env()
        self.states = [
            state.advanced(fragment, to_env(fragment.actions), self.spec.complete_episodes)
            for state, fragment in zip(self.states, fragments, strict=True)
        ]
        return fragments

    def _result(self, index: int, call: Any, weights: Any) -> list[Fragment]:
        """What a worker collected; if it dies, what its replacement collected."""
        deaths = 0
        while True:
            try:
                return engine.get(call)  # type: ignore[no-any-return]
            except ActorDiedError as error:
                _raise_cause(error)
                deaths += 1
                if deaths > _MOST_DEATHS:
                    raise RunError(f"worker {index} died {deaths} times in a row; last: {error}") from error
                log.warning("worker %d died and is replaced; its environments are built again", index)
                self.replaced += 1
                self.remote[index] = self._start(index)
                call = self.remote[index].collect.remote(weights, self.task)
            except TaskError as error:
                _raise_cause(error)
                raise

    def _to_env(self) -> Callable[[np.ndarray], np.ndarray]:
        if self.local is not None:
            return self.local.policy.to_env
        policy = self.spec.policy
        return ActionScaling(policy.action_space, policy.normalize_actions, policy.clip_actions)

    def set_task(self, task: Any) -> None:
        """Episodes that start from now on are about `task`, in every EnvGroup."""
        self.task = task
        self.states = [replace(state, task=task) for state in self.states]

    def foreach_worker(self, function: Callable[[RolloutWorker], Any]) -> list[Any]:
        """`function(worker)` on every worker, where it is; the results in order.

        >>> trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        """
        if self.local is not None:
            return [function(self.local)]
        return engine.get([worker.apply.remote(function) for worker in self.remote])  # type: ignore[no-any-return]

    def stop(self) -> None:
        if self.local is not None:
            self.local.close()
        if engine.is_initialized():
            for worker in self.remote:
                engine.kill(worker)
        self.remote = []


def _raise_cause(error: BaseException) -> None:
    """What went wrong in a worker is told as if it had happened here: a mistake of the user's stays one sentence."""
    cause = error.__cause__
    while isinstance(cause, TaskError):
        cause = cause.__cause__
    if isinstance(cause, OutplayError) and not isinstance(cause, ActorDiedError):
        raise cause from error

"""RolloutWorkers host EnvGroups and collect Fragments; the WorkerSet is all of them, here or in other processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch

from outplay.config import ModelConfig
from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.engine.remote import ActorHandle, remote
from outplay.engine.slots import count_cpus
from outplay.envs import EnvGroup, EnvSpec, GroupState, Vector, make_vector, split_envs
from outplay.envs.deadline import end_called_off, may_end_process
from outplay.envs.group import LONGEST_EPISODE, take_turns
from outplay.errors import (
    ActorDiedError,
    EngineError,
    EnvError,
    EnvTimeoutError,
    ObjectLostError,
    OutplayError,
    RunError,
    TaskError,
)
from outplay.fragments import Fragment
from outplay.policies import ActionScaling, Policy, Weights
from outplay.streams import seed_for, stream

log = logging.getLogger("outplay")

_CLOSE_S = 2.0  # for workers to end what they do and close their environments


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
    kind: type[Policy] = Policy
    more: dict[str, Any] = field(default_factory=dict)  # what this kind takes besides

    def make(self) -> Policy:
        shared = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("kind", "more")}
        return self.kind(**shared, **self.more)


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
    device: str = "cpu"  # that acts
    max_worker_restarts: int = 2  # of one worker, without an answer in between
    driver: tuple[str, int] = field(default_factory=lambda: this_process())


@dataclass
class EpisodeResults:
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    finished: bool = True  # no episode was cut off
    truncated: int = 0  # episodes that were ended at the evaluation's own limit


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many for torch. Acting has one wherever it runs: small batches gain nothing from more."""
    before = torch.get_num_threads()
    if before == number:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def this_process() -> tuple[str, int]:
    return os.uname().nodename, os.getpid()


class RolloutWorker:
    """Hosts EnvGroups: takes Weights, returns Fragments. The same in the program itself and in another process.

    `num_threads` is for environments that step in threads; acting takes one.
    """

    def __init__(
        self, num_threads: int, spec: RolloutSpec, states: dict[int, GroupState], weights: Weights | None = None
    ) -> None:
        self.spec = spec
        self.num_threads = num_threads
        self.policy = spec.policy.make().to(spec.device)
        if weights is not None:
            self.policy.load(weights)
        if this_process() != spec.driver:
            may_end_process()
        with end_called_off():
            self.groups = {
                index: EnvGroup(
                    make_vector(spec.env, spec.group_sizes[index], num_threads, apart=spec.complete_episodes),
                    index,
                    spec.seed,
                    state,
                )
                for index, state in states.items()
            }
        self._evaluation: dict[int, list[Vector]] = {}

    def collect(self, weights: Weights, task: Any = None) -> list[Fragment]:
        """One Fragment from each EnvGroup, in order."""
        self.load(weights)
        spec = self.spec
        if task is not None:
            for group in self.groups.values():
                group.set_task(task)
        total = sum(spec.group_sizes)
        with torch_threads(1), end_called_off():
            return take_turns(
                [
                    group.collecting(
                        self.policy.for_lanes(sum(spec.group_sizes[:index]), spec.group_sizes[index], total),
                        spec.fragment_length,
                        spec.explore,
                        weights.version,
                        spec.complete_episodes,
                    )
                    for index, group in self.groups.items()
                ]
            )

    def load(self, weights: Weights) -> None:
        if weights.version != self.policy.version:
            self.policy.load(weights)

    def play(
        self,
        weights: Weights,
        key: tuple[int, ...],
        episodes: int,
        most_steps: int | None,
        explore: bool,
        task: Any = None,
        longest: int | None = None,
    ) -> EpisodeResults:
        """Play this many episodes side by side, on seeds of their own; or stop after `most_steps` steps in all.

        An episode ends after `longest` steps.
        """
        self.load(weights)
        # Where environments step in threads, half of them step while the policy acts for the other half.
        sizes = split_envs(episodes, 2 if self.spec.env.is_atari else 1)
        if episodes not in self._evaluation:
            self._evaluation[episodes] = [
                make_vector(self.spec.env, size, self.num_threads, apart=True) for size in sizes
            ]
        with torch_threads(1), end_called_off():
            parts = take_turns(
                [
                    playing_episodes(
                        vector,
                        self.policy,
                        self.spec.seed,
                        (*key, part) if len(sizes) > 1 else key,
                        most_steps,
                        explore,
                        task,
                        longest,
                    )
                    for part, vector in enumerate(self._evaluation[episodes])
                ]
            )
        return EpisodeResults(
            [value for part in parts for value in part.returns],
            [length for part in parts for length in part.lengths],
            sum(part.steps for part in parts),
            all(part.finished for part in parts),
            sum(part.truncated for part in parts),
        )

    def get_policy(self) -> Policy:
        return self.policy

    def apply(self, function: Callable[[RolloutWorker], Any]) -> Any:
        return function(self)

    def process(self) -> tuple[str, int]:
        return this_process()

    def close(self) -> None:
        for vectors in ([group.vector for group in self.groups.values()], *self._evaluation.values()):
            for vector in vectors:
                vector.close()


def playing_episodes(
    vector: Vector,
    policy: Policy,
    seed: int,
    key: tuple[int, ...],
    most_steps: int | None,
    explore: bool,
    task: Any = None,
    longest: int | None = None,
) -> Generator[None, None, EpisodeResults]:
    """One episode in each lane, or fewer steps in all: then it is not `finished`."""
    lanes = vector.num_envs
    rng = stream(seed, "evaluation actions", *key)
    seeds = [seed_for(seed, "evaluation episode", *key, lane) for lane in range(lanes)]
    observations = vector.reset(np.ones(lanes, bool), seeds, None if task is None else [task] * lanes)
    playing = np.ones(lanes, bool)
    returns, lengths = np.zeros(lanes), np.zeros(lanes, np.int64)
    cut = 0
    state = policy.initial_state(lanes)
    while playing.any() and (most_steps is None or lengths.sum() < most_steps):
        actions, state, _ = policy.act(observations, state, explore, rng)
        env_actions = policy.to_env(actions)
        vector.begin(env_actions, playing)
        yield
        observations, rewards, terminated, truncated = vector.step(env_actions, playing)
        returns += rewards * playing
        lengths += playing
        playing &= ~(terminated | truncated)
        if longest is not None:
            too_long = playing & (lengths >= longest)
            playing &= ~too_long
            cut += int(too_long.sum())
        if playing.any() and lengths.max() >= LONGEST_EPISODE:
            raise EnvError(
                f"an episode has not ended after {LONGEST_EPISODE:,} steps; set max_episode_steps, or for evaluations "
                "alone evaluation_max_episode_steps"
            )
    return EpisodeResults(returns.tolist(), lengths.tolist(), int(lengths.sum()), not playing.any(), cut)


class WorkerSet:
    """All RolloutWorkers of a run. With `num_workers=0` it is one, in the program itself.

    It keeps, for every EnvGroup, how to build it again: a worker that dies is replaced and the result is the same.
    `latest` gives the present Weights, for workers that start.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        num_workers: int,
        states: list[GroupState] | None,
        latest: Callable[[], Weights],
    ) -> None:
        self.spec = spec
        self.num_workers = min(num_workers, len(spec.group_sizes))
        if num_workers > self.num_workers:
            log.warning(
                "num_workers is %d, but %d environments in %d EnvGroups keep only %d busy; raise num_env_groups",
                num_workers, sum(spec.group_sizes), len(spec.group_sizes), self.num_workers,
            )  # fmt: skip
        self.states = states or [GroupState(size) for size in spec.group_sizes]
        assert [state.lanes for state in self.states] == spec.group_sizes
        self.task: Any = self.states[0].task
        self._latest = latest
        self._to_env = ActionScaling(spec.policy.action_space, spec.policy.normalize_actions, spec.policy.clip_actions)
        self.pool = WorkerPool(self.num_workers, self._arguments, spec.max_worker_restarts)

    def _arguments(self, index: int) -> tuple[Any, ...]:
        """What worker `index` is made from: its share of the EnvGroups, as they are now."""
        groups = range(index, len(self.states), max(1, self.num_workers))
        return self.spec, {group: self.states[group] for group in groups}, self._latest()

    @property
    def replaced(self) -> int:
        """How many workers have died so far."""
        return self.pool.replaced

    def collect(self, weights: Weights) -> list[Fragment]:
        """One Fragment from each EnvGroup, in EnvGroup order."""
        collected = self.pool.call_all("collect", weights, self.task)
        fragments = sorted((f for part in collected for f in part), key=lambda fragment: fragment.group)
        self.advance(fragments)
        return fragments

    def advance(self, fragments: list[Fragment]) -> None:
        """The EnvGroups are where these Fragments of theirs end. The list of states is a new one."""
        states = list(self.states)
        for fragment in fragments:
            env_actions = self._to_env(fragment.actions)
            states[fragment.group] = states[fragment.group].advanced(fragment, env_actions, self.spec.complete_episodes)
        self.states = states

    def begin(self, place: int, weights: Ref) -> Ref:
        """Let one worker collect: a Ref to its Fragments. Who gets them says so by `advance`."""
        return self.pool.begin(place, "collect", weights, self.task)

    def set_task(self, task: Any) -> None:
        """Episodes that start from now on are about `task`, in every EnvGroup."""
        self.task = task
        self.states = [replace(state, task=task) for state in self.states]

    def foreach_worker(self, function: Callable[[RolloutWorker], Any]) -> list[Any]:
        """`function(worker)` on every worker, where it is, with the present weights; the results in order.

        >>> trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        """
        self.pool.call_all("load", self._latest())
        return self.pool.call_all("apply", function)

    def stop(self) -> None:
        self.pool.stop()


class WorkerPool:
    """RolloutWorkers in processes of their own, or one in the program itself; who dies is replaced.

    `arguments(index)` is what worker `index` is made from, now: a replacement is made from what is true then. A worker
    that dies more than `max_restarts` times in a row, without an answer in between, ends the run.
    """

    def __init__(self, num_workers: int, arguments: Callable[[int], tuple[Any, ...]], max_restarts: int) -> None:
        self._arguments = arguments
        self._max_restarts = max_restarts
        self.replaced = 0
        self._deaths = [0] * num_workers  # of each, since it last answered
        self.generations = [0] * num_workers  # of each: how often it was replaced
        self._hint = ""  # why workers may die
        self.local = None if num_workers else RolloutWorker(count_cpus(), *arguments(0))
        self.remote = [self._start(index) for index in range(num_workers)]

    def _start(self, index: int) -> ActorHandle:
        spec, *more = self._arguments(index)
        if spec.env.step_timeout_s is not None:  # code in C that hangs says nothing before its process is ended
            self._hint = f"; environment {spec.env.name!r} may hang: env_step_timeout_s is {spec.env.step_timeout_s:g}"
        worker: ActorHandle = remote(RolloutWorker).remote(1, spec, *more)
        return worker

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """The same call on every worker; the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*arguments)]
        return self.call_each(method, [arguments] * len(self.remote))

    def call_each(self, method: str, jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A call for each job, given out to workers in turn; the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*job) for job in jobs]
        stored = {id(part): engine.put(part) for job in jobs for part in job if isinstance(part, Weights)}
        sent = [tuple(stored.get(id(part), part) for part in job) for job in jobs]
        places = [number % len(self.remote) for number in range(len(jobs))]
        calls: list[Any] = [self.begin(place, method, *job) for place, job in zip(places, sent, strict=True)]
        for number, place in enumerate(places):
            while True:
                if (result := self.end(place, calls[number])) is not None:
                    calls[number] = result
                    break
                for other in range(number, len(jobs)):  # all that it still had to do
                    if places[other] == place:
                        calls[other] = self.begin(place, method, *sent[other])
        return [value for (value,) in calls]

    def begin(self, place: int, method: str, *arguments: Any) -> Ref:
        """A call on one worker; a Ref to its result."""
        called: Ref = getattr(self.remote[place], method).remote(*arguments)
        return called

    def end(self, place: int, call: Ref) -> tuple[Any] | None:
        """The result of a call; None if the worker died or hung over it, and is replaced now."""
        try:
            result = engine.get(call)
        except (ActorDiedError, ObjectLostError, TaskError) as error:
            cause = _cause(error)
            if isinstance(cause, EnvTimeoutError):
                self._replace(place, cause)
                return None
            if isinstance(cause, OutplayError):
                raise cause from error
            if isinstance(error, TaskError):
                raise
            self._replace(place, error)
            return None
        self._deaths[place] = 0
        return (result,)

    def _replace(self, place: int, error: OutplayError) -> None:
        """A worker died, or hangs: start another one in its place, unless that was of no use before."""
        self._deaths[place] += 1
        deaths, hangs = self._deaths[place], isinstance(error, EnvTimeoutError)
        if deaths > self._max_restarts:
            times = f"{deaths} times in a row" if deaths > 1 else "once"
            limit = f"max_worker_restarts is {self._max_restarts}"
            if hangs:
                raise EnvTimeoutError(f"{error}, and so it was {times}, in new processes ({limit})") from error
            raise RunError(f"worker {place} died {times} ({limit}); last: {error}{self._hint}") from error
        if hangs:
            engine.kill(self.remote[place])
        reason = f"hangs ({error})" if hangs else "died"
        log.warning("worker %d %s and is replaced; its environments are built again", place, reason)
        self.replaced += 1
        self.generations[place] += 1
        self.remote[place] = self._start(place)

    def stop(self) -> None:
        if self.local is not None:
            try:
                self.local.close()
            except EnvTimeoutError as error:
                log.warning("%s", error)
        if engine.is_initialized():
            with suppress(EngineError):  # it is another one than theirs
                closing = [worker.close.remote() for worker in self.remote]
                engine.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            for worker in self.remote:
                engine.kill(worker)
        self.remote = []


def _cause(error: BaseException) -> BaseException | None:
    """What went wrong in a worker, to be told as if it had happened here: a mistake of the user's stays one sentence.

    None if the worker itself is gone.
    """
    cause = error.__cause__
    while isinstance(cause, TaskError):
        cause = cause.__cause__
    return None if isinstance(cause, (ActorDiedError, ObjectLostError)) else cause

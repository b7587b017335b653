"""Collectors gather Fragments from all RolloutWorkers. The synchronous one is here, see asynchronous.py for the other.

A Collector knows, for each EnvGroup, how to rebuild it. So a dead worker is replaced, and the result is the same.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from outplay.collect.pool import WorkerPool
from outplay.collect.worker import RolloutSpec, RolloutWorker
from outplay.envs import GroupState
from outplay.fragments import Fragment
from outplay.policies import Weights

log = logging.getLogger("outplay")


class Collector(ABC):
    """What both collectors offer: `collect`, `drain`, and the workers.

    With `num_workers=0` there is one worker, in the main process. `snapshot` returns the present Weights.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        num_workers: int,
        states: list[GroupState] | None,
        snapshot: Callable[..., Weights],
    ) -> None:
        self.spec = spec
        self.num_workers = min(num_workers, len(spec.group_sizes))
        if num_workers > self.num_workers:
            log.warning(
                "num_workers is %d, but there are %d EnvGroups, so %d workers run; set num_env_groups to at least %d",
                num_workers, len(spec.group_sizes), self.num_workers, num_workers,
            )  # fmt: skip
        self.states = states or [GroupState(size) for size in spec.group_sizes]
        assert [state.lanes for state in self.states] == spec.group_sizes
        self.task: Any = self.states[0].task  # of the curriculum
        self._snapshot = snapshot
        self._shown: Weights | None = None  # the last Weights of `foreach_worker`
        self._scaling = spec.policy.action_scaling()
        self.pool = WorkerPool(self.num_workers, self._worker_arguments, spec.max_worker_restarts)

    def _worker_arguments(self, index: int) -> tuple[Any, ...]:
        """What worker `index` is constructed from: its share of the EnvGroups in their present state."""
        groups = range(index, len(self.states), max(1, self.num_workers))
        return self.spec, {group: self.states[group] for group in groups}

    @abstractmethod
    def collect(self, weights: Weights | None, wait: bool = True) -> list[Fragment]:
        """Fragments of workers that act with `weights`.

        The synchronous collector waits for all workers. The asynchronous one returns what has arrived: with `wait` at
        least one Fragment. It requests no more Fragments if `weights` is None (back-pressure).
        """

    @abstractmethod
    def drain(self) -> list[Fragment]:
        """Wait for all requests under way and return their Fragments."""

    @property
    def replaced(self) -> int:
        """How many workers have been replaced so far."""
        return self.pool.replaced

    def _accept(self, fragments: list[Fragment]) -> None:
        """Advance the states of the EnvGroups by these Fragments. The list of states is a new one: rollback keeps the
        old."""
        states = list(self.states)
        for fragment in fragments:
            env_actions = self._scaling(fragment.actions)
            states[fragment.group] = states[fragment.group].advanced(fragment, env_actions, self.spec.complete_episodes)
            if self.num_workers:
                self.pool.health[self._worker_of(fragment)].collected(fragment)
        self.states = states

    def _worker_of(self, fragment: Fragment) -> int:
        """The index of the worker that hosts the EnvGroup of a Fragment."""
        return fragment.group % max(1, self.num_workers)

    def set_task(self, task: Any) -> None:
        """Set the task of episodes that start from now on, in every EnvGroup."""
        self.task = task
        self.states = [replace(state, task=task) for state in self.states]

    def foreach_worker(self, function: Callable[[RolloutWorker], Any]) -> list[Any]:
        """`function(worker)` on every worker, in its process. Returns one result per worker.

        Without worker processes, there is one worker, in the main process. A worker has a copy of the learner's
        weights. What `function` sets in it lasts until the next iteration, or until the learner's weights change
        otherwise. To change the weights that are trained, use `trainer.get_policy().set_weights(…)`.

        >>> trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        """
        return self.pool.call_all("apply", self._present(), function)

    def _present(self) -> Weights:
        """The learner's weights, critics included. They have a new version only if they have changed.

        Workers do not load a version that they have. So this keeps what was set in them since, and `collect`, whose
        Weights always have another version, does not.
        """
        weights, shown = self._snapshot(everything=True), self._shown
        if shown is None or weights.exploration != shown.exploration or not np.array_equal(weights.flat, shown.flat):
            self._shown = shown = weights
        return shown

    def foreach_env(self, function: Callable[[Any], Any]) -> list[list[Any]]:
        """`function(env)` on every environment, in its worker. Returns a list per worker: one result per environment.

        If `function` steps, resets or changes an environment, the run is no longer reproducible: a replaced worker and
        a resumed run do not repeat the change.

        >>> trainer.workers.foreach_env(lambda env: env.unwrapped.get_task())
        [[3, 3], [3, 3]]
        """
        return self.foreach_worker(lambda worker: worker.foreach_env(function))

    def local_worker(self) -> RolloutWorker:
        """The worker of the main process, which has a copy of the learner's weights, as in `foreach_worker`.

        With worker processes, each call makes another one: it has a policy, but no environments.

        >>> trainer.workers.local_worker().get_policy().get_weights()
        """
        worker = self.pool.local or RolloutWorker(1, self.spec, {})
        worker.load(self._present())
        return worker

    def stop(self) -> None:
        self.pool.stop()


class SyncCollector(Collector):
    """Waits for every worker: all Fragments come from the same Weights.

    >>> fragments = collector.collect(weights)  # one of each EnvGroup, in EnvGroup order
    """

    def collect(self, weights: Weights | None, wait: bool = True) -> list[Fragment]:  # noqa: ARG002
        collected = self.pool.call_all("collect", weights, self.task)
        fragments = sorted((f for part in collected for f in part), key=lambda fragment: fragment.group)
        self._accept(fragments)
        return fragments

    def drain(self) -> list[Fragment]:
        return []  # nothing is under way between two calls of collect()

"""RolloutWorkers host EnvGroups and collect Fragments, in the main process or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outplay import messages
from outplay.collect.episodes import EpisodeLimits, EpisodeProgress, EpisodeResults, evaluation_streams, play_episodes
from outplay.config import split_envs
from outplay.envs import EnvGroup, EnvSpec, GroupState, PythonVector, Vector, make_vector
from outplay.envs.deadline import mark_worker_process, watchdog_scope
from outplay.envs.group import interleave
from outplay.errors import EnvError
from outplay.fragments import Fragment
from outplay.policies import Policy, PolicySpec, Weights


@dataclass(frozen=True)
class RolloutSpec:
    """Settings of RolloutWorkers, the same for all workers."""

    env: EnvSpec
    policy: PolicySpec
    seed: int
    group_sizes: list[int]
    fragment_length: int
    complete_episodes: bool
    explore: bool
    device: str = "cpu"  # of the acting policy
    max_worker_restarts: int = 2  # of one worker in a row, without a result in between
    info_metrics: tuple[str, ...] = ()
    driver: tuple[str, int] = field(default_factory=lambda: this_process())
    relay: Path | None = field(default_factory=messages.relay)  # for what environments print


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads for a block. Acting always uses one: more do not speed up small batches."""
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
    """Hosts EnvGroups: receives Weights, returns Fragments. Works the same in the main process and in a worker process.

    `num_threads` is for native vectors that step in threads. Acting uses one thread.
    """

    def __init__(self, num_threads: int, spec: RolloutSpec, states: dict[int, GroupState]) -> None:
        self.spec = spec
        self.num_threads = num_threads
        self.policy = spec.policy.make_for_loading().to(spec.device)
        if this_process() != spec.driver:
            mark_worker_process()
            if spec.relay is not None:
                messages.join(spec.relay)
        # All EnvGroups step at once: more threads than cores would wait for each other.
        each = min(num_threads, max(2, num_threads // max(1, len(states))))
        with watchdog_scope():
            self.groups = {
                index: EnvGroup(
                    make_vector(spec.env, spec.group_sizes[index], each, separate=spec.complete_episodes),
                    index,
                    spec.seed,
                    state,
                    spec.info_metrics,
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
        with torch_threads(1), watchdog_scope():
            fragments: list[Fragment] = interleave(
                [
                    group.collect_interleaved(
                        self.policy.for_lanes(sum(spec.group_sizes[:index]), spec.group_sizes[index], total),
                        spec.fragment_length,
                        spec.explore,
                        weights.version,
                        spec.complete_episodes,
                    )
                    for index, group in self.groups.items()
                ]
            )
        for fragment in fragments:
            fragment.updates = weights.updates
        return fragments

    def load(self, weights: Weights) -> None:
        """Load Weights if their version is new. Every call carries its Weights, so a worker needs no other update."""
        if weights.version != self.policy.version:
            self.policy.load(weights)

    def play(
        self,
        weights: Weights,
        key: tuple[int, ...],
        episodes: int,
        explore: bool,
        limits: EpisodeLimits,
        task: Any = None,
        progress: EpisodeProgress | None = None,
    ) -> EpisodeResults:
        """Play this many evaluation episodes in parallel. `key` selects their seeds."""
        self.load(weights)
        # Where environments step in threads, half of them step while the policy acts for the other half.
        sizes = split_envs(episodes, 2 if self.spec.env.is_atari else 1)
        if episodes not in self._evaluation:
            # With a thread for each, episodes that have ended hold up no others. Then one call for all is faster.
            separate = self.num_threads < episodes
            self._evaluation[episodes] = [
                make_vector(self.spec.env, size, self.num_threads, separate) for size in sizes
            ]
        players = []
        for part, vector in enumerate(self._evaluation[episodes]):
            own = (*key, part) if len(sizes) > 1 else key
            seeds, rng = evaluation_streams(self.spec.seed, own, vector.num_envs)
            players.append(
                play_episodes(
                    vector,
                    self.policy,
                    seeds,
                    rng,
                    explore,
                    limits,
                    task,
                    progress=progress,
                    info_metrics=self.spec.info_metrics,
                )
            )
        with torch_threads(1), watchdog_scope():
            parts = interleave(players)
        return EpisodeResults(
            [value for part in parts for value in part.returns],
            [length for part in parts for length in part.lengths],
            sum(part.steps for part in parts),
            all(part.finished for part in parts),
            sum(part.truncated for part in parts),
            [infos for part in parts for infos in part.infos],
        )

    def play_timesteps(
        self,
        weights: Weights,
        number: int,
        timesteps: int,
        explore: bool,
        longest: int | None,
        task: Any = None,
        progress: EpisodeProgress | None = None,
    ) -> list[EpisodeResults]:
        """Play evaluation episodes one after the other, for this many steps in all. `number` selects their seeds."""
        results: list[EpisodeResults] = []
        while (left := timesteps - sum(result.steps for result in results)) > 0:
            limits = EpisodeLimits(total_steps=left, episode_steps=longest)
            results.append(self.play(weights, (number, len(results)), 1, explore, limits, task, progress))
        return results

    def get_policy(self) -> Policy:
        return self.policy

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """`function(env)` on every environment of this worker, in the order of EnvGroups and lanes."""
        results = []
        for group in self.groups.values():
            if not isinstance(group.vector, PythonVector):
                raise EnvError(
                    f"environment {self.spec.env.name!r} runs in a native vector, which has no separate environments; "
                    "use foreach_worker() and worker.groups[…].vector"
                )
            results += [function(env) for env in group.vector.envs]
        return results

    def apply(self, weights: Weights, function: Callable[[RolloutWorker], Any]) -> Any:
        self.load(weights)
        return function(self)

    def process(self) -> tuple[str, int]:
        return this_process()

    def close(self) -> None:
        for vectors in ([group.vector for group in self.groups.values()], *self._evaluation.values()):
            for vector in vectors:
                vector.close()

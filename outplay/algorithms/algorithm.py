"""The Algorithm: wires workers and learner into one iteration. Its API has the names of RLlib's trainers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from outplay.algorithms import iteration, saving
from outplay.algorithms.atomic import atomically
from outplay.algorithms.resolution import num_workers, resolved
from outplay.collect import AsyncCollector, Collector, Evaluator, RolloutSpec, SyncCollector, torch_threads
from outplay.config import AlgorithmConfig, plain, validated
from outplay.envs import EnvSpec, GroupState, check_trust, env_name, find_env, import_folders, probe_env
from outplay.errors import ConfigError, EnvError
from outplay.fragments import Fragment
from outplay.learning.learner import Learner
from outplay.memory import enough_memory
from outplay.metrics import EpisodeWindow, Timers
from outplay.policies import Policy, PolicySpec, Weights
from outplay.runs.checkpoint import (
    Checkpoint,
    OnDisk,
    name_of,
    read_checkpoint,
    read_state,
    use_checkpoint,
    write_checkpoint,
)
from outplay.runs.results import new_run_folder, results_folder
from outplay.streams import stream

log = logging.getLogger("outplay")

_ATARI_EVALUATION_FRAMES = 18_000  # 5 minutes of play


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that an algorithm takes."""

    cpus: int
    gpus: int


class Algorithm:
    """One algorithm with its environments. Subclasses, as PPO, name their settings and learner.

    >>> with PPO(env="CartPole-v1", config={"num_workers": 2}) as trainer:
    ...     for _ in range(10):
    ...         result = trainer.train()
    ...     checkpoint = trainer.save()
    """

    Config: ClassVar[type[AlgorithmConfig]]
    Learner: ClassVar[type[Learner[Any]]]
    policy_class: ClassVar[type[Policy]] = Policy
    with_value: ClassVar[bool] = True

    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        *,
        folders: Iterable[Path] = (),
        resuming: bool = False,
    ) -> None:
        """`folders`: where the module of an import path is looked up, too. `resuming`: a checkpoint will be restored,
        so settings that its result depends on stay as they are."""
        if isinstance(config, AlgorithmConfig):
            config = {name: getattr(config, name) for name in config.model_fields_set}
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"config: settings (key: value) are needed, not {config!r}")
        given = dict(config or {})
        other = given.pop("env", None)
        if env is not None and other is not None and env_name(env) != env_name(other):
            raise ConfigError(f"two environments are named: env is {env!r}, and env in config is {other!r}")
        env = other if env is None else env
        if env is None:
            raise ConfigError(f"{type(self).__name__} needs an environment: env='CartPole-v1', a class, an import path")
        name, factory = find_env(env, folders)
        self.env_folders = import_folders(name)
        self.config = validated(self.Config, {**given, "env": name}, f"{type(self).__name__} config")
        log.setLevel(self.config.log_level)
        self.env_spec = EnvSpec(
            name=name,
            factory=factory,
            env_config=self.config.env_config,
            max_episode_steps=self.config.max_episode_steps,
            frame_stack=self.config.frame_stack,
            atari_preprocessing=self.config.atari_preprocessing,
            step_timeout_s=self.config.env_step_timeout_s,
            fire_on_reset=self.config.fire_on_reset,
        )
        self.probe = probe_env(self.env_spec, self.config.seed)
        self.env_spec = replace(self.env_spec, global_streams=self.probe.global_streams)
        self._check_masks()
        self.config = resolved(self.config, self.env_spec, self.probe, resuming)
        self.inexact = self.probe.inexact  # why resuming would not be exact
        self._tell_about_environment()
        self.iteration = 0
        self.timesteps = 0
        self.seconds = 0.0
        self.timers = Timers()
        self.episodes = EpisodeWindow(self.config.metrics_num_episodes)
        with enough_memory("the network"):
            self.policy = self._policy_spec().make().to("cuda" if self.config.num_gpus else "cpu")
            self.learner = self.Learner(self.policy, self.config, self.env_spec.stacked_frames)
        self._collector: Collector | None = None
        self._states: list[GroupState] | None = None
        self._version = 0  # of the Weights: each snapshot has its own
        self.can_roll_back = False  # something that is done as a whole or not at all is under way
        self._evaluator: Evaluator | None = None
        self._task_env: Any = None
        self._folder: Path | None = None
        self._on_disk = OnDisk()  # the segments of the checkpoint that was written or read last
        self._returns: list[float] = []  # of the episodes since the last result
        self._lengths: list[int] = []
        self._action_rng = stream(self.config.seed, "single actions")

    @property
    def num_workers(self) -> int:
        """How many worker processes there are to be."""
        return num_workers(self.config, self.probe)

    def resources(self) -> Resources:
        """What this algorithm takes: CPUs for the learner's threads and for every worker process, and GPUs."""
        assert isinstance(self.config.learner_threads, int)
        shards = getattr(self.config, "replay_shards", 0)
        processes = self.num_workers + self.config.evaluation_num_workers + shards
        return Resources(cpus=self.config.learner_threads + processes, gpus=self.config.num_gpus)

    def _check_masks(self) -> None:
        if self.probe.has_action_masks and not self.Learner.supports_masks:
            raise EnvError(
                f"environment {self.env_spec.name!r} has action_masks(), and {type(self).__name__} does not support "
                "action masks; use PPO, A2C or PG, or an environment without them"
            )

    def _tell_about_environment(self) -> None:
        name, probe = self.env_spec.name, self.probe
        if probe.inexact:
            what_to_do = f"; {probe.remedy}" if probe.remedy else ""
            log.warning("environment %r: %s, so a resumed run will not be exact%s", name, probe.inexact, what_to_do)
        if probe.left_out:
            log.warning("environment %r: text is left out of its observations: %s", name, ", ".join(probe.left_out))

    def _policy_spec(self) -> PolicySpec:
        config = self.config
        return PolicySpec(
            observation_space=self.probe.observation_space,
            action_space=self.probe.action_space,
            model=config.model,
            seed=config.seed,
            with_value=self.with_value,
            normalize_observations=config.normalize_observations,
            normalize_actions=config.normalize_actions,
            clip_actions=config.clip_actions,
            policy_class=self.policy_class,
            options=self.policy_class.options_from(config),
        )

    @property
    def group_sizes(self) -> list[int]:
        return self.config.group_sizes

    def _rollout_spec(self) -> RolloutSpec:
        config = self.config
        return RolloutSpec(
            env=self.env_spec,
            policy=self._policy_spec(),
            seed=config.seed,
            group_sizes=self.group_sizes,
            fragment_length=config.fragment_length,
            complete_episodes=config.batch_mode == "complete_episodes",
            explore=config.explore,
            device="cuda" if config.act_on_gpu else "cpu",
            max_worker_restarts=config.max_worker_restarts,
        )

    @property
    def collector(self) -> Collector:
        """Gathers Fragments from the RolloutWorkers, which start when first used."""
        if self._collector is None:
            kind = AsyncCollector if self.config.is_async else SyncCollector
            self._collector = kind(self._rollout_spec(), self.num_workers, self._states, self.snapshot)
        return self._collector

    @property
    def workers(self) -> Collector:
        """RLlib's name of the collector: `trainer.workers.foreach_worker(…)`."""
        return self.collector

    @property
    def worker_restarts(self) -> list[int]:
        """How often each worker was replaced; empty as long as none runs in a process of its own."""
        return [] if self._collector is None else list(self._collector.pool.generations)

    def snapshot(self, at_random: bool = False, everything: bool = False) -> Weights:
        """The present Weights, with a version of their own; or Weights that act at random.

        `everything`: with critics, too, which acting does not need.
        """
        self._version += 1
        if at_random:
            return self.policy.random_weights(self._version)
        return self.policy.snapshot(self._version, self.learner.updates, everything)

    # One iteration.

    def train(self) -> dict[str, Any]:
        """Collect a batch, learn from it: one iteration. Returns its figures.

        An iteration is done as a whole or not at all: whatever ends it before (Ctrl-C, an environment that raises, a
        gradient that is not finite), it is rolled back, and `train()` begins it again.
        """
        return atomically(self, f"iteration {self.iteration + 1}", self._train)

    def _train(self) -> dict[str, Any]:
        started, steps_before, seconds_before = time.perf_counter(), self.timesteps, self.seconds
        if self.config.normalize_observations and not self.learner.is_normaliser_fitted:
            iteration.fit_normalisers(self)
        self.learner.start_iteration()
        metrics = iteration.asynchronous(self) if self.config.is_async else iteration.synchronous(self)
        self.iteration += 1
        evaluation = self._evaluation_if_due()
        seconds = time.perf_counter() - started
        self.seconds = seconds_before + seconds
        returns, self._returns = self._returns, []
        lengths, self._lengths = self._lengths, []
        result = {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps,
            **self.episodes.figures(),
            "episodes_this_iter": len(returns),
            "episode_returns": returns,
            "episode_lengths": lengths,
            "time_this_iter_s": seconds,
            "time_total_s": self.seconds,
            "env_steps_per_s": (self.timesteps - steps_before) / seconds,
            "learner": metrics,
            "stages_s": self.timers.take(),
            **({} if evaluation is None else {"evaluation": evaluation}),
        }
        self._next_task(result)
        return result

    def count(self, fragments: list[Fragment]) -> None:
        """Count the steps and finished episodes of Fragments."""
        for fragment in fragments:
            self.timesteps += fragment.steps
            self.episodes.add(fragment.episode_returns, fragment.episode_lengths)
            self._returns += fragment.episode_returns.tolist()
            self._lengths += fragment.episode_lengths.tolist()

    def _drain(self) -> None:
        """Finish all that is under way. Synchronous algorithms have nothing under way between two iterations."""
        collector = self._collector
        if isinstance(collector, AsyncCollector):
            started = time.perf_counter()
            atomically(self, "draining", lambda: iteration.drain(self, collector))
            self.seconds += time.perf_counter() - started

    def _present_states(self) -> list[GroupState] | None:
        return self._states if self._collector is None else self._collector.states

    @property
    def task(self) -> Any:
        """Of the curriculum: what episodes that start now are about."""
        if self._collector is not None:
            return self._collector.task
        return self._states[0].task if self._states else None

    def _drop_workers(self, states: list[GroupState] | None) -> None:
        """End the workers; if they are needed again, their environments are built from `states`."""
        collector, self._collector, self._states = self._collector, None, states
        if collector is not None:
            collector.stop()

    def _drop_evaluator(self) -> None:
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.stop()

    def learner_threads(self) -> AbstractContextManager[None]:
        assert isinstance(self.config.learner_threads, int)
        return torch_threads(self.config.learner_threads)

    def _next_task(self, result: dict[str, Any]) -> None:
        """Curriculum: what episodes that start from now on are about. None: what they were about before."""
        if self.config.env_task_fn is None:
            return
        if self._task_env is None:
            self._task_env = self.env_spec.make()
        env = self._task_env.unwrapped
        if self.collector.task is not None and hasattr(env, "set_task"):
            env.set_task(self.collector.task)
        task = self.config.env_task_fn(result, env, self.config.env_config)
        if task is not None:
            self.collector.set_task(plain(task, "env_task_fn"))

    # Evaluation.

    def _evaluation_if_due(self) -> dict[str, Any] | None:
        interval = self.config.evaluation_interval
        return self.evaluate() if interval and self.iteration % interval == 0 else None

    def evaluate(self, checkpoint: str | Path | None = None) -> dict[str, Any]:
        """Play episodes with the policy, or with that of a checkpoint, on seeds that training does not use.

        How many is `evaluation_duration`; actions are the likeliest ones unless `evaluation_explore` is set.
        """
        self._drain()
        policy = self.policy
        if checkpoint is not None:
            saved = use_checkpoint(checkpoint, read_checkpoint)
            saving.check_fits(self, saved.state)
            policy = self._policy_spec().make()
            saving.put_weights(policy, saving.upgraded(saved, policy))
        if self._evaluator is None:
            spec = self._rollout_spec()
            elsewhere = self.config.evaluation_num_workers  # processes that have no GPU
            self._evaluator = Evaluator(replace(spec, device="cpu") if elsewhere else spec, elsewhere)
        with self.timers("evaluate"):
            return self._evaluator.evaluate(
                policy.snapshot(self._evaluator.next_version()),
                self.iteration,
                self.config.evaluation_duration,
                self.config.evaluation_duration_unit,
                self.config.evaluation_explore,
                self.task,
                self.longest_evaluation_episode,
            )

    @property
    def longest_evaluation_episode(self) -> int | None:
        """`evaluation_max_episode_steps`, or what `auto` means here."""
        limit = self.config.evaluation_max_episode_steps
        if limit != "auto":
            return limit
        return _ATARI_EVALUATION_FRAMES // self.env_spec.frame_skip if self.env_spec.is_atari else None

    # Acting.

    def get_policy(self) -> Policy:
        return self.policy

    def compute_single_action(
        self, observation: Any, state: dict[str, Any] | None = None, explore: bool | None = None, mask: Any = None
    ) -> Any:
        """The action for one observation; with a recurrent `state`, (action, next state, extras).

        Without a state, the observation is taken as the first one of an episode. `mask` is what the environment's
        `action_masks()` returns.

        >>> state = trainer.get_policy().initial_state(1)
        >>> action, state, _ = trainer.compute_single_action(observation, state)
        """
        masks = None if mask is None else {"": mask}
        actions, next_state, extras = self._act({"": observation}, state, masks, explore)
        if state is None:
            return actions[""]
        return actions[""], next_state, {name: array[0] for name, array in extras.items()}

    def compute_actions(
        self, observations: Mapping[Any, Any], explore: bool | None = None, masks: Mapping[Any, Any] | None = None
    ) -> dict[Any, Any]:
        """Actions for many observations by name, in one go.

        >>> trainer.compute_actions({"left": obs1, "right": obs2})
        {'left': 0, 'right': 1}
        """
        return self._act(observations, None, masks, explore)[0] if observations else {}

    def _act(
        self,
        observations: Mapping[Any, Any],
        state: dict[str, Any] | None,
        masks: Mapping[Any, Any] | None,
        explore: bool | None,
    ) -> tuple[dict[Any, Any], dict[str, Any], dict[str, np.ndarray]]:
        chosen = self.config.explore if explore is None else explore
        return self.policy.act_by_name(observations, state, masks, chosen, self._action_rng)

    def get_config(self) -> dict[str, Any]:
        """All settings, defaults included."""
        return self.config.model_dump(mode="json", by_alias=True)

    # Saving.

    def save(self, folder: str | Path | None = None) -> str:
        """Write a checkpoint; its path. Without a folder: under ~/outplay_results."""
        parent = Path(folder) if folder is not None else self._default_folder()
        self._drain()
        known = self._on_disk.present()
        checkpoint = saving.collect_state(self, known)
        if not checkpoint.state["exact"] and not self.inexact:
            self.inexact = "an episode is too long to be played again"
            log.warning("environment %r: %s, so a resumed run will not be exact", self.env_spec.name, self.inexact)
        folder = parent / name_of(self.iteration)
        self._on_disk = write_checkpoint(checkpoint, folder, self._on_disk, known)
        return str(folder)

    def _default_folder(self) -> Path:
        if self._folder is None:
            self._folder = new_run_folder(results_folder(None), "python", type(self).__name__, self.env_spec.name)
        return self._folder / "checkpoints"

    def restore(self, checkpoint: str | Path) -> None:
        """Go on from a checkpoint of the same algorithm and spaces. If it does not fit, nothing is changed."""
        use_checkpoint(checkpoint, self._restore)

    def _restore(self, folder: Path) -> None:
        saved = read_checkpoint(folder)
        saving.check_fits(self, saved.state)
        atomically(self, "restoring", lambda: self._take_over(folder, saved))

    def _take_over(self, folder: Path, saved: Checkpoint) -> None:
        states, taken = saving.restore_state(self, saved)
        self._drop_workers(states)
        self._on_disk = OnDisk(folder, saved.hashes) if taken else OnDisk()

    def clone_from(self, checkpoint: str | Path) -> None:
        """Take weights, optimizer, normalisers, replay and environments from a checkpoint; keep the own counters.

        For population-based training: a run continues from the state of another. If it does not fit, nothing changes.
        """
        atomically(self, "cloning", lambda: self._clone_from(checkpoint))

    def _clone_from(self, checkpoint: str | Path) -> None:
        counters = {name: getattr(self, name) for name in ("iteration", "timesteps", "seconds", "_returns", "_lengths")}
        total = self.episodes.total
        self.restore(checkpoint)
        for name, value in counters.items():
            setattr(self, name, value)
        self.episodes.total = total

    @classmethod
    def from_checkpoint(
        cls, checkpoint: str | Path, env: Any = None, config: Mapping[str, Any] | None = None, trust: bool = False
    ) -> Self:
        """An algorithm as it was when it was saved; `config` changes settings of it.

        An import path that stands only in the checkpoint is not imported: give `env` again, or `trust=True`. Only with
        `trust` is its module looked up in the folders that the checkpoint names.
        """
        return use_checkpoint(checkpoint, lambda folder: cls._from_folder(folder, env, config, trust))

    @classmethod
    def _from_folder(cls, folder: Path, env: Any, config: Mapping[str, Any] | None, trust: bool) -> Self:
        state = read_state(folder)
        if "Config" not in vars(cls):  # Algorithm itself: whichever it is
            from outplay.algorithms import find_algorithm

            cls = find_algorithm(state["algorithm"])  # type: ignore[assignment]
        saving.check_algorithm(cls.__name__, state)
        check_trust(state["env"], env, trust, f"checkpoint {folder}", "give env= again, or trust=True")
        settings = {**state["config"], **(config or {}), "env": None}
        folders = map(Path, state["env_folders"] if trust else [])
        trainer = cls(env=state["env"] if env is None else env, config=settings, folders=folders, resuming=True)
        try:
            trainer.restore(folder)
        except BaseException:
            trainer.stop()
            raise
        return trainer

    def load_weights(self, checkpoint: str | Path) -> None:
        """Take the weights of a checkpoint, normalisers included, and nothing else: a new run from old weights."""
        saved = use_checkpoint(checkpoint, read_checkpoint)
        saving.check_spaces(self, saved.state)
        atomically(self, "taking weights", lambda: saving.restore_weights(self, saved))

    def stop(self) -> None:
        """Close the environments and end the workers. Trained further, they go on where they were."""
        try:
            self._drain()
        finally:
            self.abandon()
            self._drop_evaluator()
            if self._task_env is not None:
                self._task_env.close()
                self._task_env = None

    def abandon(self) -> None:
        """End the workers without waiting for what is under way: it will be collected again."""
        self._drop_workers(self._present_states())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.abandon()
        self.stop()

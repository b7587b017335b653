"""Algorithm: connects workers and learner into training iterations. Its API has the names of RLlib's trainers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np

from outplay.algorithms import (
    acting,
    curriculum,
    describing,
    evaluating,
    imported,
    iteration,
    pending,
    saving,
    setup,
    watching,
)
from outplay.algorithms.atomic import atomically
from outplay.algorithms.resolution import num_workers, resolved
from outplay.collect import AsyncCollector, Collector, EpisodeProgress, Evaluator, SyncCollector, torch_threads
from outplay.collect.window import check_window
from outplay.config import AlgorithmConfig, Experiment
from outplay.envs import GroupState, find_env, import_folders, probe_env
from outplay.errors import ConfigError, RunError
from outplay.fragments import Fragment
from outplay.learning.learner import Learner
from outplay.memory import enough_memory
from outplay.metrics import EpisodeWindow, Result, Timers
from outplay.policies import Policy, PolicySpec, Weights
from outplay.runs.checkpoint import (
    Checkpoint,
    SavedSegments,
    name_of,
    read_checkpoint,
    use_checkpoint,
    write_checkpoint,
)
from outplay.runs.results import new_run_folder, results_folder
from outplay.settings import validated
from outplay.streams import stream

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from outplay.runs.callbacks import Callback
    from outplay.runs.run import Run

    # Python has defaults of type variables from 3.13 on.
    C_co = DefaultingTypeVar("C_co", bound=AlgorithmConfig, covariant=True, default=AlgorithmConfig)
else:
    C_co = TypeVar("C_co", bound=AlgorithmConfig, covariant=True)

log = logging.getLogger("outplay")


class Algorithm(Generic[C_co]):
    """Base class of algorithms. A subclass, as `PPO(Algorithm[PPOConfig])`, sets `Config` and `Learner`.

    >>> with PPO("CartPole-v1", num_workers=2) as trainer:
    ...     for _ in range(10):
    ...         result = trainer.train()
    ...     checkpoint = trainer.save()
    """

    Config: ClassVar[type[AlgorithmConfig]]
    Learner: ClassVar[type[Learner[Any]]]
    policy_class: ClassVar[type[Policy]] = Policy
    with_value: ClassVar[bool] = True

    config: C_co

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Config" in vars(cls):
            cls.__doc__ = describing.with_settings(cls.__doc__ or "", cls.Config)

    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        *,
        run: str | Mapping[str, Any] | None = None,
        folders: Iterable[Path] = (),
        resuming: bool = False,
        **settings: Any,
    ) -> None:
        """Check the environment and the settings, and make the network. Workers start on first use.

        env       a Gymnasium id, a class, a function, an import path or a registered name
        config    settings; keyword arguments override them: PPO("CartPole-v1", lr=1e-3)
        run       record a run, which `outplay runs` lists and `outplay train --resume` resumes: its name, or settings
                  of experiment files ({"name": "poles", "loggers": ["csv"], "checkpoint_freq": 5})
        folders   additional folders to import modules from
        resuming  keep settings that are part of the result, for a checkpoint that is restored
        """
        algorithm, folders = type(self).__name__, list(folders)
        env, given = setup.env_and_settings(algorithm, env, config, settings)
        name, factory = find_env(env, folders)
        self._env = env  # as it was given
        given, named = setup.named_evaluation_env(given, folders)
        checked = validated(self.Config, {**given, "env": name}, f"{algorithm} config", lambda: Experiment)
        self.config = cast("C_co", checked)
        self.task_function = curriculum.task_function(checked.env_task_fn, folders)
        self._model = imported.with_classes(checked.model, folders)
        evaluated = import_folders(named[0]) if named else []
        self.env_folders = list(dict.fromkeys([*import_folders(name), *evaluated, *imported.folders_of(checked)]))
        log.setLevel(self.config.log_level)
        env_spec = setup.env_spec(name, factory, self.config)
        self.probe = probe_env(env_spec, self.config.seed)
        self.env_spec = replace(env_spec, global_streams=self.probe.global_streams)
        curriculum.check_tasks(name, self.probe, self.config)
        training = setup.EvaluationEnv(self.env_spec, self.probe)
        self.evaluation_env = setup.evaluation_env(self.config, training, named)
        if self.config.render_env:
            check_window(self.evaluation_env.spec)
        self.config = resolved(self.config, self.env_spec, self.probe, resuming)
        setup.warn_about_environment(name, self.probe)
        self.inexact = self.probe.inexact  # why a resumed run would not be exact; empty if it is
        self.iteration = 0
        self.timesteps = 0
        self.seconds = 0.0
        self.timers = Timers()
        self.episodes = EpisodeWindow(self.config.metrics_num_episodes, self.config.info_metrics)
        with enough_memory("the network"):
            self.policy = self._policy_spec.make().to("cuda" if self.config.num_gpus else "cpu")
            setup.check_recurrence(self.policy, algorithm, self.Learner.supports_recurrence)
            self.learner = self.Learner(self.policy, self.config, self.env_spec.stacked_frames)
        self._collector: Collector | None = None
        self.level = curriculum.Level()
        self._states: list[GroupState] | None = curriculum.states_on(self.config, self.level, None)
        self._version = 0  # of the last snapshot of the Weights
        self.in_transaction = False  # see atomic.py
        self._evaluator: Evaluator | None = None
        self.pending_evaluation: pending.PendingEvaluation | None = None  # beside training
        self.episodes_since_video: int | None = None  # evaluation episodes; None: record_env has recorded none yet
        self.is_rendering = self.is_recording = True  # false after a failure of render_env or record_env
        self.videos: Path | None = None  # the folder for videos of the run
        self._task_env: Any = None
        self._folder: Path | None = None
        self._saved_segments = SavedSegments()
        self._returns: list[float] = []  # of episodes since the last result
        self._lengths: list[int] = []
        self._action_rng = stream(self.config.seed, "single actions")
        self._last_result: Result | None = None
        self.run: Run | None = None
        if run is not None:
            self._record(run)

    def _record(self, run: str | Mapping[str, Any]) -> None:
        from outplay.algorithms import recording  # it needs this module

        self.run = recording.new_run(self, run)

    def __repr__(self) -> str:
        """<PPO on CartPole-v1: iteration 3, 6,144 steps, return 45.2>."""
        returns = f", return {self.episodes.metrics()['episode_return_mean']:.1f}" if self.episodes.returns else ""
        progress = f"iteration {self.iteration}, {self.timesteps:,} steps{returns}"
        return f"<{type(self).__name__} on {self.env_spec.name}: {progress}>"

    @property
    def num_workers(self) -> int:
        """The number of worker processes: at most one per EnvGroup."""
        return min(num_workers(self.config, self.probe), self.config.num_groups)

    def resources(self) -> setup.Resources:
        """CPUs of the learner's threads and of all worker processes, and GPUs."""
        return setup.resources(self.config, self.num_workers)

    @property
    def _policy_spec(self) -> PolicySpec:
        return setup.policy_spec(self.config, self._model, self.probe, self.policy_class, self.with_value)

    @property
    def group_sizes(self) -> list[int]:
        """The number of environments in each EnvGroup."""
        return self.config.group_sizes

    @property
    def collector(self) -> Collector:
        """Collects Fragments from the RolloutWorkers, which start on first use."""
        if self._collector is None:
            kind = AsyncCollector if self.config.is_async else SyncCollector
            spec = setup.rollout_spec(self.config, self.env_spec, self._policy_spec)
            self._collector = kind(spec, num_workers(self.config, self.probe), self._states, self.snapshot)
        return self._collector

    @property
    def workers(self) -> Collector:
        """RLlib's name of the collector: `trainer.workers.foreach_worker(…)`."""
        return self.collector

    @property
    def worker_restarts(self) -> list[int]:
        """The number of restarts of each worker process; empty before the first worker process starts."""
        return [] if self._collector is None else list(self._collector.pool.generations)

    def snapshot(self, at_random: bool = False, everything: bool = False) -> Weights:
        """A copy of the current Weights with a new version.

        `at_random`: Weights for random actions instead. `everything`: include critics, which acting does not need.
        """
        self._version += 1
        if at_random:
            return self.policy.random_weights(self._version)
        return self.policy.snapshot(self._version, self.learner.updates, everything)

    # Training.

    def learn(
        self,
        total_timesteps: int | None = None,
        stop: Mapping[str, float] | None = None,
        callbacks: Callback | str | Iterable[Callback | str] = (),
        progress: bool = False,
    ) -> Self:
        """Train for `total_timesteps` more steps, or until a condition of `stop` is reached: whichever comes first.

        `stop` has the keys of experiment files: {"episode_return_mean": 475}. `callbacks` are objects or import paths.
        `progress` shows a progress bar, in terminals and notebooks. The next call continues exactly. Iterations are not
        split, so the last one may exceed `total_timesteps`.

        >>> trainer = PPO("CartPole-v1", lr=1e-3).learn(100_000, stop={"episode_return_mean": 475}, progress=True)
        >>> trainer.last_result["episode_return_mean"]
        475.8
        """
        from outplay.algorithms import recording

        recording.learn(self, total_timesteps, stop, callbacks, progress)
        return self

    def train(self) -> Result:
        """Run one iteration: collect a batch and learn from it. Returns metrics.

        An iteration is atomic. After a failure (Ctrl-C, an environment that raises, a gradient that is not finite) it
        is rolled back, and the next `train()` repeats it. With a run, the iteration is recorded.
        """
        return self.training_step() if self.run is None else self.run.step()

    @property
    def last_result(self) -> Result:
        """The result of the last iteration. Raises RunError if none was trained since this object was made."""
        if self._last_result is None:
            raise RunError("there is no result yet: call learn() or train() first")
        return self._last_result

    def training_step(self) -> Result:
        """The iteration itself, without the run: `Run.step` calls it."""
        if self._last_result is None:
            watching.before_training(self)
        self._last_result = atomically(self, f"iteration {self.iteration + 1}", lambda: iteration.iterate(self))
        return self._last_result

    def count(self, fragments: list[Fragment]) -> None:
        """Count the steps and finished episodes of Fragments."""
        for fragment in fragments:
            self.timesteps += fragment.steps
            of_level = curriculum.of_level(self.config, self.task, fragment)
            infos = fragment.episode_infos[of_level] if self.config.info_metrics else None
            self.episodes.add(fragment.episode_returns[of_level], fragment.episode_lengths[of_level], infos)
            self.episodes.total += of_level.count(False)
            self._returns += fragment.episode_returns.tolist()
            self._lengths += fragment.episode_lengths.tolist()

    def _drain(self) -> None:
        """Asynchronous: accept all pending Fragments and make all due updates. Synchronous: nothing is pending."""
        collector = self._collector
        if isinstance(collector, AsyncCollector):
            started = time.perf_counter()
            atomically(self, "draining", lambda: iteration.drain(self, collector))
            self.seconds += time.perf_counter() - started

    def _group_states(self) -> list[GroupState] | None:
        return self._states if self._collector is None else self._collector.states

    @property
    def task(self) -> Any:
        """The curriculum task of episodes that start now."""
        if self._collector is not None:
            return self._collector.task
        return self._states[0].task if self._states else None

    def start_on(self, saved: Mapping[str, Any]) -> None:
        """Take the level and the task of a checkpoint's state.json, without its environments: for an evaluation."""
        self.level = curriculum.restored_level(self.config, saved["level"])
        task = saved["groups"][0]["task"] if saved["groups"] else None
        self._states = [GroupState(size, task=task) for size in self.group_sizes]

    def _drop_workers(self, states: list[GroupState] | None) -> None:
        """Stop the workers. New workers will rebuild their environments from `states`."""
        collector, self._collector, self._states = self._collector, None, states
        if collector is not None:
            collector.stop()

    def _drop_evaluator(self) -> None:
        evaluator, self._evaluator = self._evaluator, None
        if self.pending_evaluation is not None:
            self.pending_evaluation.calls = None  # other workers will repeat them
        if evaluator is not None:
            evaluator.stop()

    def learner_threads(self) -> AbstractContextManager[None]:
        """Torch uses the threads of the learner within this context."""
        assert isinstance(self.config.learner_threads, int)
        return torch_threads(self.config.learner_threads)

    # Evaluation.

    def evaluate(
        self,
        checkpoint: str | Path | None = None,
        *,
        episodes: int | None = None,
        progress: EpisodeProgress | None = None,
    ) -> dict[str, Any]:
        """Evaluate the policy, or that of a checkpoint, on seeds that training does not use. Returns metrics.

        `episodes` is the number of episodes; otherwise `evaluation_duration` sets the length. Actions are greedy unless
        `evaluation_explore` is set. `progress` is updated while the main process evaluates.
        """
        return evaluating.evaluate(self, checkpoint, episodes, progress)

    @property
    def longest_evaluation_episode(self) -> int | None:
        """Maximum steps of an evaluation episode: `evaluation_max_episode_steps` with `auto` resolved."""
        return evaluating.longest_episode(self)

    @property
    def evaluation_task(self) -> Any:
        """The curriculum task of evaluation episodes. Another environment than that of training has none."""
        return self.task if self.config.evaluation_config.env is None else None

    # Acting.

    def get_policy(self) -> Policy:
        return self.policy

    def compute_single_action(
        self, observation: Any, state: dict[str, Any] | None = None, explore: bool | None = None, mask: Any = None
    ) -> Any:
        """The action for one observation. With a recurrent `state`: (action, next state, extras).

        Without a state, the observation is treated as the first of an episode. `explore` overrides the setting. `mask`
        is the environment's action mask; default: the one in the observation, if it has one.

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
        """Actions for a batch of observations, by name. For an array of observations, see `predict`.

        >>> trainer.compute_actions({"left": obs1, "right": obs2})
        {'left': 0, 'right': 1}
        """
        if not isinstance(observations, Mapping):
            raise ConfigError(
                "compute_actions() takes observations by name, as {'a': observation, …}; for an array of observations, "
                "use predict(array), and for one observation compute_single_action(observation)"
            )
        return self._act(observations, None, masks, explore)[0] if observations else {}

    def predict(
        self,
        observation: Any,
        state: Mapping[str, np.ndarray] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, dict[str, np.ndarray] | None]:
        """(actions, next state) for one observation or a batch, as in Stable-Baselines3.

        observation    one, or a batch with one more axis in front, as Gymnasium's vectors return it
        state          of a recurrent policy: the state that the last call returned; None at the start of an episode
        episode_start  where it is true, the state is reset: one boolean per observation
        deterministic  the most likely actions, instead of exploring
        action_masks   of the environment: one, or one per observation; default: those in the observations, if any

        The next state is None if the policy has none.

        >>> action, state = trainer.predict(observation, deterministic=True)
        >>> actions, state = trainer.predict(batch, state, episode_start=terminated | truncated)
        """
        return acting.predict(
            self.policy, self._action_rng, observation, state, episode_start, deterministic, action_masks
        )

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
        """All settings, defaults included. A function as env_task_fn is left out: files cannot contain it."""
        functions = {"env_task_fn"} if callable(self.config.env_task_fn) else None
        return self.config.model_dump(mode="json", by_alias=True, exclude=functions)

    # Saving.

    def save(self, folder: str | Path | None = None) -> str:
        """Write a checkpoint into `folder`, by default the run's, or one under ~/outplay_results. Returns its path."""
        if folder is None and self.run is not None:
            return str(self.run.save())
        parent = Path(folder) if folder is not None else self._default_folder()
        self._drain()
        known = self._saved_segments.present()
        checkpoint = saving.make_checkpoint(self, known)
        if not checkpoint.state["exact"] and not self.inexact:
            self.inexact = "an episode is too long to be replayed"
            log.warning("environment %r: %s, so a resumed run will not be exact", self.env_spec.name, self.inexact)
        folder = parent / name_of(self.iteration)
        self._saved_segments = write_checkpoint(checkpoint, folder, self._saved_segments, known)
        return str(folder)

    def _default_folder(self) -> Path:
        if self._folder is None:
            self._folder = new_run_folder(results_folder(None), "python", type(self).__name__, self.env_spec.name)
        return self._folder / "checkpoints"

    def restore(self, checkpoint: str | Path) -> None:
        """Restore a checkpoint of the same algorithm and spaces. If it does not fit, nothing changes.

        With a run, the next iteration removes the metrics and checkpoints of the iterations after it.
        """
        use_checkpoint(checkpoint, self._restore)
        self._last_result = None
        if self.run is not None:
            self.run.rewind()

    def _restore(self, folder: Path) -> None:
        saved = read_checkpoint(folder)
        saving.check_fits(self, saved.state)
        atomically(self, "restoring", lambda: self._load(folder, saved))

    def _load(self, folder: Path, saved: Checkpoint) -> None:
        states, are_segments_valid = saving.restore_state(self, saved)
        self._drop_workers(curriculum.states_on(self.config, self.level, states))
        self._saved_segments = SavedSegments(folder, saved.hashes) if are_segments_valid else SavedSegments()

    def clone_from(self, checkpoint: str | Path) -> None:
        """Restore weights, optimizer, normalisers, replay buffer and environments, but keep the counters.

        For population-based training: a run continues from the state of another. If the checkpoint does not fit,
        nothing changes.
        """
        atomically(self, "cloning", lambda: self._clone_from(checkpoint))

    def _clone_from(self, checkpoint: str | Path) -> None:
        kept = ("iteration", "timesteps", "seconds", "_returns", "_lengths", *pending.STATE)
        counters = {name: getattr(self, name) for name in kept}
        total = self.episodes.total
        use_checkpoint(checkpoint, self._restore)
        for name, value in counters.items():
            setattr(self, name, value)
        self.episodes.total = total

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: str | Path,
        env: Any = None,
        config: Mapping[str, Any] | None = None,
        trust: bool = False,
        run: str | Mapping[str, Any] | None = None,
    ) -> Self:
        """Make an algorithm from a checkpoint. `config` overrides its settings. `run`: record a new run.

        An import path in the checkpoint is not imported unless it is repeated in `env`, or `trust` is true. Folders
        that the checkpoint names are searched for the module only with `trust`.
        """
        trainer = use_checkpoint(checkpoint, lambda folder: saving.from_folder(cls, folder, env, config, trust))
        if run is not None:
            trainer._record(run)
        return trainer

    def load_weights(self, checkpoint: str | Path) -> None:
        """Load only the weights of a checkpoint, normalisers included, for a new run that starts from them."""
        saved = use_checkpoint(checkpoint, read_checkpoint)
        saving.check_spaces(self, saved.state)
        atomically(self, "loading weights", lambda: saving.restore_weights(self, saved))

    def stop(self) -> None:
        """Close the environments and stop the workers. A later `train()` restores them and continues.

        A run is paused: it is saved, and another process may resume it.
        """
        if self.run is None:
            self.stop_workers()
        else:
            self.run.pause()

    def stop_workers(self) -> None:
        """Close the environments and stop the workers, without the run."""
        try:
            self._drain()
        finally:
            self.abandon()
            self._drop_evaluator()
            if self._task_env is not None:
                self._task_env.close()
                self._task_env = None

    def abandon(self) -> None:
        """Stop the workers without waiting for pending Fragments, which will be collected again."""
        self._drop_workers(self._group_states())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.run is not None:
            self.run.__exit__(kind)
            return
        if kind is not None:
            self.abandon()
        self.stop()

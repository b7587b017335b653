"""Algorithm: connects workers and learner into training iterations. Its API has the names of RLlib's trainers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np

from outplay.algorithms import (
    acting,
    curriculum,
    describing,
    estimating,
    evaluating,
    iteration,
    pending,
    saving,
    setup,
    watching,
)
from outplay.algorithms.atomic import atomically
from outplay.algorithms.checkpoints import Checkpoints
from outplay.algorithms.experience import recording_of
from outplay.algorithms.fittedq import UPDATES
from outplay.algorithms.resolution import num_workers
from outplay.algorithms.workers import States, TrainingWorkers
from outplay.collect import AsyncCollector, Collector, EpisodeProgress, Evaluator, SyncCollector, torch_threads
from outplay.config import AlgorithmConfig
from outplay.envs import GroupState
from outplay.errors import RunError
from outplay.learning.learner import Learner
from outplay.memory import enough_memory
from outplay.metrics import EpisodeWindow, Result, Timers
from outplay.policies import Policy, Weights
from outplay.runs.checkpoint import use_checkpoint
from outplay.streams import stream

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    from outplay.export import Exported
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
        made = setup.prepared(type(self), env, config, settings, list(folders), resuming)
        self._env = made.env
        self.config = cast("C_co", made.config)
        self.env_spec, self.probe, self.evaluation_env = made.env_spec, made.probe, made.evaluation_env
        self.task_function, self.env_folders = made.task_function, made.folders
        self.policy_spec = made.policy
        self.inexact = self.probe.inexact  # why a resumed run would not be exact; empty if it is
        self.iteration = 0
        self.timesteps = 0
        self.seconds = 0.0
        self.timers = Timers()
        self.episodes = EpisodeWindow(self.config.metrics_num_episodes, self.config.info_metrics)
        # With several threads, orthogonal weights would depend on their number, so on the machine.
        with enough_memory("the network"), torch_threads(1):
            self.policy = self.policy_spec.make().to("cuda" if self.config.num_gpus else "cpu")
            setup.check_recurrence(self.policy, type(self).__name__, self.Learner.supports_recurrence)
            self.learner = self.Learner(self.policy, self.config, self.env_spec.stacked_frames)
        setup.add_learners(self.learner, self.policy_spec)
        self.recording = recording_of(self, self.config.output)  # of experience
        self.level = curriculum.Level()
        states = curriculum.states_on(self.config, self.level, None)
        self.training_workers = TrainingWorkers(self._new_collector, states)
        self._version = 0  # of the last snapshot of the Weights
        self.in_transaction = False  # see atomic.py
        self._evaluator: Evaluator | None = None
        self.pending_evaluation: pending.PendingEvaluation | None = None  # beside training
        self.episodes_since_video: int | None = None  # evaluation episodes; None: record_env has recorded none yet
        self.is_rendering = self.is_recording = True  # false after a failure of render_env or record_env
        self.videos: Path | None = None  # the folder for videos of the run
        self._task_env: Any = None
        self._checkpoints = Checkpoints(self)
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
        """CPUs of the learners' threads and of all worker processes, and GPUs."""
        return setup.resources(self.config, self.num_workers)

    @property
    def group_sizes(self) -> list[int]:
        """The number of environments in each EnvGroup."""
        return self.config.group_sizes

    @property
    def collector(self) -> Collector:
        """Collects Fragments from the RolloutWorkers, which start on first use."""
        return self.training_workers.collector

    def _new_collector(self, states: States) -> Collector:
        kind = AsyncCollector if self.config.is_async else SyncCollector
        spec = setup.rollout_spec(self.config, self.env_spec, self.policy_spec)
        return kind(spec, num_workers(self.config, self.probe), states, self.snapshot)

    @property
    def workers(self) -> Collector:
        """RLlib's name of the collector: `trainer.workers.foreach_worker(…)`."""
        return self.collector

    @property
    def worker_restarts(self) -> list[int]:
        """The number of restarts of each worker process; empty before the first worker process starts."""
        return self.training_workers.restarts

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
        if self.recording is not None:
            self.recording.start_iteration()
        self._last_result = atomically(self, f"iteration {self.iteration + 1}", lambda: iteration.iterate(self))
        if self.recording is not None:
            self.recording.end_iteration()
        return self._last_result

    def _drain(self) -> None:
        """Asynchronous: accept all pending Fragments and make all due updates. Synchronous: nothing is pending."""
        iteration.drain(self)

    @property
    def task(self) -> Any:
        """The curriculum task of episodes that start now."""
        return self.training_workers.task

    def start_on(self, saved: Mapping[str, Any]) -> None:
        """Take the level and the task of a checkpoint's state.json, without its environments: for an evaluation."""
        self.level = curriculum.restored_level(self.config, saved["level"])
        task = saved["groups"][0]["task"] if saved["groups"] else None
        self.training_workers.restart_from([GroupState(size, task=task) for size in self.group_sizes])

    def learner_threads(self) -> AbstractContextManager[None]:
        """Torch uses the threads of the learner within this context."""
        assert isinstance(self.config.learner_threads, int)
        return torch_threads(1 if self.learner.is_traced else self.config.learner_threads)

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

    def estimate(
        self,
        data: Any,
        methods: str | Sequence[str] | None = None,
        explore: bool | None = None,
        gamma: float | None = None,
        fqe_updates: int = UPDATES,
    ) -> dict[str, dict[str, float]]:
        """Off-policy evaluation: estimate the policy's discounted return from recorded episodes of another policy.

        data     a Dataset, a folder of Parquet files, or "minari:NAME"
        methods  "is" (importance sampling), "wis" (weighted), "fqe" (fitted Q), or a list; default: all the data allows
        explore  estimate the policy that samples its actions, not the greedy one; default: evaluation_explore
        gamma    discount factor; default: that of training
        fqe_updates  maximum gradient steps of "fqe"; it stops when the estimate has settled. `converged` in its result
                     says whether it has

        >>> trainer.estimate("recorded/", methods=["wis"])
        {'wis': {'return_mean': 91.4, 'standard_error': 2.1, 'effective_sample_size': 48.2}}
        """
        return estimating.estimate(self, data, methods, explore, gamma, fqe_updates)

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
        self,
        observation: Any,
        state: Any = None,
        explore: bool | None = None,
        mask: Any = None,
        prev_reward: Any = None,
    ) -> Any:
        """The action for one observation. With a recurrent `state`: (action, next state, extras).

        Without a state, the observation is treated as the first of an episode. `explore` overrides the setting. `mask`
        is the environment's action mask; default: the one in the observation, if it has one. `prev_reward` is the
        reward of the last step, for networks with lstm_use_prev_reward; it is 0 at the start of an episode.

        >>> state = trainer.get_policy().initial_state(1)
        >>> action, state, _ = trainer.compute_single_action(observation, state)
        """
        explore = self.config.explore if explore is None else explore
        return acting.single_action(self.policy, self._action_rng, observation, state, explore, mask, prev_reward)

    def compute_actions(
        self,
        observations: Mapping[Any, Any],
        state: Any = None,
        explore: bool | None = None,
        masks: Mapping[Any, Any] | None = None,
        prev_reward: Mapping[Any, Any] | None = None,
    ) -> Any:
        """Actions for a batch of observations, by name. For an array of observations, see `predict`.

        With a recurrent `state`, which has one row per observation in their order: (actions, next state, extras).
        Masks and rewards are by name, too; otherwise they are as in `compute_single_action`.

        >>> trainer.compute_actions({"left": obs1, "right": obs2})
        {'left': 0, 'right': 1}
        """
        explore = self.config.explore if explore is None else explore
        return acting.actions_by_name(self.policy, self._action_rng, observations, state, explore, masks, prev_reward)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
        prev_reward: Any = None,
    ) -> tuple[Any, dict[str, np.ndarray] | None]:
        """(actions, next state) for one observation or a batch, as in Stable-Baselines3.

        observation    one, or a batch with one more axis in front, as Gymnasium's vectors return it
        state          of a recurrent policy: the state that the last call returned; None at the start of an episode
        episode_start  where it is true, the state is reset: one boolean per observation
        deterministic  the most likely actions, instead of exploring
        action_masks   of the environment: one, or one per observation; default: those in the observations, if any
        prev_reward    of the last step: one, or one per observation; for networks with lstm_use_prev_reward. Where an
                       episode starts, it is not used

        The next state is None if the policy has none.

        >>> action, state = trainer.predict(observation, deterministic=True)
        >>> actions, state = trainer.predict(batch, state, episode_start=terminated | truncated)
        """
        return acting.predict(
            self.policy, self._action_rng, observation, state, episode_start, deterministic, action_masks, prev_reward
        )

    def get_config(self) -> dict[str, Any]:
        """All settings, defaults included. A function as env_task_fn is left out: files cannot contain it."""
        functions = {"env_task_fn"} if callable(self.config.env_task_fn) else None
        return self.config.model_dump(mode="json", by_alias=True, exclude=functions)

    # Saving.

    def save(self, folder: str | Path | None = None) -> str:
        """Write a checkpoint into `folder`, by default the run's, or one under ~/outplay_results. Returns its path."""
        if folder is None and self.run is not None:
            return str(self.run.save())
        return str(self._checkpoints.save(None if folder is None else Path(folder)))

    def export(self, path: str | Path, format: str | None = None) -> Exported:  # noqa: A002 - as the option
        """Write the policy to a file that acts without Outplay, and a contract of its inputs and outputs beside it.

        The suffix decides on the format: .onnx, .pt2 (torch.export) or .safetensors; or `format`: onnx, pt2,
        safetensors. Actions are deterministic.

        >>> trainer.export("policy.onnx").contract_path
        PosixPath('policy.onnx.json')
        """
        from outplay.export import export_policy  # it takes long to import

        return export_policy(self.policy, path, format, saving.described(self))

    def restore(self, checkpoint: str | Path) -> None:
        """Restore a checkpoint of the same algorithm and spaces. If it does not fit, nothing changes.

        With a run, the next iteration removes the metrics and checkpoints of the iterations after it.
        """
        self._checkpoints.restore(checkpoint)
        self._last_result = None
        if self.run is not None:
            self.run.rewind()

    def clone_from(self, checkpoint: str | Path) -> None:
        """Restore weights, optimizer, normalisers, replay buffer and environments, but keep the counters.

        For population-based training: a run continues from the state of another. If the checkpoint does not fit,
        nothing changes.
        """
        self._checkpoints.clone(checkpoint)

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
        self._checkpoints.load_weights(checkpoint)

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
            if self.recording is not None:
                self.recording.flush()
        finally:
            self.abandon()
            if self.learner.mirrors is not None:
                self.learner.mirrors.stop()
            pending.stop_evaluator(self)
            if self._task_env is not None:
                self._task_env.close()
                self._task_env = None

    def abandon(self) -> None:
        """Stop the workers without waiting for pending Fragments, which will be collected again."""
        self.training_workers.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.run is not None:
            self.run.__exit__(kind)
            return
        if kind is not None:
            self.abandon()
        self.stop()

"""Settings of all algorithms: YAML, options and keyword arguments as one object.

Each field has one sentence, which is also its entry in docs/configuration.md. The settings of one algorithm are in its
own file, as a subclass of `AlgorithmConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from outplay.conditions import check_reachable
from outplay.errors import ConfigError
from outplay.groups import (
    CurriculumConfig,
    EvaluationConfig,
    ExplorationConfig,
    ModelConfig,
    OptimizerConfig,
)
from outplay.settings import (
    LARGEST,
    Few,
    Fraction,
    Lanes,
    NotNegative,
    Positive,
    Processes,
    Schedule,
    Settings,
    one_name_each,
    plain,
    refuse_unused,
)


def split_envs(num_envs: int, num_groups: int) -> list[int]:
    """The sizes of EnvGroups: as equal as possible.

    >>> split_envs(10, 4)
    [3, 3, 2, 2]
    """
    num_groups = min(num_envs, num_groups)
    return [num_envs // num_groups + (group < num_envs % num_groups) for group in range(num_groups)]


def _unique_keys(keys: Any) -> Any:
    if isinstance(keys, list) and (twice := [key for i, key in enumerate(keys) if key in keys[:i]]):
        raise ValueError(f"info_metrics: {twice[0]!r} is listed twice")
    return keys


def _described_preprocessor(value: Any) -> Any:
    """A preprocessor as plain values; the path of a file stays."""
    described = getattr(value, "to_dict", None)
    return plain(described() if callable(described) else value, "preprocessor")


def _absolute(path: str) -> str:
    """A run may be resumed from another working directory."""
    return str(Path(path).expanduser().absolute())


USUAL_GROUPS = 4  # enough for the workers of a small machine; each one costs an inference per step


class AlgorithmConfig(Settings):
    """Settings that all algorithms share."""

    place: ClassVar[str] = "algorithm"

    # environment
    env: str | None = Field(None, description="A Gymnasium id, an import path (module:Class) or a registered name.")
    env_config: Annotated[dict[str, Any], BeforeValidator(lambda value: plain(value, "env_config"))] = Field(
        {}, description="Arguments of the environment: as one dict if it takes `env_config` or `config`, else by name."
    )
    env_task_fn: str | Callable[..., Any] | None = Field(
        None,
        description="Curriculum as a function, or its import path (module:function): called with (train_results, "
        "task_settable_env, env_ctx) after each iteration; returns the task of the episodes that follow, for an "
        "environment with set_task(task).",
    )
    curriculum: CurriculumConfig | None = Field(
        None, description="Curriculum as levels: tasks for an environment with set_task(task), and when to change them."
    )
    num_envs: Lanes = Field(
        16, description="Number of environments; unless given, at least num_workers. Part of the result."
    )
    num_env_groups: Lanes | Literal["auto"] = Field(
        "auto",
        description="EnvGroups that the environments are split into: the units that workers share. auto: 4, or "
        "num_workers if that is more; with async, num_envs. Part of the result.",
    )
    num_envs_per_worker: Lanes | None = Field(
        None,
        description="As in RLlib: num_envs is this times max(1, num_workers), so the result depends on num_workers.",
    )
    env_step_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Time limit of a step or reset of a Python environment, in seconds. A worker that exceeds it is "
        "replaced, at most max_worker_restarts times in a row; with num_workers: 0 the run ends.",
    )
    max_episode_steps: Positive | None = Field(None, description="Truncate episodes after this many steps.")
    frame_stack: Few = Field(1, description="Number of stacked frames per observation.")
    atari_preprocessing: bool = Field(
        True,
        description="ALE/… ids: use ale-py's vector environment with its preprocessing (84 × 84 grayscale, 4 stacked "
        "frames, frame skip 4, no-op starts); env_config then holds the arguments of AtariVectorEnv.",
    )
    fire_on_reset: bool = Field(
        False,
        description="With atari_preprocessing: press FIRE after each lost life too, in place of the next action "
        "(ale-py presses it at the start): for Breakout and other games that wait for it.",
    )
    normalize_observations: bool | Literal["auto"] = Field(
        False,
        description="Standardize observations by their running mean and standard deviation (images: per-pixel mean, "
        "one standard deviation), updated once per iteration. auto: if the space has a vector of floats without any "
        "bounds, as MuJoCo's.",
    )
    preprocessor: Annotated[str | dict[str, Any] | None, BeforeValidator(_described_preprocessor)] = Field(
        None,
        description="A fitted preprocessor of outplay.preprocessors, or the file it was saved to. It converts "
        "observations in front of the network, and is saved with the weights; it replaces normalize_observations.",
    )
    reward_scale: FiniteFloat = Field(1.0, description="Factor on rewards for learning.")
    cut_returns_at_rewards: bool = Field(
        False,
        description="Treat every non-zero reward as the end of a return: for games that consist of points, as Pong.",
    )
    clip_rewards: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Clip scaled rewards to [-x, x] for learning."
    )
    normalize_actions: bool = Field(
        True, description="Box actions: map the policy's [-1, 1] to the space's [low, high], and clip."
    )
    clip_actions: bool = Field(
        False, description="Box actions that are not normalised: clip them to the space's bounds."
    )

    # collecting
    num_workers: Processes | Literal["auto"] = Field(
        "auto",
        description="Worker processes that collect experience; 0: the main process collects; auto: what is faster.",
    )
    max_worker_restarts: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        2,
        description="Restarts of one worker in a row, without a result in between. After one more crash the run ends.",
    )
    rollout_fragment_length: Positive | Literal["auto"] = Field(
        "auto", description="Steps per environment and Fragment; auto: train_batch_size / num_envs."
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        "truncate_episodes", description="Whether Fragments have a fixed length, or consist of whole episodes."
    )
    train_batch_size: Positive = Field(2048, description="Environment steps per iteration (a minimum).")
    explore: bool = Field(True, description="Whether to explore while training.")
    exploration_config: ExplorationConfig = Field(ExplorationConfig(), description="How to explore.")

    # learning
    gamma: Fraction = Field(0.99, description="Discount factor γ.")
    lr: NotNegative = Field(3e-4, description="Learning rate.")
    lr_schedule: Schedule | None = Field(
        None, description="Learning rate as [[step, value], …], linearly interpolated; replaces lr."
    )
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="The optimizer and its arguments.")
    grad_clip: Annotated[float, Field(gt=0)] | None = Field(None, description="Maximum gradient norm.")
    model: ModelConfig = Field(ModelConfig(), description="The network.")
    framework: Literal["torch"] = Field("torch", description="PyTorch is the only supported framework.")
    num_gpus: Annotated[int, Field(ge=0, le=1)] = Field(0, description="1: learn on a GPU.")
    num_learners: Few = Field(
        1,
        description="Learners that compute gradients in parallel, each on its part of every minibatch: the main "
        "process, and num_learners - 1 others. Part of the result.",
    )
    num_gpus_per_learner: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="GPUs of each learner: 0, 1, or a fraction of one that several learners share; default: num_gpus. "
        "More than 0 sets num_gpus: 1.",
    )
    act_on_gpu: bool | Literal["auto"] = Field(
        "auto",
        description="Whether the main process also acts on the GPU (num_workers: 0); auto: if observations are images. "
        "Part of the result.",
    )
    learner_threads: Few | Literal["auto"] = Field(
        "auto",
        description="Threads of each learner; auto: 1, with image observations the cores divided by num_learners. "
        "Part of the result.",
    )

    # evaluation
    evaluation_interval: Positive | None = Field(
        None, description="Iterations between evaluations; null: no evaluation."
    )
    evaluation_duration: Positive = Field(10, description="Length of an evaluation.")
    evaluation_duration_unit: Literal["episodes", "timesteps"] = Field(
        "episodes", description="Unit of evaluation_duration."
    )
    evaluation_num_workers: Processes = Field(
        0, description="Worker processes for evaluation; 0: the main process evaluates."
    )
    evaluation_parallel_to_training: bool = Field(
        False,
        description="Evaluate while training continues, in evaluation_num_workers processes. The result for the "
        "weights of iteration k is reported at iteration k + evaluation_interval.",
    )
    evaluation_config: EvaluationConfig = Field(EvaluationConfig(), description="What differs in evaluations.")
    evaluation_explore: bool = Field(False, description="Whether to explore in evaluations.")
    evaluation_max_episode_steps: Positive | Literal["auto"] | None = Field(
        "auto",
        description="Truncate evaluation episodes after this many steps; auto: Atari games after 5 minutes (18,000 "
        "frames: 4,500 steps), as in Bellemare et al. (2013) and Mnih et al. (2015), others after 100,000 steps; null: "
        "never.",
    )
    render_env: bool = Field(
        False, description="Show one episode of the evaluation environment in a window after each evaluation."
    )
    record_env: bool | Annotated[str, Field(min_length=1)] = Field(
        False,
        description="Record videos of the evaluation environment, one episode each. true: in videos/ of the run "
        "folder; or the name of a folder.",
    )
    record_env_interval: Positive = Field(
        10, description="record_env: minimum number of evaluation episodes between two videos."
    )

    # recorded data
    output: Annotated[str, Field(min_length=1), AfterValidator(_absolute)] | None = Field(
        None,
        description="Record the experience of training into this folder, as Parquet files: observations, actions, "
        "rewards and how episodes ended. Needs pyarrow (outplay[data]).",
    )

    # the rest
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Random seed of the run.")
    metrics_num_episodes: Positive = Field(
        100, description="Number of recent episodes that episode metrics are averaged over."
    )
    info_metrics: Annotated[list[str], BeforeValidator(_unique_keys)] = Field(
        [],
        description="Keys of the environment's info: each is read at the end of an episode, and its mean is the metric "
        "info/KEY_mean. a/b is b in a nested dict a.",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"] = Field(
        "WARN", description="Least severe level of messages that are shown."
    )

    @model_validator(mode="before")
    @classmethod
    def _other_frameworks(cls, data: Any) -> Any:
        if isinstance(data, dict) and (framework := data.get("framework", "torch")) != "torch":
            raise ValueError(f"framework {framework!r} is not supported; 'torch' is the only one")
        return data

    @model_validator(mode="before")
    @classmethod
    def _one_name_each(cls, data: Any) -> Any:
        return one_name_each(cls, data) if isinstance(data, dict) else data

    @model_validator(mode="before")
    @classmethod
    def _known_exploration(cls, data: Any) -> Any:
        given = data.get("exploration_config") if isinstance(data, dict) else None
        kind = cls.model_fields["exploration_config"].annotation
        if isinstance(given, dict) and isinstance(kind, type) and issubclass(kind, ExplorationConfig):
            kind.check_type(given.get("type"), cls.__name__.removesuffix("Config"))
        return data

    @model_validator(mode="before")
    @classmethod
    def _gpus_of_learners(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(each := data.get("num_gpus_per_learner"), (int, float)):
            return data
        return {"num_gpus": 1, **data} if each > 0 else data

    @model_validator(mode="after")
    def _check_learners(self) -> Self:
        each = self.num_gpus_per_learner
        if each is not None and bool(each) != bool(self.num_gpus):
            raise ValueError(
                f"num_gpus_per_learner is {each:g}, but num_gpus is {self.num_gpus}; all learners use a GPU, or none: "
                "give one of the two settings"
            )
        return self

    @model_validator(mode="after")
    def _check_curriculum(self) -> Self:
        if self.curriculum is None:
            return self
        if self.env_task_fn is not None:
            raise ValueError("curriculum and env_task_fn both set the task; give one of them")
        conditions = (*self.curriculum.promote_when, *self.curriculum.demote_when)
        try:
            check_reachable(conditions, bool(self.evaluation_interval), self.info_metrics)
        except ConfigError as error:
            raise ValueError(f"curriculum: {error}") from None
        return self

    @property
    def last_level(self) -> int:
        """The index of the curriculum's hardest level; 0 without a curriculum."""
        return 0 if self.curriculum is None else len(self.curriculum.levels) - 1

    @model_validator(mode="before")
    @classmethod
    def _one_explore(cls, data: Any) -> Any:
        """`evaluation_config: {explore: …}` becomes `evaluation_explore`, so that only one of them is recorded."""
        evaluation = data.get("evaluation_config") if isinstance(data, dict) else None
        if isinstance(evaluation, EvaluationConfig):
            evaluation = evaluation.model_dump()
        if not isinstance(evaluation, dict) or (explore := evaluation.get("explore")) is None:
            return data
        if data.get("evaluation_explore", explore) != explore:
            raise ValueError(
                f"evaluation_explore is {data['evaluation_explore']!r}, but evaluation_config.explore is {explore!r}; "
                "give one of them"
            )
        return {**data, "evaluation_explore": explore, "evaluation_config": {**evaluation, "explore": None}}

    @model_validator(mode="after")
    def _check_preprocessor(self) -> Self:
        if self.preprocessor is None:
            return self
        if self.normalize_observations is True:
            raise ValueError("preprocessor and normalize_observations exclude each other; use a StandardScaler in it")
        if getattr(self, "intrinsic_reward", None) is not None:
            raise ValueError("intrinsic_reward normalises observations itself, so it cannot have a preprocessor")
        return self

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        if self.evaluation_parallel_to_training and not self.evaluation_num_workers:
            raise ValueError(
                "evaluation_parallel_to_training: workers evaluate beside training, so evaluation_num_workers must be "
                "at least 1"
            )
        needed_by = [
            name
            for name in ("evaluation_parallel_to_training", "render_env", "record_env")
            if getattr(self, name) is not False
        ]
        if needed_by and not self.evaluation_interval:
            raise ValueError(
                f"{needed_by[0]} needs evaluation_interval, the iterations between evaluations; for example 10"
            )
        return self

    @property
    def total_envs(self) -> int:
        """`num_envs`, or what RLlib's num_envs_per_worker makes of it."""
        if self.num_envs_per_worker is not None:
            return self.num_envs_per_worker * max(1, self._known_workers)
        return self.num_envs if "num_envs" in self.model_fields_set else max(self.num_envs, self._known_workers)

    @property
    def _known_workers(self) -> int:
        return 0 if self.num_workers == "auto" else int(self.num_workers)

    @property
    def num_groups(self) -> int:
        """How many EnvGroups there are: `num_env_groups`, or what `auto` means; none is empty."""
        wanted = self.num_env_groups
        if wanted == "auto":
            wanted = self.auto_groups
        return min(self.total_envs, int(wanted))

    @property
    def auto_groups(self) -> int:
        """What `num_env_groups: auto` means."""
        return max(USUAL_GROUPS, self._known_workers)

    @property
    def group_sizes(self) -> list[int]:
        """The number of environments in each EnvGroup."""
        return split_envs(self.total_envs, self.num_groups)

    @property
    def is_async(self) -> bool:
        """Whether workers collect while the learner learns."""
        return False

    @property
    def suits_bfloat16(self) -> bool:
        """Whether `model.precision: auto` is bfloat16 for Box actions on a CPU that has instructions for it."""
        return False

    @property
    def fragment_length(self) -> int:
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        return -(-self.train_batch_size // self.total_envs)

    @property
    def least_steps(self) -> int:
        """Fragments are collected until they have this many steps."""
        return self.train_batch_size


class AsyncConfig(AlgorithmConfig):
    """Settings of algorithms that can collect and learn concurrently."""

    only_async: ClassVar[tuple[str, ...]] = ("weights_interval", "most_updates_behind")

    async_: bool = Field(
        False,
        alias="async",
        description="Collect and learn concurrently: faster, but not exactly reproducible.",
    )
    weights_interval: Positive = Field(
        16,
        description="async: updates between two versions of the Weights. There is also a new one every "
        "train_batch_size steps.",
    )
    most_updates_behind: Positive = Field(
        500, description="async: back-pressure. Workers pause while more updates than this are due."
    )

    @property
    def is_async(self) -> bool:
        return self.async_

    @property
    def auto_groups(self) -> int:
        return self.total_envs if self.async_ else super().auto_groups

    @model_validator(mode="after")
    def _check_async(self) -> Self:
        if self.async_ and self.num_workers == 0:
            raise ValueError(
                "async: workers run beside the learner, so num_workers must be at least 1; or set async: false"
            )
        if not self.async_ and self.num_workers != 0:  # without workers, settings for workers may stay
            refuse_unused(self, self.only_async, "async: false")
        return self

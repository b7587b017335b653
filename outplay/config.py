"""Settings of experiments, networks, optimizers and all algorithms: YAML, options and keyword arguments as one object.

Each field has one sentence, which is also its entry in docs/configuration.md. The settings of one algorithm are in its
own file, as a subclass of `AlgorithmConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, PlainSerializer, model_validator

from outplay.conditions import TIME_METRICS, metric_name
from outplay.errors import ConfigError, nearest, shortened
from outplay.registry import algorithms, loggers
from outplay.settings import (
    LARGEST,
    Decay,
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
)


def _square(filters: Any) -> Any:
    """[out, kernel, stride], where RLlib's form has [kernel, kernel]."""
    if not isinstance(filters, list):
        return filters
    return [
        [f[0], *f[1][:1], f[2]] if isinstance(f, list) and len(f) == 3 and isinstance(f[1], list) else f
        for f in filters
    ]


def _import_path(value: Any) -> Any:
    """Classes are written to files as import paths."""
    return f"{value.__module__}:{value.__qualname__}" if isinstance(value, type) else value


ClassOrPath = Annotated[str | type | None, PlainSerializer(_import_path, when_used="json")]


class ModelConfig(Settings):
    """The network."""

    fcnet_hiddens: list[Positive] | None = Field(
        None,
        description="Sizes of the hidden layers; default [64, 64], DQN [256, 256], after convolutions [512].",
    )
    fcnet_activation: Literal["tanh", "relu", "elu", "swish", "linear"] | None = Field(
        None, description="Activation of the hidden layers; default tanh, or relu for DQN and after convolutions."
    )
    conv_filters: Annotated[list[tuple[Positive, Positive, Positive]] | None, BeforeValidator(_square)] = Field(
        None, description="Convolutions as [filters, kernel, stride] each; the default depends on the image size."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Precision of convolutions and hidden layers; outputs and weights stay float32. bfloat16 is faster "
        "on some CPUs and GPUs.",
    )
    use_bias: bool = Field(True, description="Whether layers have a bias; the value head always has one.")
    initializer: Literal["orthogonal", "normal"] = Field(
        "orthogonal",
        description="Weight initialisation: orthogonal with a small output layer; or normal with standard deviation "
        "1/√n for n inputs.",
    )
    max_sequence_length: Positive = Field(
        64, description="Maximum length of Sequence observations, and of text with text: characters; padded to it."
    )
    sequence_pooling: Literal["mean_max", "attention"] = Field(
        "mean_max", description="How the elements of a sequence are combined: mean and maximum, or attention."
    )
    text: Literal["ignore", "characters"] = Field(
        "ignore", description="Text observations: ignored, or embedded by characters."
    )
    action_embeddings: str | None = Field(
        None,
        description="Parametric actions: the part of a Dict observation with the embedding of each action, (n, d). The "
        "logit or Q-value of an action is the dot product of its embedding and the network's output.",
    )
    sparse_inputs: bool = Field(
        False,
        description="The first layer skips zero inputs: for sparse observations (no images, no normalisation).",
    )
    vf_share_layers: bool | None = Field(
        None,
        description="Whether policy and value share all layers but the last; default: for images. Recurrent networks "
        "always share them.",
    )
    use_lstm: bool = Field(False, description="An LSTM after the hidden layers.")
    use_gru: bool = Field(False, description="A GRU after the hidden layers.")
    lstm_cell_size: Positive = Field(128, description="Size of the LSTM or GRU.")
    max_seq_len: Positive = Field(
        20,
        description="Recurrent networks learn from sequences of at most this many steps (truncated backpropagation).",
    )
    lstm_use_prev_action: bool = Field(
        False, description="Recurrent networks also get the previous action (one-hot if it is discrete)."
    )
    lstm_use_prev_reward: bool = Field(False, description="Recurrent networks also get the previous reward.")
    use_attention: bool = Field(
        False, description="A causal transformer over the last steps of the episode, after the hidden layers."
    )
    attention_num_transformer_units: Few = Field(1, description="Layers of the transformer.")
    attention_dim: Positive = Field(64, description="Size of the transformer's layers.")
    attention_num_heads: Few = Field(2, description="Attention heads.")
    attention_head_dim: Positive = Field(32, description="Size of an attention head.")
    attention_memory_inference: Positive = Field(
        50, description="Number of previous steps that each step attends to, when acting and when learning."
    )
    attention_position_wise_mlp_dim: Positive = Field(
        64, description="Size of the hidden layer of the transformer's feed-forward networks."
    )

    custom_model: ClassOrPath = Field(
        None,
        description="A torch.nn.Module in the place of convolutions and hidden layers, or its import path "
        "(module:Class). docs/models.md shows how to write one.",
    )
    custom_model_config: Annotated[dict[str, Any], BeforeValidator(lambda v: plain(v, "custom_model_config"))] = Field(
        {}, description="Keyword arguments of the custom model."
    )
    custom_action_dist: ClassOrPath = Field(
        None, description="A class of action distributions, or its import path (module:Class); see docs/models.md."
    )

    @model_validator(mode="after")
    def _one_core(self) -> Self:
        chosen = [name for name in ("use_lstm", "use_gru", "use_attention") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"{chosen[0]} and {chosen[1]} exclude each other; set one of them")
        if chosen and self.vf_share_layers is False:
            raise ValueError(f"vf_share_layers: with {chosen[0]}, policy and value share their layers; leave it out")
        if not chosen and (self.lstm_use_prev_action or self.lstm_use_prev_reward):
            raise ValueError("lstm_use_prev_action and lstm_use_prev_reward need use_lstm, use_gru or use_attention")
        return self

    @property
    def is_recurrent(self) -> bool:
        return self.use_lstm or self.use_gru or self.use_attention


class OptimizerConfig(Settings):
    """The optimizer's arguments. The learning rate is `lr`."""

    type: Literal["adam", "rmsprop", "sgd"] = Field("adam", description="Optimizer.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="Adam: decay rates β₁ and β₂.")
    eps: NotNegative = Field(1e-5, description="Adam and RMSProp: ε, added to the denominator.")
    decay: Decay = Field(0.99, description="RMSProp: decay rate α.")
    momentum: Fraction = Field(0.0, description="SGD: momentum.")


# The types of exploration that other algorithms and libraries have, and what they are for.
_EXPLORATION = {
    "StochasticSampling": "samples from the policy's action distribution: for PPO, A2C and PG",
    "EpsilonGreedy": "is for algorithms with Q-values: DQN",
    "SoftQ": "is for algorithms with Q-values: DQN",
    "Random": "is for algorithms that learn from the actions of any policy: DQN",
    "GaussianNoise": "is for policies with deterministic continuous actions, which no algorithm has yet",
    "OrnsteinUhlenbeckNoise": "is for policies with deterministic continuous actions, which no algorithm has yet",
    "ParameterNoise": "is not implemented; DQN has noisy networks (noisy: true)",
}


class ExplorationConfig(Settings):
    """Exploration while training."""

    type: Literal["StochasticSampling"] = Field(
        "StochasticSampling",
        description="Sample from the policy's action distribution: the only type for on-policy algorithms.",
    )

    @model_validator(mode="before")
    @classmethod
    def _known_types(cls, data: Any) -> Any:
        given = data.get("type") if isinstance(data, dict) else None
        allowed = get_args(cls.model_fields["type"].annotation)
        if isinstance(given, str) and given in _EXPLORATION and given not in allowed:
            raise ValueError(
                f"exploration_config.type: {given} {_EXPLORATION[given]}; here it is {' or '.join(allowed)}"
            )
        return data


def _metric_names(conditions: Any) -> Any:
    """Conditions with Outplay's names of metrics. Refuses metrics that differ from run to run."""
    if not isinstance(conditions, dict):
        return conditions
    try:
        named = {metric_name(name) if isinstance(name, str) else name: value for name, value in conditions.items()}
    except ConfigError as error:
        raise ValueError(f"curriculum: {error}") from None
    if timed := TIME_METRICS & named.keys():
        raise ValueError(f"curriculum: {min(timed)} depends on the machine, so a run would not be reproducible")
    return named


Conditions = Annotated[dict[str, FiniteFloat], BeforeValidator(_metric_names)]


class CurriculumConfig(Settings):
    """The levels of a curriculum. Training starts on the first one."""

    levels: Annotated[list[Any], BeforeValidator(lambda value: plain(value, "curriculum.levels"))] = Field(
        [], description="The task of each level, from the easiest to the hardest: what set_task(task) gets."
    )
    promote_when: Conditions = Field(
        {}, description="Conditions {metric: value}: the next level starts when all metrics are at least their values."
    )
    demote_when: Conditions = Field(
        {}, description="Conditions {metric: value}: the level before starts when all metrics are at most their values."
    )
    min_episodes: Positive = Field(
        20,
        description="Episodes of a level that must have ended before it is left; at most metrics_num_episodes count.",
    )
    min_iterations: Positive = Field(1, description="Iterations that a level lasts at least.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.levels or None in self.levels:
            raise ValueError(
                "curriculum.levels must be a list of tasks, one per level, none of them null; for example [5, 10, 20]"
            )
        if len(self.levels) > 1 and not self.promote_when:
            raise ValueError(
                "curriculum.promote_when is missing: the first level would never end; for example "
                "promote_when: {episode_return_mean: 0.8}"
            )
        for name in self.promote_when.keys() & self.demote_when.keys():
            if self.demote_when[name] >= self.promote_when[name]:
                raise ValueError(
                    f"curriculum.demote_when.{name} must be less than promote_when.{name} "
                    f"({self.promote_when[name]:g}), not {self.demote_when[name]:g}"
                )
        return self


def _plain_dict(name: str) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value is None else plain(value, name))


class EvaluationConfig(Settings):
    """What differs in evaluations: settings of the environment and of acting. null: as in training."""

    env: str | None = Field(
        None,
        description="The environment of evaluations: another one, with the same spaces. It does not get the env_config "
        "and the curriculum tasks of the training environment.",
    )
    env_config: Annotated[dict[str, Any] | None, _plain_dict("evaluation_config.env_config")] = Field(
        None, description="Arguments of the environment that differ; the others are those of the training environment."
    )
    explore: bool | None = Field(None, description="RLlib's spelling of evaluation_explore, which it sets.")
    max_episode_steps: Positive | None = Field(
        None, description="Truncate episodes after this many steps: more, or fewer, than in training."
    )
    frame_stack: Few | None = Field(None, description="Number of stacked frames per observation.")
    atari_preprocessing: bool | None = Field(None, description="See atari_preprocessing.")
    fire_on_reset: bool | None = Field(None, description="See fire_on_reset.")
    env_step_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Time limit of a step or reset, in seconds."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_settings_of_training(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if isinstance(key, str) and key not in cls.model_fields:
                near = nearest(key, cls.model_fields)
                hint = near if "Did you mean" in near else f"; it takes {', '.join(cls.model_fields)}"
                raise ValueError(f"evaluation_config: {key!r} is not a setting of evaluations{hint}")
        return data


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


_USUAL_GROUPS = 4  # enough for the workers of a small machine; each one costs an inference per step


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
    normalize_observations: bool = Field(
        False,
        description="Standardize observations by their running mean and standard deviation (images: per-pixel mean, "
        "one standard deviation), updated once per iteration.",
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
    act_on_gpu: bool | Literal["auto"] = Field(
        "auto",
        description="Whether the main process also acts on the GPU (num_workers: 0); auto: if observations are images. "
        "Part of the result.",
    )
    learner_threads: Few | Literal["auto"] = Field(
        "auto",
        description="Threads of the learner; auto: 1, with image observations one per core. Part of the result.",
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

    @model_validator(mode="after")
    def _check_curriculum(self) -> Self:
        if self.curriculum is None:
            return self
        if self.env_task_fn is not None:
            raise ValueError("curriculum and env_task_fn both set the task; give one of them")
        conditions = (*self.curriculum.promote_when, *self.curriculum.demote_when)
        if not self.evaluation_interval and any(name.startswith("evaluation/") for name in conditions):
            raise ValueError(
                "curriculum: a condition on evaluation/… needs evaluation_interval; otherwise it is never reached"
            )
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
            wanted = self.total_envs if self.is_async else max(_USUAL_GROUPS, self._known_workers)
        return min(self.total_envs, int(wanted))

    @property
    def group_sizes(self) -> list[int]:
        """The number of environments in each EnvGroup."""
        return split_envs(self.total_envs, self.num_groups)

    @property
    def is_async(self) -> bool:
        """Whether workers collect while the learner learns."""
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

    @model_validator(mode="after")
    def _check_async(self) -> Self:
        if self.async_ and self.num_workers == 0:
            raise ValueError("async: workers run beside the learner, so num_workers must be at least 1")
        return self


LoggerEntry = str | dict[str, dict[str, Any] | None]  # a name, or {name: options}


def logger_options(entries: list[LoggerEntry]) -> dict[str, dict[str, Any]]:
    """The options of each logger.

    >>> logger_options(["csv", {"wandb": {"project": "poles"}}])
    {'csv': {}, 'wandb': {'project': 'poles'}}
    """
    named = [{entry: None} if isinstance(entry, str) else entry for entry in entries]
    return {name: options or {} for entry in named for name, options in entry.items()}


def _known_loggers(entries: Any) -> Any:
    example = "[csv, {wandb: {project: poles}}]"
    if not isinstance(entries, list):
        raise ValueError(f"loggers must be a list, as {example}, not {shortened(repr(entries))}")  # noqa: TRY004
    for entry in entries:
        names = list(entry) if isinstance(entry, dict) else [entry]
        options = [value for value in entry.values() if value is not None] if isinstance(entry, dict) else []
        if not all(isinstance(name, str) for name in names) or not all(isinstance(value, dict) for value in options):
            raise ValueError(f"loggers: {shortened(repr(entry))} is neither a name nor {{name: options}}, as {example}")
        for name in names:
            if name not in loggers:
                raise ValueError(f"loggers: no logger {name!r}{nearest(name, loggers.names())}")
    return [plain(entry, "loggers") for entry in entries]


class Experiment(Settings):
    """One experiment: an algorithm, an environment and stop conditions."""

    place: ClassVar[str] = "experiment"

    name: str = Field(
        "", description="Name of the experiment: the folder of its runs; default: the environment's name."
    )
    description: str = Field("", description="Description in one line.")
    env: Any = Field(None, description="The environment; the same as `env` in `config`.")
    run: str = Field(
        "PPO", description=f"The algorithm: {', '.join(algorithms.shipped)}, or one of an installed package."
    )
    stop: dict[str, FiniteFloat] = Field(
        {}, description="Stop conditions {metric: value}: the run stops when any metric reaches its value."
    )
    confirm: bool = Field(
        False,
        description="A stop condition on episode_return_mean must also hold in an evaluation (evaluation_duration "
        "episodes, on seeds that training does not use); checked every 5 iterations.",
    )
    show: Literal["iterations", "episodes"] = Field(
        "iterations", description="Progress output: per iteration, or one line per episode."
    )
    video_at_end: bool = Field(False, description="Record a video of one episode when the run ends.")
    checkpoint_freq: Annotated[int, Field(ge=0)] = Field(0, description="Iterations between checkpoints; 0: none.")
    checkpoint_every_s: NotNegative = Field(
        300.0,
        description="Seconds between checkpoints, written at the end of an iteration; 0: none. The interval is longer "
        "if saving is slow, so that saving takes at most about 5% of the time.",
    )
    checkpoint_at_end: bool = Field(True, description="Write a checkpoint when the run ends.")
    keep_checkpoints: Positive | None = Field(
        10, description="Number of newest checkpoints to keep, besides the one with the best return; null keeps all."
    )
    loggers: Annotated[list[LoggerEntry], BeforeValidator(_known_loggers)] = Field(
        [],
        description="Metric outputs besides metrics.jsonl: csv, tensorboard, wandb, mlflow, or one of an installed "
        "package. With options: {wandb: {project: poles, mode: offline}}.",
    )
    callbacks: list[str] = Field(
        [], description="Callbacks: import paths (module:Class), or names that installed packages register."
    )
    import_from: list[str] = Field(
        [],
        description="With --trust: additional folders to import the environment's module from. A run records the "
        "folder that it imported the module from.",
    )
    config: dict[str, Any] = Field({}, description="The settings of the algorithm.")

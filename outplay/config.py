"""Settings: YAML, command line and keyword arguments as one validated, immutable object.

Each field has one sentence, which is also its entry in docs/configuration.md. The settings of one algorithm are in its
own file, as a subclass of `AlgorithmConfig`.
"""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from outplay.errors import ConfigError, nearest, shortened
from outplay.parsing import MAX_DEPTH, check_plain
from outplay.schema import MAX_LANES


def _ascending(points: Any) -> Any:
    steps = (
        [point[0] for point in points if isinstance(point, (list, tuple)) and point] if isinstance(points, list) else []
    )
    if any(not a < b for a, b in pairwise(steps) if isinstance(a, (int, float)) and isinstance(b, (int, float))):
        raise ValueError(f"a schedule's steps must ascend, and these do not: {steps}")
    return points


LARGEST = 10**12  # of sizes and counters: arrays of such a size raise MemoryError, larger ones overflow
Schedule = Annotated[list[tuple[FiniteFloat, FiniteFloat]], BeforeValidator(_ascending)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Lanes = Annotated[int, Field(ge=1, le=MAX_LANES)]
Few = Annotated[int, Field(ge=1, le=1_000)]
Processes = Annotated[int, Field(ge=0, le=10_000)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


def _square(filters: Any) -> Any:
    """[out, kernel, stride], where RLlib's form has [kernel, kernel]."""
    if not isinstance(filters, list):
        return filters
    return [
        [f[0], *f[1][:1], f[2]] if isinstance(f, list) and len(f) == 3 and isinstance(f[1], list) else f
        for f in filters
    ]


_MAX_DEPTH = MAX_DEPTH - 8  # of one value: a file that it is written to adds some levels


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """`value` as a checkpoint would restore it: numbers, strings, lists, dicts with string keys.

    So the first run and a resumed one use the same value.

    >>> plain({"sizes": (1, 2)}, "env_config")
    {'sizes': [1, 2]}
    """
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{shortened(where)}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where}: keys must be strings, and {key!r} is a {type(key).__name__}")
        return {plain(key, where): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        try:
            check_plain(value)
        except ValueError as error:  # it could be written, but not be read again
            raise ConfigError(f"{shortened(where)}: {error}") from None
        return value
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which cannot be saved; only numbers, strings, lists and dicts can (pass "
        "other objects to an environment in its factory: register_env(name, lambda env_config: Env(thing)))"
    )


class Settings(BaseModel):
    """Base of all settings: immutable, unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


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
    sparse_inputs: bool = Field(
        False,
        description="The first layer skips zero inputs: for sparse observations (no images, no normalisation).",
    )
    vf_share_layers: bool | None = Field(
        None, description="Whether policy and value share all layers but the last; default: only for images."
    )


class OptimizerConfig(Settings):
    """The optimizer's arguments. The learning rate is `lr`."""

    type: Literal["adam", "rmsprop", "sgd"] = Field("adam", description="Optimizer.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="Adam: decay rates β₁ and β₂.")
    eps: NotNegative = Field(1e-5, description="Adam and RMSProp: ε, added to the denominator.")
    decay: Decay = Field(0.99, description="RMSProp: decay rate α.")
    momentum: Fraction = Field(0.0, description="SGD: momentum.")


class ExplorationConfig(Settings):
    """Exploration while training."""

    type: Literal["StochasticSampling"] = Field(
        "StochasticSampling",
        description="Sample from the policy's action distribution: the only type for on-policy algorithms.",
    )


def split_envs(num_envs: int, num_groups: int) -> list[int]:
    """The sizes of EnvGroups: as equal as possible.

    >>> split_envs(10, 4)
    [3, 3, 2, 2]
    """
    num_groups = min(num_envs, num_groups)
    return [num_envs // num_groups + (group < num_envs % num_groups) for group in range(num_groups)]


_USUAL_GROUPS = 4  # enough for the workers of a small machine; each one costs an inference per step


class AlgorithmConfig(Settings):
    """Settings that all algorithms share."""

    # environment
    env: str | None = Field(None, description="A Gymnasium id, an import path (module:Class) or a registered name.")
    env_config: Annotated[dict[str, Any], BeforeValidator(lambda value: plain(value, "env_config"))] = Field(
        {}, description="Arguments of the environment: as one dict if it takes `env_config` or `config`, else by name."
    )
    env_task_fn: Callable[..., Any] | None = Field(
        None,
        exclude=True,
        description="Curriculum, Python only: called with (result, env, context) after each iteration; returns the "
        "task of the episodes that follow, for an environment with set_task(task).",
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
    evaluation_explore: bool = Field(False, description="Whether to explore in evaluations.")
    evaluation_max_episode_steps: Positive | Literal["auto"] | None = Field(
        "auto",
        description="Truncate evaluation episodes after this many steps; auto: Atari games after 5 minutes (18,000 "
        "frames: 4,500 steps), as in Bellemare et al. (2013) and Mnih et al. (2015), others not; null: never.",
    )

    # the rest
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Random seed of the run.")
    metrics_num_episodes: Positive = Field(
        100, description="Number of recent episodes that episode metrics are averaged over."
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


def with_default(base: type[BaseModel], name: str, default: Any) -> Any:
    """A field of `base` with another default, for a subclass: its description and alias are declared once.

    >>> class PPOConfig(ActorCriticConfig):
    ...     lambda_: Fraction = with_default(ActorCriticConfig, "lambda_", 0.97)
    """
    field = base.model_fields[name]
    return Field(default, description=field.description, alias=field.alias)


def one_name_each(cls: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Some settings have two names (`lambda` and `lambda_`). If both are given, the later one counts."""
    order = list(data)
    pairs = [(name, f.alias) for name, f in cls.model_fields.items() if f.alias]
    earlier = {min(pair, key=order.index) for pair in pairs if pair[0] in data and pair[1] in data}
    return {key: value for key, value in data.items() if key not in earlier}


def is_true(value: Any, otherwise: bool = False) -> bool:
    """A boolean setting before validation; `otherwise` if it is no boolean, which validation then refuses by name."""
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return otherwise


def at(schedule: Schedule | None, constant: float, step: int) -> float:
    """The value of a schedule at a step: linear between its points, constant before the first and after the last.

    >>> at([(0, 1.0), (100, 0.0)], 0.5, 25)
    0.75
    """
    if not schedule:
        return constant
    points = schedule
    if step <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if step <= x1:
            return y0 + (y1 - y0) * (step - x0) / (x1 - x0)
    return points[-1][1]


S = TypeVar("S", bound=BaseModel)


def validated(cls: type[S], data: dict[str, Any], where: str) -> S:
    """Settings from a dict. Raises ConfigError: one sentence that begins with `where`."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: settings (key: value) are needed, not {data!r}")
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_sentence(cls, data, error, where)) from None


def _sentence(cls: type[BaseModel], data: dict[str, Any], error: ValidationError, where: str) -> str:
    # With a union, each of its members complains; the complaint about the value that is there comes first.
    first = error.errors(include_url=False)[0]
    if first["type"] == "invalid_key" or first["loc"][-1:] == ("[key]",):
        hint = " (YAML reads yes, no, on and off as booleans; quote them)" * isinstance(first["input"], bool)
        return f"{where}: keys must be strings, not {_value(first['input'])}{hint}"
    owner: type[BaseModel] | None = cls
    names: list[str] = []
    fields: dict[str, FieldInfo] = {}
    value: Any = data
    for part in first["loc"]:  # as far as settings go: what is inside a list is told as the list
        if owner is None:
            break
        fields = _fields(owner)
        names.append(str(part))
        value = value.get(part) if isinstance(value, dict) else value
        owner = _settings_in(fields.get(str(part)))
    key = ".".join(names)
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown setting {key!r}{nearest(names[-1], fields)}"
    wanted = type_in_words(fields[names[-1]])
    if first["type"] == "less_than_equal" and first["ctx"]["le"] >= _TECHNICAL:
        wanted = f"at most {first['ctx']['le']:,}"
    if isinstance(value, dict) and len(first["loc"]) > len(names):  # one entry of a dict is wrong
        key, value, wanted = f"{key}.{first['loc'][len(names)]}", first["input"], _expected(first)
    return f"{where}: {key} must be {wanted}, not {_value(value)}"


def _expected(error: Any) -> str:
    return "a number" if "float" in error["type"] else str(error["msg"]).removeprefix("Input should be ")


def _fields(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    return {**cls.model_fields, **{f.alias: f for f in cls.model_fields.values() if f.alias}}


def _settings_in(field: FieldInfo | None) -> type[Settings] | None:
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _value(value: Any) -> str:
    return shortened(repr(value))


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def type_in_words(field: FieldInfo) -> str:
    """The values that a field accepts, for messages and for the documentation."""
    return _words(field.annotation, _bounds(field.metadata))


_TECHNICAL = 1_000  # an upper limit from here on keeps nonsense out: only a message about it mentions it


def _bounds(constraints: Any) -> str:
    words = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
    found = [
        f"{text} {limit if isinstance(limit, int) else format(limit, 'g')}"
        for constraint in constraints
        for name, text in words
        if (limit := getattr(constraint, name, None)) is not None and not (name == "le" and limit >= _TECHNICAL)
    ]
    return f" of {' and '.join(found)}" if found else ""


def _words(kind: Any, bounds: str = "") -> str:
    if kind in _WORDS:
        return _WORDS[kind] + (bounds if kind in (int, float) else "")
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        return _words(inner, _bounds([c for m in metadata for c in getattr(m, "metadata", [m])]))
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        return f"[{', '.join(_words(part) for part in get_args(kind))}]"
    if origin is list:
        return f"a list of {_words(get_args(kind)[0])}"
    if origin is dict:
        return "key: value pairs"
    if origin is abc.Callable:
        return "a function"
    if isinstance(kind, type) and issubclass(kind, Settings):
        return "settings (key: value)"
    if parts := get_args(kind):
        return " or ".join(_words(part, bounds) for part in parts)
    return "anything" if kind is Any else str(kind)

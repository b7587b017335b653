"""Schema of a checkpoint. Hashes prove only that its files belong together; a checkpoint may be untrusted.

The schema limits all values that determine sizes: the number of lanes must equal the lengths of the lists, counters
must fit into an int64. Values that only the algorithm knows (shapes of tensors, the learner's state) are checked on
loading, with `validated_part` and `check_array`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

MAX_LANES = 1_000_000
Counter = Annotated[int, Field(ge=0, lt=2**53)]
Checksum = Annotated[int, Field(ge=0, lt=2**32)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=1_000_000)]


class Part(BaseModel):
    """Base class of all parts. Types are strict. Unknown keys are kept: a later version may have added them."""

    model_config = ConfigDict(strict=True, extra="allow")


P = TypeVar("P", bound=Part)


class Episodes(Part):
    """The window of finished episodes."""

    returns: list[float]
    lengths: list[Counter]
    running: float | None = None  # not in checkpoints of 0.2.0
    total: Counter
    infos: dict[Text, list[float | None]] | None = None  # with info_metrics

    @model_validator(mode="after")
    def _same_length(self) -> Episodes:
        if len(self.returns) != len(self.lengths):
            raise ValueError(f"{len(self.returns)} returns, but {len(self.lengths)} lengths")
        return self


class Group(Part):
    """The state that an EnvGroup is rebuilt from."""

    lanes: Annotated[int, Field(ge=1, le=MAX_LANES)]
    fragments: Counter
    episodes: list[Counter]
    returns: list[float]
    lengths: list[Counter]
    marks: list[Checksum]
    task: Any = None
    tasks: list[Any]
    vector: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_per_lane(self) -> Group:
        for name in ("episodes", "returns", "lengths", "tasks", "marks"):
            number = len(getattr(self, name))
            if number != self.lanes and (name != "marks" or number):
                raise ValueError(f"{self.lanes} lanes, but {number} {name}")
        return self


class Level(Part):
    """The level of a curriculum."""

    number: Counter
    iterations: Counter


class Evaluation(Part):
    """An evaluation beside training that is not reported yet."""

    iteration: Counter
    metrics: dict[str, int | float | dict[Text, float]]


class Recorded(Part):
    """Files of recorded experience so far."""

    output: Text
    folder: Text
    files: Counter


class State(Part):
    """state.json."""

    format: int
    algorithm: Text
    env: Text
    env_folders: list[Text] = Field(default_factory=list)
    observation_space: Text
    action_space: Text
    config: dict[str, Any]
    training_iteration: Counter
    timesteps_total: Counter
    time_total_s: Annotated[FiniteNumber, Field(ge=0)]
    episodes: Episodes
    episode_returns: list[float] = Field(default_factory=list)
    exploration: dict[str, Annotated[FiniteNumber, Field(ge=0)]] = Field(default_factory=dict)  # not in 0.2.0
    episode_lengths: list[Counter] = Field(default_factory=list)  # not in checkpoints of 0.2.0
    level: Level | None = None  # with a curriculum; not in checkpoints of 0.2.0
    evaluation: Evaluation | None = None  # not in checkpoints of 0.2.0
    episodes_since_video: Counter | None = None
    recording: Recorded | None = None  # with `output`; not in checkpoints of 0.2.0
    learner: dict[str, Any]
    groups: list[Group]
    exact: bool


FileName = Annotated[str, Field(pattern=r"^([a-z]+\.(json|safetensors)|replay/[A-Za-z0-9_-]{1,100}\.safetensors)$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_MANIFEST = TypeAdapter(dict[FileName, Hash])


def checked_state(state: dict[str, Any]) -> dict[str, Any]:
    """Validate parsed state.json and add defaults for keys that older versions lack. Raises ValueError."""
    return validated_part(State, state).model_dump()


def checked_manifest(manifest: Any) -> dict[str, str]:
    """Validate parsed manifest.json: hashes by file name. Raises ValueError."""
    try:
        return _MANIFEST.validate_python(manifest, strict=True)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from None


def validated_part(kind: type[P], data: Any) -> P:
    """Validate parsed JSON as a part of a checkpoint. Raises ValueError with the first problem and its place."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from None


def _first_problem(error: ValidationError) -> str:
    """The first error, as "groups.0.lanes: Input should be …"."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def check_array(arrays: Mapping[str, Any], name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise ValueError unless `arrays` has an array (or tensor) of this name, shape and dtype."""
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    found = arrays[name]
    if tuple(found.shape) != tuple(shape) or found.dtype != dtype:
        raise ValueError(f"{name} is {found.dtype} of shape {tuple(found.shape)}, not {dtype} of shape {tuple(shape)}")

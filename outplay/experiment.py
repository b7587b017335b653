"""Settings of an experiment: what an experiment file has beside the settings of its algorithm.

Each field has one sentence, which is also its entry in docs/configuration.md.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from outplay.errors import nearest, shortened
from outplay.registry import algorithms, loggers
from outplay.settings import NotNegative, Positive, Settings, plain

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

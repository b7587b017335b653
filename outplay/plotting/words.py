"""Names of metrics on axes, units, and what tells curves apart, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outplay.errors import shortened
from outplay.plotting.sources import Source
from outplay.runs.comparing import differences

_METRICS = {
    "timesteps_total": "environment steps",
    "time_total_s": "training time",
    "time_this_iter_s": "time per iteration (s)",
    "episodes_total": "episodes",
    "training_iteration": "iterations",
    "episode_return_mean": "mean return",
    "episode_return_min": "minimum return",
    "episode_return_max": "maximum return",
    "episode_return_running": "return (moving average)",
    "episode_len_mean": "mean episode length (steps)",
    "episodes_this_iter": "episodes per iteration",
    "env_steps_per_s": "environment steps per second",
    "curriculum_level": "curriculum level",
    "learner/kl": "KL divergence",
    "learner/entropy": "policy entropy (nats)",
    "learner/policy_loss": "policy loss",
    "learner/vf_loss": "value loss",
    "learner/total_loss": "total loss",
    "learner/lr": "learning rate",
    "learner/grad_norm": "gradient norm",
    "learner/clip_fraction": "clip fraction",
    "learner/explained_variance": "explained variance",
}
_MOST_SETTINGS = 3  # in a label
_LONGEST = 48  # characters of a label
_TIME_UNITS = (("s", 1.0, 180.0), ("min", 60.0, 180 * 60.0), ("h", 3600.0, 72 * 3600.0), ("d", 86_400.0, float("inf")))


def metric_words(name: str) -> str:
    """The name of a metric on an axis.

    >>> metric_words("evaluation/episode_return_mean"), metric_words("learner/td_error")
    ('mean return (evaluation)', 'td error')
    """
    if name in _METRICS:
        return _METRICS[name]
    if name.startswith("evaluation/"):
        return f"{metric_words(name.removeprefix('evaluation/'))} (evaluation)"
    return name.removeprefix("learner/").removeprefix("info/").replace("_", " ")


def time_unit(longest: float) -> tuple[str, float]:
    """The unit for an axis of this many seconds, and its length in seconds."""
    return next((name, seconds) for name, seconds, end in _TIME_UNITS if longest <= end)


def prefix_of(largest: float, first: float = 1e4) -> tuple[str, float]:
    """The SI prefix for numbers of an axis, and its factor. `first`: the smallest number with a prefix.

    >>> prefix_of(9000), prefix_of(61_440), prefix_of(2e6)
    (('', 1.0), ('k', 1000.0), ('M', 1000000.0))
    """
    for name, factor, start in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, first)):
        if largest >= start:
            return name, factor
    return "", 1.0


def labels_of(groups: Sequence[Sequence[Source]]) -> list[str]:
    """Labels of groups of runs: the shortest of several kinds that tells all of them apart."""
    firsts = [group[0] for group in groups]
    names = [n for n in differences([source.settings for source in firsts]) if n not in ("run", "env")]

    def settings(source: Source) -> str:
        return ", ".join(f"{name.removeprefix('config/')} {value_words(source.settings.get(name))}" for name in names)

    def algorithm(source: Source) -> str:
        return str(source.settings.get("run") or "")

    def env(source: Source) -> str:
        return str(source.settings.get("env") or "")

    def experiment(source: Source) -> str:
        return source.experiment

    kinds: list[tuple[Callable[[Source], str], ...]] = [(algorithm,), (env,), (algorithm, env)]
    few: list[tuple[Callable[[Source], str], ...]] = [(settings,)] if 1 <= len(names) <= _MOST_SETTINGS else []
    kinds += [*few, (experiment,), (algorithm, experiment), *((experiment, *kind) for kind in few)]
    for kind in kinds:
        labels = [", ".join(part(source) for part in kind) for source in firsts]
        if all(labels) and len({shortened(label, _LONGEST) for label in labels}) == len(labels):
            return [shortened(label, _LONGEST) for label in labels]
    return [source.name.rpartition("/")[2] for source in firsts]


def seed_labels(sources: Sequence[Source]) -> list[str]:
    """Labels of single runs that differ in the seed only."""
    labels = [f"seed {source.seed}" for source in sources]
    return labels if len(set(labels)) == len(labels) else [source.name.rpartition("/")[2] for source in sources]


def value_words(value: Any) -> str:
    """The value of a setting in a label.

    >>> value_words(0.0003), value_words([64, 64]), value_words(None), value_words(True)
    ('0.0003', '[64, 64]', 'none', 'on')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)

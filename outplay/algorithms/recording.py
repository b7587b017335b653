"""The run of an algorithm that was made in Python: `PPO(…, run="name")` and `learn()`.

The only module of `algorithms` that needs `runs`. It is imported when it is used, since `runs` needs `algorithms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from outplay.algorithms.algorithm import Algorithm
from outplay.errors import ConfigError
from outplay.runs.callbacks import Callback
from outplay.runs.progress import progress_bar
from outplay.runs.run import Run


def new_run(algorithm: Algorithm, settings: str | Mapping[str, Any]) -> Run:
    """A run that records this algorithm."""
    return Run.record(algorithm, algorithm._env, settings)


def learn(
    algorithm: Algorithm,
    total_timesteps: int | None,
    stop: Mapping[str, float] | None,
    callbacks: Callback | str | Iterable[Callback | str],
    progress: bool,
) -> None:
    """Train until the first of these conditions is reached: see `Algorithm.learn`."""
    conditions = _conditions(algorithm.timesteps, total_timesteps, stop)
    if isinstance(callbacks, (str, Callback)) or not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    run = algorithm.run or Run.without_folder(algorithm, algorithm._env)
    run.set_stop(conditions, "learn()")
    with progress_bar(run) if progress else nullcontext(lambda _: None) as show:
        run.train(show, list(callbacks))


def _conditions(done: int, total_timesteps: Any, stop: Any) -> dict[str, float]:
    if total_timesteps is None and not stop:
        raise ConfigError("learn() needs an end: learn(100_000), or learn(stop={'episode_return_mean': 475})")
    if stop is not None and not isinstance(stop, Mapping):
        raise ConfigError(f"learn(): stop must be conditions {{metric: value}}, not {stop!r}")
    conditions = dict(stop or {})
    if total_timesteps is not None:
        is_number = isinstance(total_timesteps, (int, float)) and not isinstance(total_timesteps, bool)
        if not is_number or total_timesteps < 1 or total_timesteps % 1:
            raise ConfigError(f"learn(): total_timesteps must be an integer of at least 1, not {total_timesteps!r}")
        limit = done + int(total_timesteps)
        conditions["timesteps_total"] = min(limit, conditions.get("timesteps_total", limit))
    return conditions

"""Run folders with known results, for tests of figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Results = Callable[[int], dict[str, Any]]


def result(iteration: int, value: float | None, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "timesteps_total": 1000 * iteration,
        "episodes_total": 10 * iteration,
        "episode_return_mean": value,
        "time_total_s": 2.0 * iteration,
        **more,
    }


def recorded_run(
    results: Path, experiment: str, number: int, values: list[float | None], **settings: Any
) -> tuple[Path, list[dict[str, Any]]]:
    """A run folder with these returns, one per iteration; (folder, results). `settings` are those under config."""
    algorithm, env = settings.pop("run", "PPO"), settings.pop("env", "CartPole-v1")
    more = settings.pop("more", lambda iteration: {})
    folder = results / experiment / f"{algorithm}_{env}_{number:06x}_2026-11-18_12-00-{number:02d}"
    folder.mkdir(parents=True)
    body = {"env": env, "run": algorithm, "stop": {}, "config": {"lr": 0.001, "seed": number, **settings}}
    (folder / "config.yaml").write_text(yaml.safe_dump({experiment: body}, sort_keys=False))
    found = [result(i, value, **more(i)) for i, value in enumerate(values, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    return folder, found

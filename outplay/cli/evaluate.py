"""`outplay evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outplay.cli.output import apart_from_environments, number, signs_of_life
from outplay.errors import ConfigError

_EPISODES = 10


def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A checkpoint, a run, or an experiment: the newest.")
    ],
    episodes: Annotated[int | None, typer.Option(min=1, help="How many episodes to play; 10 unless given.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps to play, instead of episodes.")] = None,
    run: Annotated[str | None, typer.Option(help="The algorithm; must match the checkpoint.")] = None,
    env: Annotated[str | None, typer.Option(help="The environment; must match the checkpoint.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which episodes are played; the run's seed unless given.")] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="Draw actions at random instead of taking the likeliest.")
    ] = False,
    video: Annotated[Path | None, typer.Option(help="Write a video of one more episode to this file (.mp4).")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the environment it names, from where it says.")
    ] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Where runs lie, if not in ~/outplay_results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Play episodes with a trained policy, on seeds that training did not use."""
    if episodes is not None and steps is not None:
        raise ConfigError("--episodes and --steps cannot be combined")
    from outplay.runs.history import as_json as to_json
    from outplay.runs.playing import SavedPolicy, play, video_path
    from outplay.runs.results import results_folder

    video = None if video is None else video_path(video)
    saved = SavedPolicy.find(checkpoint, results_folder(results_dir), run, env, trust)
    with apart_from_environments() as (_, err), signs_of_life(lambda: "evaluating", err):
        played = play(saved, steps or episodes or _EPISODES, "timesteps" if steps else "episodes", seed, explore, video)
    metrics, state = played.metrics, saved.state
    if as_json:
        typer.echo(json.dumps(json.loads(to_json(metrics))))
    else:
        typer.echo(f"{state['algorithm']} on {state['env']}, iteration {state['training_iteration']} ({saved.folder})")
        typer.echo(_sentence(metrics, played.longest))
        if "video" in metrics:
            typer.echo(f"video {video}: return {number(metrics['video_return'], 2)}")
    if played.no_video is not None:
        raise played.no_video


def _sentence(figures: dict[str, Any], limit: int | None) -> str:
    if not figures["episodes"]:
        return (
            f"no episode ended within {figures['timesteps']:,} steps; the return so far is "
            f"{number(figures['cut_off'], 2)}"
        )
    mean, least, greatest = (number(figures[f"episode_return_{name}"], 2) for name in ("mean", "min", "max"))
    truncated = figures.get("episodes_truncated", 0)
    return (
        f"{figures['episodes']} episodes, {figures['timesteps']:,} steps: return {mean} ({least} to {greatest}), "
        f"length {figures['episode_len_mean']:.1f}"
        + (f"; {truncated} truncated at {limit:,} steps (evaluation_max_episode_steps)" if truncated else "")
    )

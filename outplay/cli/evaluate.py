"""`outplay evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outplay.cli import completion
from outplay.cli.output import heartbeat, number, separate_output
from outplay.errors import ConfigError

_EPISODES = 10


def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A checkpoint, a run (its newest checkpoint), or the name of an experiment (its newest run).",
            autocompletion=completion.runs,
        ),
    ],
    episodes: Annotated[int | None, typer.Option(min=1, help="Number of episodes; default 10.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps, instead of --episodes.")] = None,
    run: Annotated[str | None, typer.Option(help="The algorithm; must match the checkpoint.")] = None,
    env: Annotated[str | None, typer.Option(help="The environment; must match the checkpoint.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the episodes; default: the run's seed.")] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample actions from the policy instead of acting greedily.")
    ] = False,
    video: Annotated[
        Path | None, typer.Option(help="Record one additional episode as a video to this file (.mp4).")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Allow importing the environment from the module and folders in the checkpoint."),
    ] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Evaluate a trained policy on seeds that training did not use."""
    if episodes is not None and steps is not None:
        raise ConfigError("--episodes and --steps cannot be combined")
    from outplay.runs.history import as_json as to_json
    from outplay.runs.playing import SavedPolicy, play, video_path
    from outplay.runs.results import results_folder

    video = None if video is None else video_path(video)
    saved = SavedPolicy.find(checkpoint, results_folder(results_dir), run, env, trust)
    with separate_output() as (_, err), heartbeat(lambda: "evaluating", err):
        played = play(saved, steps or episodes or _EPISODES, "timesteps" if steps else "episodes", seed, explore, video)
    metrics, state = played.metrics, saved.state
    if as_json:
        typer.echo(json.dumps(json.loads(to_json(metrics))))
    else:
        typer.echo(f"{state['algorithm']} on {state['env']}, iteration {state['training_iteration']} ({saved.folder})")
        typer.echo(_summary(metrics, played.longest))
        if "video" in metrics:
            typer.echo(f"video {video}: return {number(metrics['video_return'], 2)}")
    if played.video_error is not None:
        raise played.video_error


def _summary(metrics: dict[str, Any], limit: int | None) -> str:
    if not metrics["episodes"]:
        return (
            f"no episode ended within {metrics['timesteps']:,} steps; the return so far is "
            f"{number(metrics['cut_off'], 2)}"
        )
    mean, least, greatest = (number(metrics[f"episode_return_{name}"], 2) for name in ("mean", "min", "max"))
    truncated = metrics.get("episodes_truncated", 0)
    return (
        f"{metrics['episodes']} episodes, {metrics['timesteps']:,} steps: return {mean} ({least} to {greatest}), "
        f"length {metrics['episode_len_mean']:.1f}"
        + (f"; {truncated} truncated at {limit:,} steps (evaluation_max_episode_steps)" if truncated else "")
    )

"""`outplay evaluate`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outplay.cli import completion
from outplay.cli.output import heartbeat, separate_output
from outplay.errors import ConfigError
from outplay.formatting import counted, duration, number
from outplay.live import LiveArea, is_live_terminal

if TYPE_CHECKING:
    from outplay.runs.playing import EpisodeProgress

_EPISODES = 10


def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A checkpoint, a run (its newest checkpoint), an experiment (its newest run), or a bundle.",
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
    max_episode_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Truncate episodes after this many steps, instead of evaluation_max_episode_steps of the run; by "
            "default 100,000 steps (Atari: 18,000 frames), so that an environment without a time limit ends.",
        ),
    ] = None,
    video: Annotated[
        Path | None, typer.Option(help="Record one additional episode as a video to this file (.mp4, .webm, .gif).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Record the episodes as Parquet files in this folder, to learn from them.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Import modules that the checkpoint names, from its folders too: the environment, a custom model, a "
            "custom action distribution.",
        ),
    ] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Evaluate a trained policy on seeds that training did not use.

    Ctrl-C prints the result of the episodes that have ended.
    """
    if episodes is not None and steps is not None:
        raise ConfigError("--episodes and --steps cannot be combined")
    from outplay.runs.history import as_json as to_json
    from outplay.runs.playing import EpisodeProgress, SavedPolicy, play, video_path
    from outplay.runs.results import results_folder

    video = None if video is None else video_path(video)
    saved = SavedPolicy.find(checkpoint, results_folder(results_dir), run, env, trust)
    given = {"evaluation_max_episode_steps": max_episode_steps, "seed": seed}
    settings = {
        "evaluation_duration": steps or episodes or _EPISODES,
        "evaluation_duration_unit": "timesteps" if steps else "episodes",
        "evaluation_explore": explore,
        **{name: value for name, value in given.items() if value is not None},
    }
    progress = EpisodeProgress()
    with separate_output() as (_, err), _progress_shown(progress, steps, episodes or _EPISODES, err):
        played = play(saved, settings, video, progress, output)
    metrics, state = played.metrics, saved.state
    if as_json:
        partial = {"partial": True} if played.is_partial else {}
        typer.echo(json.dumps({**json.loads(to_json(metrics)), **partial}))
    else:
        typer.echo(f"{state['algorithm']} on {state['env']}, iteration {state['training_iteration']} ({saved.folder})")
        typer.echo(_summary(metrics, played.longest) + ("; partial: stopped by Ctrl-C" if played.is_partial else ""))
        if output is not None:
            typer.echo(f"recorded in {output}")
        if "video" in metrics:
            typer.echo(f"video {video}: return {number(metrics['video_return'], 2)}")
    if played.is_partial:
        raise typer.Exit(130)
    if played.video_error is not None:
        raise played.video_error


@contextmanager
def _progress_shown(progress: EpisodeProgress, steps: int | None, episodes: int, err: TextIO) -> Iterator[None]:
    """A live line on a terminal; elsewhere a heartbeat."""
    if not is_live_terminal(err):
        with heartbeat(lambda: "evaluating", err):
            yield
        return
    from rich.text import Text

    started = time.monotonic()

    def render(size: os.terminal_size, _: bool) -> Text:
        text = _progress(progress, steps, episodes) + f", {duration(time.monotonic() - started)}"
        return Text(text[: size.columns])

    with LiveArea(err, render, keep=False):
        yield


def _progress(progress: EpisodeProgress, steps: int | None, episodes: int) -> str:
    returns = list(progress.returns)
    if steps is None:
        done = f"episode {min(len(returns) + 1, episodes)} of {episodes}, {counted(progress.steps, 'step')}"
    else:
        done = f"{progress.steps:,} of {counted(steps, 'step')}, {counted(len(returns), 'episode')}"
    return f"evaluating: {done}" + (f", mean return {number(sum(returns) / len(returns), 2)}" if returns else "")


def _summary(metrics: dict[str, Any], limit: int | None) -> str:
    if not metrics["episodes"]:
        so_far = f"; the return so far is {number(metrics['cut_off'], 2)}" if "cut_off" in metrics else ""
        return f"no episode ended within {counted(metrics['timesteps'], 'step')}{so_far}"
    mean, least, greatest = (number(metrics[f"episode_return_{name}"], 2) for name in ("mean", "min", "max"))
    truncated = metrics.get("episodes_truncated", 0)
    return (
        f"{counted(metrics['episodes'], 'episode')}, {counted(metrics['timesteps'], 'step')}: "
        f"return {mean} ({least} to {greatest}), length {metrics['episode_len_mean']:.1f}"
        + "".join(f", {key} {number(value, 3)}" for key, value in metrics.get("info", {}).items())
        + (f"; {truncated} truncated at {counted(limit or 0, 'step')} (--max-episode-steps)" if truncated else "")
    )

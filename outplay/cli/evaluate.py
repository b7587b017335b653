"""`outplay evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outplay.cli.output import apart_from_environments, number, signs_of_life
from outplay.errors import ConfigError, OutplayError


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
    from outplay.algorithms import find_algorithm
    from outplay.collect.video import check_video, record_video
    from outplay.envs import check_trust
    from outplay.errors import CheckpointError
    from outplay.runs.checkpoint import read_state
    from outplay.runs.history import as_json as to_json
    from outplay.runs.loading import find_saved
    from outplay.runs.results import as_path, results_folder

    if video is not None:
        video = as_path(video)
        check_video(video)
    folder = find_saved(checkpoint, results_folder(results_dir))
    state = read_state(folder)
    if run is not None and find_algorithm(run).__name__ != state["algorithm"]:
        raise CheckpointError(f"checkpoint {folder} is of {state['algorithm']}, not of {run}")
    remedy = f"repeat it with --env {state['env']}, or add --trust"
    check_trust(state["env"], env, trust, f"checkpoint {folder}", remedy)
    config = {
        **{key: value for key, value in state["config"].items() if key != "env"},
        "evaluation_duration": steps or episodes or 10,
        "evaluation_duration_unit": "timesteps" if steps else "episodes",
        "evaluation_explore": explore,
        "evaluation_num_workers": 0,
        "num_gpus": 0,
        "act_on_gpu": False,
        **({} if seed is None else {"seed": seed}),
    }
    folders = map(Path, state["env_folders"] if trust else [])
    no_video: OutplayError | None = None
    with (
        apart_from_environments() as (_, err),
        signs_of_life(lambda: "evaluating", err),
        find_algorithm(state["algorithm"])(env=env or state["env"], config=config, folders=folders) as algorithm,
    ):
        algorithm.load_weights(folder)
        figures = algorithm.evaluate()
        if video is not None:
            try:
                figures["video_return"] = record_video(
                    algorithm.env_spec,
                    algorithm.policy,
                    video,
                    algorithm.config.seed,
                    explore,
                    algorithm.longest_evaluation_episode,
                )
                figures["video"] = str(video)
            except OutplayError as error:  # told after the figures, which are good
                no_video = error
        limit = algorithm.longest_evaluation_episode
    if as_json:
        typer.echo(json.dumps(json.loads(to_json(figures))))
    else:
        typer.echo(f"{state['algorithm']} on {state['env']}, iteration {state['training_iteration']} ({folder})")
        typer.echo(_sentence(figures, limit))
        if "video" in figures:
            typer.echo(f"video {video}: return {number(figures['video_return'], 2)}")
    if no_video is not None:
        raise no_video


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

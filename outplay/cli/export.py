"""`outplay export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outplay.cli import completion
from outplay.cli.output import separate_output

if TYPE_CHECKING:
    from outplay.export import Exported


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A checkpoint, a run (its newest checkpoint), or the name of an experiment (its newest run).",
            autocompletion=completion.runs,
        ),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: policy.onnx, policy.pt2 or policy.safetensors.")
    ],
    format: Annotated[  # noqa: A002 - the name of the option
        str | None, typer.Option(help="onnx, pt2 (torch.export) or safetensors; default: by the suffix of FILE.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="The algorithm; must match the checkpoint.")] = None,
    env: Annotated[str | None, typer.Option(help="The environment; must match the checkpoint.")] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Import modules that the checkpoint names, from its folders too: the environment, a custom model, a "
            "custom action distribution.",
        ),
    ] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
) -> None:
    """Write a trained policy to a file that acts without Outplay: ONNX, torch.export or safetensors.

    FILE.json beside it says what goes in and out. The file is checked against the policy on random observations. An
    existing file is replaced.
    """
    from outplay.export import checked_format
    from outplay.runs.playing import SavedPolicy
    from outplay.runs.results import results_folder

    path, chosen = checked_format(file, format)
    saved = SavedPolicy.find(checkpoint, results_folder(results_dir), run, env, trust)
    with separate_output():
        exported = saved.export(path, chosen)
    state = saved.state
    typer.echo(f"{state['algorithm']} on {state['env']}, iteration {state['training_iteration']} ({saved.folder})")
    typer.echo(f"{path}: {chosen}, {_size(exported.num_bytes)}; inputs and outputs: {exported.contract_path}")
    typer.echo(_checked(exported))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"


def _checked(exported: Exported) -> str:
    if exported.verified is None:
        if exported.format == "safetensors":
            return "weights only: there is no graph to check"
        return "not checked in onnxruntime, which is not installed: pip install onnxruntime"
    number, equal = exported.verified.observations, exported.verified.equal
    if number == equal:
        return f"checked: {exported.runtime} gives the policy's actions for {number:,} random observations"
    return (
        f"checked: {exported.runtime} gives the policy's actions for {equal:,} of {number:,} random observations; in "
        "the others, two actions are equal up to rounding"
    )

"""`outplay info`."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from outplay import __version__

_PARTS = ("numpy", "torch", "gymnasium", "ale-py", "ray", "optuna", "onnx", "tensorboard", "envpool")


def info() -> None:
    """Show versions, cores and GPUs."""
    from outplay.machine import count_cpus, visible_gpus

    rows = {
        "outplay": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(count_cpus()),
        "gpus": str(len(visible_gpus())),
        **{part: _installed(part) for part in _PARTS},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def _installed(part: str) -> str:
    # Only looked up: importing them all would take seconds.
    if importlib.util.find_spec(part.replace("-", "_")) is None:
        return "not installed"
    try:
        return version(part)
    except PackageNotFoundError:
        return "installed"

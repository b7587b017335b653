"""`outplay info`."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from outplay import __version__

_PACKAGES = ("numpy", "torch", "gymnasium", "ale-py", "ray", "tensorboard", "envpool")


def info() -> None:
    """Show versions, cores and GPUs."""
    from outplay.machine import count_cpus, visible_gpus

    rows = {
        "outplay": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(count_cpus()),
        "gpus": str(len(visible_gpus())),
        **{package: _installed_version(package) for package in _PACKAGES},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def _installed_version(package: str) -> str:
    # Packages are not imported: importing all of them would take seconds.
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        return "not installed"
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"

"""Other libraries, each in a virtual environment of its own, made on first use. What the benchmarks share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CACHE = Path.home() / ".cache" / "outplay-benchmarks"
TORCH = "torch==2.13.0"

# What to install for each of them.
NEEDS: dict[str, list[str]] = {
    "sb3": [TORCH, "stable-baselines3==2.9.2", "gymnasium==1.4.0", "ale-py==0.12.1", "opencv-python-headless"],
    "sb3-contrib": [TORCH, "sb3-contrib==2.9.2", "stable-baselines3==2.9.2", "gymnasium==1.4.0"],
    "sbx": [TORCH, "sbx-rl==0.28.0", "stable-baselines3==2.9.2", "gymnasium==1.4.0"],
    "rllib": [TORCH, "ray[rllib]==2.60.0", "ale-py==0.12.1", "opencv-python-headless"],
    "raytune": ["ray[tune]==2.60.0"],
}


def install(name: str, cache: Path = CACHE) -> Path:
    """The Python of the library's virtual environment, which is made if it is not there or holds something else."""
    folder = cache / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join(NEEDS[name])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {name} into {folder}", file=sys.stderr)
        call([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        call([*pip, NEEDS[name][0]])  # PyTorch, where it is needed: before all that might choose another one
        call([*pip, *NEEDS[name]])
        ready.write_text(wanted)
    return python


def call(command: list[str]) -> str:
    """Run a command that has to succeed; its output is shown only if it does not."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}failed with exit code {done.returncode}")
    return done.stdout

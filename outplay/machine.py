"""CPUs and GPUs that are available to this process."""

from __future__ import annotations

import os
import re
from pathlib import Path


def count_cpus() -> int:
    """The number of available CPUs: with the limits of a container or of `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The available GPUs, as names for CUDA_VISIBLE_DEVICES. Imports nothing."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    devices = [path.name for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(i) for i in range(len(devices))]

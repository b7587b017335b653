"""The CPUs and GPUs that this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path


def count_cpus() -> int:
    """The CPUs this process may use, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES would name them; nothing is imported to find out."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    devices = [path.name for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(i) for i in range(len(devices))]

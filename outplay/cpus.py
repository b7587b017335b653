"""How many CPUs this process may use."""

from __future__ import annotations

import os


def count_cpus() -> int:
    """The CPUs this process may use, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

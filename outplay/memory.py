"""Memory of the machine, and clear errors when it is not sufficient. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outplay.errors import ConfigError

_BYTES_PER_PARAMETER = 16  # float32: the parameter, its gradient, two optimizer moments


def machine_memory() -> int:
    """The memory of this machine in bytes, or the memory limit of its container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            memory = min(memory, int(text))
    return memory


def check_parameters(number: int, setting: str) -> None:
    """Raise ConfigError if training this many parameters needs more memory than the machine has.

    The operating system may grant the allocation and kill the process later.
    """
    needed, available = number * _BYTES_PER_PARAMETER, machine_memory()
    if needed > available:
        raise ConfigError(
            f"{setting}: {number:,} parameters need {needed / 1e9:,.0f} GB with gradients and optimizer, and this "
            f"machine has {available / 1e9:,.0f} GB; use smaller layers"
        )


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Convert a failed memory allocation within the block to a ConfigError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError
        if isinstance(error, MemoryError) or "allocate" in str(error):
            raise ConfigError(f"not enough memory for {what}: {str(error).splitlines()[0]}") from error
        raise

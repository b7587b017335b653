"""CPUs, memory and GPUs: what is available to this process, and what is in use. Imports psutil when it is needed."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_SCAN_EVERY = 5  # samples: a search for child processes reads the whole process table


def count_cpus() -> int:
    """The number of available CPUs: with the limits of a container or of `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_bfloat16() -> bool:
    """Whether the CPU has instructions for matrix products in bfloat16: AVX-512 BF16 or AMX."""
    import torch

    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # later versions of torch may not have them
    return any(getattr(torch.cpu, name, bool)() for name in names)


def visible_gpus() -> list[str]:
    """The available GPUs, as names for CUDA_VISIBLE_DEVICES. Imports nothing."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    devices = [path.name for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(i) for i in range(len(devices))]


def gpu_usage() -> list[dict[str, Any]]:
    """The GPU that this process uses: [{"name", "percent", "memory_used_bytes", "memory_total_bytes"}], or [].

    `percent` is None without the package nvidia-ml-py. The memory is that of all processes on the GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # asking for another GPU would allocate memory on it
        return []
    free, total = torch.cuda.mem_get_info()
    percent = None
    with suppress(Exception):  # no package, or a driver without this figure
        percent = int(torch.cuda.utilization())
    used = {"memory_used_bytes": total - free, "memory_total_bytes": total}
    return [{"name": torch.cuda.get_device_name(), "percent": percent, **used}]


class MachineUsage:
    """CPU and memory of the whole machine, all processes of all users. Call `sample` about once per second."""

    def __init__(self) -> None:
        import psutil

        self._psutil: Any = psutil
        self._before = self._cpu_seconds()

    def sample(self) -> dict[str, Any]:
        """{"cpus", "cpu_percent" (0 to 100, since the last sample), "memory_used_bytes", "memory_total_bytes"}."""
        memory, (idle_before, total_before) = self._psutil.virtual_memory(), self._before
        idle, total = self._before = self._cpu_seconds()
        elapsed = total - total_before
        share = 1 - (idle - idle_before) / elapsed if elapsed > 0 else 0.0
        return {
            "cpus": count_cpus(),
            "cpu_percent": round(100 * min(1.0, max(0.0, share)), 1),
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
        }

    def _cpu_seconds(self) -> tuple[float, float]:
        """(idle, all) CPU seconds since the machine started, of all cores together."""
        times = self._psutil.cpu_times()
        # `user` and `nice` include the time of guests.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return times.idle + getattr(times, "iowait", 0.0), total


class Usage:
    """Samples CPU and memory of this process and its child processes. Call `sample` about once per second.

    `scan_every`: samples between two searches for child processes.
    """

    def __init__(self, scan_every: int = _SCAN_EVERY) -> None:
        import psutil

        self._psutil: Any = psutil
        self._processes = {0: psutil.Process()}
        self._scan_every = scan_every
        self._samples = 0
        self.cpu_percent = 0.0  # 100 is one core
        self.memory = 0  # bytes
        self.sample()

    def sample(self) -> None:
        if self._samples % self._scan_every == 0:
            children = self._processes[0].children(recursive=True)
            # A process that is known keeps its object, which remembers the CPU time of the last sample.
            self._processes = {0: self._processes[0]} | {
                child.pid: self._processes.get(child.pid, child) for child in children
            }
        self._samples += 1
        cpu_percent, private, shared = 0.0, 0, 0
        for pid, process in list(self._processes.items()):
            try:
                with process.oneshot():
                    cpu_percent += process.cpu_percent()
                    memory = process.memory_info()
            except self._psutil.Error:  # it has ended
                del self._processes[pid]
                continue
            # Libraries and shared memory are mapped by all processes: count them once.
            own = getattr(memory, "shared", 0)
            private += memory.rss - own
            shared = max(shared, own)
        self.cpu_percent, self.memory = cpu_percent, private + shared

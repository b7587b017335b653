"""CPU and memory of this process and its child processes."""

from __future__ import annotations

import psutil

_SCAN_EVERY = 5  # samples: a search for child processes reads the whole process table


class Usage:
    """Samples CPU and memory. Call `sample` about once per second."""

    def __init__(self) -> None:
        self._processes = {0: psutil.Process()}
        self._samples = 0
        self.cpu_percent = 0.0  # 100 is one core
        self.memory = 0  # bytes
        self.sample()

    def sample(self) -> None:
        if self._samples % _SCAN_EVERY == 0:
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
            except psutil.Error:  # it has ended
                del self._processes[pid]
                continue
            # Libraries and shared memory are mapped by all processes: count them once.
            own = getattr(memory, "shared", 0)
            private += memory.rss - own
            shared = max(shared, own)
        self.cpu_percent, self.memory = cpu_percent, private + shared

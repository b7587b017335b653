"""Writing large objects into shared memory."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from contextlib import suppress

from outplay.engine.slots import count_cpus

# One core does not reach the memory's bandwidth. More than a few threads do not help either.
_MOST_THREADS = 4
_SPAN = 8 * 1024 * 1024  # what a thread copies at a time

Part = tuple[int, memoryview]  # where it goes, and what


def write(memory: mmap.mmap, fd: int, parts: list[Part]) -> None:
    """Write an object's parts, which lie close together from offset 0 on. Raises OSError if memory runs out.

    Where the segment has no pages yet, the system writes: it takes pages and fills them in one go, half the work of
    clearing, mapping and filling them. And where it finds none, that is an error; in a mapping it is a crash (SIGBUS).
    """
    end = max(offset + part.nbytes for offset, part in parts)
    if os.fstat(fd).st_blocks * 512 >= end:
        _copy(memory, parts)
        return
    for offset, part in parts:
        written = 0
        while written < part.nbytes:
            written += os.pwrite(fd, part[written:], offset + written)


def _copy(memory: mmap.mmap, parts: list[Part]) -> None:
    """Copy in several threads what is large. Others may run meanwhile: numpy does not hold the interpreter's lock."""
    import numpy

    target = numpy.frombuffer(memory, numpy.uint8)
    spans: deque[tuple[int, memoryview]] = deque()
    for offset, part in parts:
        spans.extend((offset + start, part[start : start + _SPAN]) for start in range(0, part.nbytes, _SPAN))

    def work() -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                offset, source = spans.popleft()
                target[offset : offset + source.nbytes] = numpy.frombuffer(source, numpy.uint8)

    large = sum(source.nbytes == _SPAN for _, source in spans)
    helpers: list[threading.Thread] = []
    with suppress(RuntimeError):  # no more threads can be started: those that run do it all
        while large > 1 and len(helpers) + 1 < min(large, _MOST_THREADS, count_cpus()):
            helper = threading.Thread(target=work, daemon=True)
            helper.start()
            helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()

"""Writing large objects into shared memory."""

from __future__ import annotations

import mmap
import os
import threading

# One core does not reach the memory's bandwidth; more threads than a few do not help either.
_THREADS = 4
_LEAST_SHARE = 4 * 1024 * 1024  # what is worth a thread

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
    """Copy what is large in several threads. Others may run meanwhile: numpy does not hold the interpreter's lock."""
    import numpy

    target = numpy.frombuffer(memory, numpy.uint8)

    def copy(offset: int, source: memoryview) -> None:
        target[offset : offset + source.nbytes] = numpy.frombuffer(source, numpy.uint8)

    for offset, part in parts:
        share = max(_LEAST_SHARE, -(-part.nbytes // _THREADS))
        helpers = []
        for start in range(share, part.nbytes, share):
            helper = threading.Thread(target=copy, args=(offset + start, part[start : start + share]), daemon=True)
            helper.start()
            helpers.append(helper)
        if part.nbytes:
            copy(offset, part[:share])
        for helper in helpers:
            helper.join()

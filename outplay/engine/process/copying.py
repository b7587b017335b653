"""Writing large objects into shared memory."""

from __future__ import annotations

import mmap
import os
import threading

from outplay.machine import count_cpus

# One core does not reach the memory's bandwidth; more threads than a few, or than cores, do not help either.
_THREADS = min(4, count_cpus())
_LEAST_SHARE = 8 * 1024 * 1024  # what is worth a thread
_CHUNK = 4 * 1024 * 1024  # of new memory, which two threads fill from its two ends; a multiple of the page size
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap does not know its name

Part = tuple[int, memoryview]  # where it goes, and what


def write(memory: mmap.mmap, fd: int, parts: list[Part]) -> None:
    """Write an object's parts, which lie close together from offset 0 on. Raises OSError if memory runs out."""
    end = max(offset + part.nbytes for offset, part in parts)
    if os.fstat(fd).st_blocks * 512 >= end:
        _copy(memory, parts)
        return
    for offset, part in parts:
        if part.nbytes >= 2 * _CHUNK:
            _fill(memory, fd, offset, part)
        else:
            _pwrite(fd, offset, part)


def _pwrite(fd: int, offset: int, part: memoryview) -> None:
    """Fill memory that has no pages yet by a system call.

    It takes pages and fills them in one go: half the work of clearing, mapping and filling them. And where the system
    has none left, that is an error; in a mapping it is a crash (SIGBUS).
    """
    written = 0
    while written < part.nbytes:
        written += os.pwrite(fd, part[written:], offset + written)


def _fill(memory: mmap.mmap, fd: int, offset: int, part: memoryview) -> None:
    """Fill memory that has no pages yet in two threads, which meet where they meet.

    The system lets only one thread at a time write to a file. So the second one, coming from the end, takes pages
    through the mapping, which costs more, but not the first one's time.
    """
    import ctypes

    import numpy

    target = numpy.frombuffer(memory, numpy.uint8)
    source = numpy.frombuffer(part, numpy.uint8)
    libc = ctypes.CDLL(None)
    lock = threading.Lock()
    start, end = offset, offset + part.nbytes  # what nobody has taken yet, as offsets into the memory

    def from_the_end() -> None:
        nonlocal end
        while True:
            with lock:
                low, high = (end - 1) // _CHUNK * _CHUNK, end
                if low < start:
                    return
                address = ctypes.c_void_p(target.ctypes.data + low)
                end = low
            if libc.madvise(address, ctypes.c_size_t(high - low), _MADV_POPULATE_WRITE):
                refused.append((low, high))  # an old system, or no memory: the system call says which
                return
            target[low:high] = source[low - offset : high - offset]

    refused: list[tuple[int, int]] = []
    helper = threading.Thread(target=from_the_end, daemon=True)
    helper.start()
    try:
        while True:
            with lock:
                low, high = start, min(end, (start // _CHUNK + 1) * _CHUNK)
                start = high
            if low >= high:
                break
            _pwrite(fd, low, part[low - offset : high - offset])
    finally:
        with lock:
            start = end  # after an error the helper stops too
        helper.join()
    for low, high in refused:
        _pwrite(fd, low, part[low - offset : high - offset])


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

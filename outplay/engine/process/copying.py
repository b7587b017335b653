"""Writes large objects into shared memory."""

from __future__ import annotations

import mmap
import os
import threading

from outplay.machine import count_cpus

# One core does not use the full memory bandwidth. More than four threads do not help.
_THREADS = min(4, count_cpus())
_MIN_BYTES_PER_THREAD = 8 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024  # the unit in which two threads fill new memory; a multiple of the page size
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap does not define it

Part = tuple[int, memoryview]  # (offset, data)


def write(memory: mmap.mmap, fd: int, parts: list[Part]) -> None:
    """Write the parts of an object, which are contiguous from offset 0. Raises OSError if memory runs out."""
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
    """Fill memory that has no pages yet with a system call.

    The kernel allocates and fills each page in one step. A write through the mapping would cause a page fault, and
    clear the page first: twice the work. If memory runs out, the system call fails; the mapping would raise SIGBUS.
    """
    written = 0
    while written < part.nbytes:
        written += os.pwrite(fd, part[written:], offset + written)


def _fill(memory: mmap.mmap, fd: int, offset: int, part: memoryview) -> None:
    """Fill memory that has no pages yet with two threads: one from the start, one from the end.

    The kernel lets only one thread at a time write to a file. So the second thread writes through the mapping. That is
    slower, but it runs at the same time.
    """
    import ctypes

    import numpy

    target = numpy.frombuffer(memory, numpy.uint8)
    source = numpy.frombuffer(part, numpy.uint8)
    libc = ctypes.CDLL(None)
    lock = threading.Lock()
    start, end = offset, offset + part.nbytes  # the range that no thread has taken yet, as offsets into the memory

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
                refused.append((low, high))  # an old kernel, or no memory: pwrite will tell
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
            start = end  # after an error, stop the helper too
        helper.join()
    for low, high in refused:
        _pwrite(fd, low, part[low - offset : high - offset])


def _copy(memory: mmap.mmap, parts: list[Part]) -> None:
    """Copy large parts with several threads. numpy releases the GIL while it copies."""
    import numpy

    target = numpy.frombuffer(memory, numpy.uint8)

    def copy(offset: int, source: memoryview) -> None:
        target[offset : offset + source.nbytes] = numpy.frombuffer(source, numpy.uint8)

    for offset, part in parts:
        share = max(_MIN_BYTES_PER_THREAD, -(-part.nbytes // _THREADS))
        helpers = []
        for start in range(share, part.nbytes, share):
            helper = threading.Thread(target=copy, args=(offset + start, part[start : start + share]), daemon=True)
            helper.start()
            helpers.append(helper)
        if part.nbytes:
            copy(offset, part[:share])
        for helper in helpers:
            helper.join()

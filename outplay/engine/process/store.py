"""A process's view of the shared memory: writes objects into segments, reads them as views.

Segments are anonymous memory that the hub makes and sends as file descriptors. They have no name, so nothing of
them can be left behind, however the processes end. Freed segments are used again: their pages are warm. For its own
objects a process leases segments and keeps the freed ones itself, so that most of the time nobody need be asked.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING, Any

from outplay.engine import serialize
from outplay.engine.process.payload import Payload, Place, layout, segment_size
from outplay.engine.process.wire import HUB
from outplay.errors import ObjectStoreFullError

if TYPE_CHECKING:
    from outplay.engine.process.post import Post


_KEEP_BYTES = 256 * 1024 * 1024  # of free segments, before they go back to the hub


class Store:
    """Keeps the segments mapped that this process has met."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._mapped: dict[int, tuple[mmap.mmap, int]] = {}
        self._free: dict[int, list[int]] = {}  # leased segments without an object, by size
        self._free_bytes = 0

    def write_own(self, number: int, packed: serialize.Packed) -> Place:
        """Write an object of this process, once."""
        _, total = layout(_lengths(packed))
        size = segment_size(total)
        with self._lock:
            segment = self._free[size].pop() if self._free.get(size) else None
            if segment is not None:
                self._free_bytes -= size
        if segment is None:
            (segment, size), fd = self._post.request_fd("lease", total)
            self._map_new(segment, size, fd)
        return self._write(number, packed, segment, size)

    def write_for(self, holder: int, number: int, packed: serialize.Packed) -> Place:
        """Write a result for the process that called."""
        _, total = layout(_lengths(packed))
        (segment, size), fd = self._post.request_fd("alloc", number, holder, total)
        self._map_new(segment, size, fd)
        return self._write(number, packed, segment, size)

    def recycle(self, segment: int, size: int) -> None:
        """An object of this process's own is gone, and nobody else ever held it."""
        with self._lock:
            self._free.setdefault(size, []).append(segment)
            self._free_bytes += size
        if self._free_bytes > max(_KEEP_BYTES, size):
            self.give_back()

    def give_back(self) -> None:
        """Return the free segments to the hub, for others."""
        with self._lock:
            free = [segment for segments in self._free.values() for segment in segments]
            self._free.clear()
            self._free_bytes = 0
        if free:
            self._post.send(HUB, ("return", free))

    def _write(self, number: int, packed: serialize.Packed, segment: int, size: int) -> Place:
        parts = [memoryview(packed.data), *packed.buffers]
        lengths = _lengths(packed)
        offsets, _ = layout(lengths)
        with memoryview(self._mapped[segment][0]) as memory:
            for offset, part in zip(offsets, parts, strict=True):
                memory[offset : offset + part.nbytes] = part
        return Place(number, segment, size, lengths, tuple(packed.writable))

    def read(self, payload: Payload, keeper: Any) -> Any:
        """The object of a payload. Views of shared memory hold on to `keeper`, and it to the memory."""
        place = payload.place
        if place is None:
            return serialize.loads(payload.data, list(payload.buffers))
        shared, fd = self._segment(place)
        offsets, _ = layout(place.lengths)
        data, *buffers = zip(offsets, place.lengths, strict=True)
        private: mmap.mmap | None = None
        if place.writable:
            # Tensors cannot be read-only: theirs is a copy-on-write mapping, so that who writes into one
            # gets a page of its own and nobody else sees it.
            private = mmap.mmap(fd, place.segment_size, flags=mmap.MAP_PRIVATE)
        views = [
            _view(private, offset, length, keeper)
            if private is not None and i in place.writable
            else _view(shared, offset, length, keeper).toreadonly()
            for i, (offset, length) in enumerate(buffers)
        ]
        with memoryview(shared)[data[0] : data[0] + data[1]] as stream:
            return serialize.loads(stream, views)

    def _segment(self, place: Place) -> tuple[mmap.mmap, int]:
        with self._lock:
            known = self._mapped.get(place.segment)
        if known is None:
            _, fd = self._post.request_fd("open", place.segment)
            assert fd is not None
            self._map(place.segment, place.segment_size, fd)
            known = self._mapped[place.segment]
        return known

    def _map_new(self, segment: int, size: int, fd: int | None) -> None:
        if fd is not None:
            _reserve_memory(fd, size)
            self._map(segment, size, fd)

    def _map(self, segment: int, size: int, fd: int) -> None:
        with self._lock:
            if segment in self._mapped:
                os.close(fd)  # another thread was first
            else:
                self._mapped[segment] = (mmap.mmap(fd, size), fd)

    def forget(self, segments: list[int]) -> None:
        """The hub gave these back to the system: nobody holds anything in them any more."""
        with self._lock:
            for segment in segments:
                _, fd = self._mapped.pop(segment, (None, -1))
                if fd >= 0:
                    os.close(fd)


def _lengths(packed: serialize.Packed) -> tuple[int, ...]:
    return (len(packed.data), *(buffer.nbytes for buffer in packed.buffers))


def _reserve_memory(fd: int, size: int) -> None:
    """Take the pages now: running out of memory is an error here, and a crash (SIGBUS) while writing."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        raise ObjectStoreFullError(f"this machine has no {size:,} bytes of shared memory left: {error}") from error


_view_class: Any = None


def _view(memory: mmap.mmap, offset: int, length: int, keeper: Any) -> memoryview:
    """A view of `memory` that holds on to `keeper`. Only an ndarray can be both a buffer and a Python object."""
    global _view_class
    import numpy

    if _view_class is None:
        _view_class = type("StoreView", (numpy.ndarray,), {})
    view = _view_class(shape=(length,), dtype=numpy.uint8, buffer=memory, offset=offset)
    view.keeper = keeper
    return memoryview(view)

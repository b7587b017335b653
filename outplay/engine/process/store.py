"""The shared memory of a process: writes objects into segments, and reads them as views.

Segments are anonymous memory that the hub creates and sends as file descriptors. They have no name, so they cannot
outlive the processes. Freed segments are reused, because their pages are already allocated. A process leases segments
for its own objects, and reuses them without asking the hub.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING, Any

from outplay.engine import serialize
from outplay.engine.process import copying
from outplay.engine.process.payload import Payload, Place, segment_size
from outplay.engine.process.wire import HUB
from outplay.engine.serialize import layout
from outplay.errors import ObjectLostError, ObjectStoreFullError

if TYPE_CHECKING:
    from outplay.engine.process.post import Post


_KEEP_BYTES = 256 * 1024 * 1024  # of free leased segments; above this, they are returned to the hub


class Store:
    """Maps segments into this process."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._mapped: dict[int, tuple[mmap.mmap, int]] = {}
        self._free: dict[int, list[int]] = {}  # leased segments without an object, by size
        self._free_bytes = 0

    def write_own(self, number: int, packed: serialize.Packed) -> Place:
        """Write an object that this process owns."""
        _, total = layout(_lengths(packed))
        size = segment_size(total)
        with self._lock:
            segment = self._free[size].pop() if self._free.get(size) else None
            if segment is not None:
                self._free_bytes -= size
        if segment is None:
            segment, size = self._post.request("lease", total)
        return self._write(number, None, packed, segment, size)

    def write_for(self, holder: int, number: int, packed: serialize.Packed) -> Place:
        """Write the result of a call, which `holder` holds from then on."""
        _, total = layout(_lengths(packed))
        segment, size = self._post.request("alloc", number, holder, total)
        return self._write(number, holder, packed, segment, size)

    def recycle(self, segment: int, size: int) -> None:
        """Reuse the segment of a deleted object that only this process knew."""
        with self._lock:
            self._free.setdefault(size, []).append(segment)
            self._free_bytes += size
        if self._free_bytes > max(_KEEP_BYTES, size):
            self.return_free()

    def return_free(self) -> None:
        """Return free segments to the hub, for other processes."""
        with self._lock:
            free = [segment for segments in self._free.values() for segment in segments]
            self._free.clear()
            self._free_bytes = 0
        if free:
            self._post.send(HUB, ("return", free))

    def _write(self, number: int, holder: int | None, packed: serialize.Packed, segment: int, size: int) -> Place:
        lengths = _lengths(packed)
        memory, fd = self._memory(segment)
        try:
            copying.write(memory, fd, _parts(packed))
        except OSError as error:
            self._post.send(HUB, ("write_failed", number, holder, segment))
            raise ObjectStoreFullError(f"this machine has no {size:,} bytes of memory left: {error}") from error
        return Place(number, segment, size, lengths, tuple(packed.writable))

    def read(self, payload: Payload, keeper: Any) -> Any:
        """The object of a payload. Views of shared memory refer to `keeper`, which keeps the memory alive."""
        place = payload.place
        if place is None:
            return serialize.loads(payload.data, serialize.aligned(payload.buffers, payload.writable))
        if place.segment not in self._mapped:
            self._post.request("open", place.segment)
        offsets, _ = layout(place.lengths)
        data, *buffers = zip(offsets, place.lengths, strict=True)
        private: mmap.mmap | None = None
        with self._post.lock:  # so that the segment is not unmapped meanwhile
            shared, fd = self._memory(place.segment)
            if place.writable:
                # Tensors cannot be read-only. They get a copy-on-write mapping: a write copies the page, and no
                # other process sees it.
                private = mmap.mmap(fd, place.segment_size, flags=mmap.MAP_PRIVATE)
        views = [
            _view(private, offset, length, keeper)
            if private is not None and i in place.writable
            else _view(shared, offset, length, keeper).toreadonly()
            for i, (offset, length) in enumerate(buffers)
        ]
        with memoryview(shared)[data[0] : data[0] + data[1]] as stream:
            return serialize.loads(stream, views)

    def _memory(self, segment: int) -> tuple[mmap.mmap, int]:
        known = self._mapped.get(segment)
        if known is None:
            raise ObjectLostError("the memory of this object was lost when a process died, or cannot be mapped")
        return known

    def map(self, segment: int, size: int, fd: int) -> None:
        """Map a segment. The hub sends each segment once, before its reply to the first request for it."""
        try:
            self._mapped[segment] = (mmap.mmap(fd, size), fd)
        except OSError:
            os.close(fd)  # _memory raises an error when it is used

    def forget(self, segments: list[int]) -> None:
        """Close segments that the hub has returned to the system. No object is left in them."""
        for segment in segments:
            _, fd = self._mapped.pop(segment, (None, -1))
            if fd >= 0:
                os.close(fd)


def _lengths(packed: serialize.Packed) -> tuple[int, ...]:
    return (packed.stream_nbytes, *(buffer.nbytes for buffer in packed.buffers))


def _parts(packed: serialize.Packed) -> list[tuple[int, memoryview]]:
    """The pieces of the pickle stream and the buffers of an object, with their offsets."""
    offsets, _ = layout(_lengths(packed))
    parts, end = [], 0
    for piece in packed.stream:
        parts.append((end, memoryview(piece)))
        end += len(piece)
    return parts + list(zip(offsets[1:], packed.buffers, strict=True))


_view_class: Any = None


def _view(memory: mmap.mmap, offset: int, length: int, keeper: Any) -> memoryview:
    """A view of `memory` that refers to `keeper`. Only an ndarray is a buffer that can have attributes."""
    global _view_class
    import numpy

    if _view_class is None:
        _view_class = type("StoreView", (numpy.ndarray,), {})
    view = _view_class(shape=(length,), dtype=numpy.uint8, buffer=memory, offset=offset)
    view.keeper = keeper
    return memoryview(view)

"""The hub's reference counts of objects and actors, and its shared memory segments.

Each process holds an object a number of times; the hub keeps these counts. When the sum of the counts is zero, the
object is freed one round of the hub's event loop later. By then, the hub has read all messages that were sent before. A
process that passes an object on tells the hub before it tells the receiver. So if the object is still in use, that
round has read the message which raises its count.
"""

from __future__ import annotations

import os
import pickle
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outplay.engine.process.payload import ID_BITS, Payload, segment_size
from outplay.engine.process.wire import HUB, Message
from outplay.errors import ObjectLostError, ObjectStoreFullError, OutplayError

# Before an allocation fails: other processes may be about to release objects.
_ALLOCATION_TIMEOUT_S = 1.0


class Sender(Protocol):
    def __call__(self, to: int, message: Message, fd: int | None = None) -> None: ...


@dataclass
class Counted:
    """An object or actor that more than one process may hold."""

    total: int = 0  # the reference count, summed over all processes
    payload: Payload | None = None
    segment: int | None = None
    tainted: bool = False  # a crashed process may have lent it to others, which may still read it
    wanted_by: set[int] = field(default_factory=set)  # the processes that asked for its value
    on_payload: list[Callable[[Payload], None]] = field(default_factory=list)
    on_unheld: Callable[[], None] | None = None  # of an actor: called when the count is zero


@dataclass
class Segment:
    fd: int
    size: int
    lessee: int | None = None  # the process that leases it, for its own objects
    mapped_by: set[int] = field(default_factory=set)


@dataclass
class Request:
    """A request for a segment that has no reply yet."""

    peer: int
    number: int
    nbytes: int
    deadline: float
    result: tuple[int, int] | None  # (object, the process that will hold it); None: the process leases the segment


def error_payload(error: OutplayError) -> Payload:
    return Payload(pickle.dumps(error, protocol=5), (), (), failed=True)


class Objects:
    """Reference counts and segments."""

    def __init__(self, limit: int, send: Sender, is_alive: Callable[[int], bool]) -> None:
        self._limit = limit
        self._max_segments = max_segments()
        self._send = send
        self._is_alive = is_alive
        self._objects: dict[int, Counted] = {}
        self._holds: dict[int, Counter[int]] = {}  # by process: the reference count of each object
        self._unheld: tuple[set[int], set[int]] = (
            set(),
            set(),
        )  # objects with count 0: since this round, since the last
        self._segments: dict[int, Segment] = {}
        self._pool: dict[int, list[int]] = {}  # free segments by size
        self._last_segment = 0
        self._bytes = 0  # of all segments, in use or free
        self._allocations: list[Request] = []  # without a reply yet

    # Reference counts

    def object(self, number: int) -> Counted:
        """The record of an object. A message that mentions it may arrive before the message that creates it."""
        if number not in self._objects:
            self._objects[number] = Counted()
        return self._objects[number]

    def hold(self, peer: int, number: int) -> None:
        if peer == HUB or self._is_alive(peer):
            self._count(peer, number, 1)
        self._note_if_unheld(number)

    def release(self, peer: int, number: int, count: int = 1) -> None:
        self._count(peer, number, -count)
        self._note_if_unheld(number)

    def _count(self, peer: int, number: int, change: int) -> None:
        self.object(number).total += change
        if peer != HUB:
            # Negative while a drop has overtaken the grant that another process sent.
            holds = self._holds.setdefault(peer, Counter())
            holds[number] += change
            if holds[number] == 0:
                del holds[number]

    def _note_if_unheld(self, number: int) -> None:
        if self.object(number).total == 0:
            self._unheld[0].add(number)

    def grant(self, numbers: tuple[int, ...], to: int) -> None:
        for number in numbers:
            self.hold(to, number)

    def drop(self, peer: int, notes: list[tuple[int, int]]) -> None:
        for number, count in notes:
            self.release(peer, number, count)

    def forget(self, peer: int, numbers: tuple[int, ...]) -> None:
        """`peer` does not want these results any more. It may or may not be counted as their holder already."""
        for number in numbers:
            record = self._objects.get(number)
            if record is not None and record.segment is not None:
                self._free_segment(record)
                self.release(peer, number)

    def peer_died(self, peer: int) -> None:
        for number, count in self._holds.pop(peer, Counter()).items():
            record = self.object(number)
            record.total -= count
            record.tainted = True
            self._note_if_unheld(number)
        lost = error_payload(ObjectLostError("the process that was to produce this object died"))
        for number, record in list(self._objects.items()):
            record.wanted_by.discard(peer)
            if number >> ID_BITS == peer and record.payload is None and record.on_unheld is None:
                self._set_payload(number, record, lost)
        self._allocations = [request for request in self._allocations if request.peer != peer]
        for segment_number, segment in list(self._segments.items()):
            segment.mapped_by.discard(peer)
            if segment.lessee == peer:  # never reused: its objects may be lent to others, which still read them
                self._destroy(segment_number)

    def end_round(self) -> bool:
        """Free the objects whose count was zero for a whole round. Returns whether the next must follow at once."""
        found, confirmed = self._unheld
        self._unheld = (set(), found)
        for number in confirmed:
            record = self._objects.get(number)
            if record is not None and record.total == 0:
                self._free(number, record)
        self._serve_allocations()
        return bool(self._unheld[0] or self._unheld[1])

    def _free(self, number: int, record: Counted) -> None:
        del self._objects[number]
        if record.on_unheld is not None:
            record.on_unheld()
        if record.payload is not None:
            for inner in record.payload.refs:
                self.release(HUB, inner)
        self._free_segment(record)

    def _free_segment(self, record: Counted) -> None:
        """Free the segment of a deleted object. It is not reused if a process may still read it."""
        number, record.segment = record.segment, None
        if number is None:
            return
        if record.tainted:
            self._destroy(number)
        else:
            self._pool.setdefault(self._segments[number].size, []).append(number)

    # Values

    def share(self, peer: int, number: int, payload: Payload | None, is_new: bool) -> None:
        record = self.object(number)
        if is_new:
            self.hold(peer, number)
        if payload is not None:
            self._set_payload(number, record, payload)
            if payload.place is not None and record.segment is None:
                record.segment = payload.place.segment
                self._segments[record.segment].lessee = None

    def resolve(self, number: int, payload: Payload) -> None:
        self._set_payload(number, self.object(number), payload)

    def _set_payload(self, number: int, record: Counted, payload: Payload) -> None:
        if record.payload is not None:
            return
        record.payload = payload
        for inner in payload.refs:
            self.hold(HUB, inner)
        wanted_by, record.wanted_by = record.wanted_by, set()
        for peer in wanted_by:
            self._send_value(peer, number, payload)
        callbacks, record.on_payload = record.on_payload, []
        for callback in callbacks:
            callback(payload)

    def want(self, peer: int, number: int) -> None:
        record = self.object(number)
        if record.payload is None:
            record.wanted_by.add(peer)
        else:
            self._send_value(peer, number, record.payload)

    def _send_value(self, peer: int, number: int, payload: Payload) -> None:
        self.grant(payload.refs, peer)
        self._send(peer, ("value", number, payload, payload.refs))

    # Segments

    def alloc(self, peer: int, request: int, number: int, holder: int, nbytes: int) -> None:
        """Reply with a segment of at least `nbytes` for object `number`, which `holder` holds from then on."""
        self._allocate(Request(peer, request, nbytes, time.monotonic() + _ALLOCATION_TIMEOUT_S, (number, holder)))

    def lease(self, peer: int, request: int, nbytes: int) -> None:
        """Reply with a segment of at least `nbytes`, which `peer` may use for its own objects."""
        self._allocate(Request(peer, request, nbytes, time.monotonic() + _ALLOCATION_TIMEOUT_S, None))

    def _allocate(self, request: Request) -> None:
        self._allocations.append(request)
        self._serve_allocations()

    def return_segments(self, numbers: list[int]) -> None:
        for number in numbers:
            self._segments[number].lessee = None
            self._pool.setdefault(self._segments[number].size, []).append(number)

    def _serve_allocations(self) -> None:
        waiting, self._allocations = self._allocations, []
        for request in waiting:
            if request.result is not None and not self._is_alive(request.result[1]):
                lost = ObjectLostError("the process that asked for this result has died")
                self._send(request.peer, ("reply", request.number, lost))
                continue
            segment = self._take_segment(request.peer, segment_size(request.nbytes))
            if segment is not None:
                self._assign(request, segment)
            elif time.monotonic() < request.deadline and request.nbytes <= self._limit:
                self._allocations.append(request)
            else:
                used = self._bytes - sum(size * len(free) for size, free in self._pool.items())
                if request.nbytes > self._limit:
                    text = f"an object of {request.nbytes:,} bytes can never fit into a store of {self._limit:,} bytes"
                    error = ObjectStoreFullError(f"{text}; give it more memory: outplay.init(object_store_bytes=…)")
                    self._send(request.peer, ("reply", request.number, error))
                    continue
                full = (
                    f"{used:,} of its {self._limit:,} bytes are in use"
                    if len(self._segments) < self._max_segments
                    else f"it holds {len(self._segments):,} large objects, the most that the limit on open files allows"
                )
                error = ObjectStoreFullError(
                    f"an object of {request.nbytes:,} bytes does not fit into the store: {full}. Delete Refs and "
                    f"arrays that are not needed any more, or give the store more memory: "
                    f"outplay.init(object_store_bytes=…)"
                )
                self._send(request.peer, ("reply", request.number, error))
        if self._allocations:
            lessees = {segment.lessee for segment in self._segments.values() if segment.lessee is not None}
            for peer in lessees | set(self._holds):
                self._send(peer, ("trim",))

    @property
    def has_allocations(self) -> bool:
        """Whether a process waits for memory."""
        return bool(self._allocations)

    def _take_segment(self, peer: int, size: int) -> int | None:
        free = self._pool.get(size)
        if free:
            # The best segment is one that the writer has mapped. The next best is the last freed: it may be in a cache.
            number = next((n for n in reversed(free) if peer in self._segments[n].mapped_by), free[-1])
            free.remove(number)
            return number
        while self._bytes + size > self._limit and self._shrink():
            pass
        while len(self._segments) >= self._max_segments and self._shrink():
            pass
        if self._bytes + size > self._limit or len(self._segments) >= self._max_segments:
            return None
        self._last_segment += 1
        self._segments[self._last_segment] = Segment(_anonymous_memory(size), size)
        self._bytes += size
        return self._last_segment

    def _shrink(self) -> bool:
        """Return the largest free segment to the system. Returns False if there is none."""
        size = max((size for size, free in self._pool.items() if free), default=0)
        if size == 0:
            return False
        self._destroy(self._pool[size].pop(0))
        return True

    def _destroy(self, number: int) -> None:
        segment = self._segments.pop(number)
        os.close(segment.fd)
        self._bytes -= segment.size
        for peer in segment.mapped_by:
            self._send(peer, ("unmap", [number]))

    def _assign(self, request: Request, number: int) -> None:
        if request.result is None:
            self._segments[number].lessee = request.peer
        else:
            result, holder = request.result
            record = self.object(result)
            self.hold(holder, result)
            record.segment = number
        self._send_segment(request.peer, request.number, number)

    def write_failed(self, number: int, holder: int | None, segment: int) -> None:
        """The system had no memory for the segment of object `number`."""
        if holder is not None:
            self.object(number).segment = None
            if self._is_alive(holder):
                self.release(holder, number)
        if segment in self._segments:
            self._destroy(segment)

    def open(self, peer: int, request: int, number: int) -> None:
        if number in self._segments:
            self._send_segment(peer, request, number)
        else:
            lost = ObjectLostError("the process that had stored this object died")
            self._send(peer, ("reply", request, lost))

    def _send_segment(self, peer: int, request: int, number: int) -> None:
        segment = self._segments[number]
        if peer not in segment.mapped_by:
            segment.mapped_by.add(peer)
            self._send(peer, ("segment", number, segment.size), segment.fd)
        self._send(peer, ("reply", request, (number, segment.size)))


def max_segments() -> int:
    """How many segments a process can open, at three descriptors each. Some descriptors are left for other uses."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, (soft - 256) // 3)


def _anonymous_memory(size: int) -> int:
    """Memory that other processes can map with its descriptor. It has no name, so it cannot outlive them."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("outplay", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="outplay-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd

"""The hub's objects: who holds each of them, where it lies, and who waits for it.

A count that reaches zero is acted on one round of the hub's loop later, when everything that was sent before has
been read. That makes a plain count exact: whoever passes an object on tells the hub before it tells the receiver,
so a hold that matters is always among what that round reads.
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

# Others may be about to let go of what is in the way of an allocation.
_PATIENCE_S = 1.0


class Sender(Protocol):
    def __call__(self, to: int, message: Message, fd: int | None = None) -> None: ...


@dataclass
class Counted:
    """An object or actor that more than one process may hold."""

    total: int = 0
    payload: Payload | None = None
    segment: int | None = None
    tainted: bool = False  # a process that died may have lent it to others, who still read it
    wanted_by: set[int] = field(default_factory=set)
    on_payload: list[Callable[[Payload], None]] = field(default_factory=list)
    on_unheld: Callable[[], None] | None = None  # of an actor


@dataclass
class Segment:
    fd: int
    size: int
    lessee: int | None = None  # the process that keeps it, with an object of its own or free
    mapped_by: set[int] = field(default_factory=set)


@dataclass
class Request:
    """An allocation that waits for room."""

    peer: int
    number: int
    nbytes: int
    deadline: float
    result: tuple[int, int] | None  # the object it is for, and its holder; None: the process leases it


def error_payload(error: OutplayError) -> Payload:
    return Payload(pickle.dumps(error, protocol=5), (), (), failed=True)


class Objects:
    """Counts holds and manages segments."""

    def __init__(self, limit: int, send: Sender, is_alive: Callable[[int], bool]) -> None:
        self._limit = limit
        self._most_segments = most_segments()
        self._send = send
        self._is_alive = is_alive
        self._objects: dict[int, Counted] = {}
        self._holds: dict[int, Counter[int]] = {}
        self._unheld: tuple[set[int], set[int]] = (set(), set())  # found in this round, and in the one before
        self._segments: dict[int, Segment] = {}
        self._pool: dict[int, list[int]] = {}  # free segments by size
        self._last_segment = 0
        self._bytes = 0  # of all segments, in use or free
        self._starved: list[Request] = []

    # Holding

    def object(self, number: int) -> Counted:
        """The record of an object. A message that mentions one may arrive before the one that introduces it."""
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
            # Below zero while a drop has overtaken the grant that another process sent before.
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
        """`peer` gave up on results that it may or may not have been made the holder of."""
        for number in numbers:
            record = self._objects.get(number)
            if record is not None and record.segment is not None:
                self._retire_segment(record)
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
        self._starved = [request for request in self._starved if request.peer != peer]
        for segment_number, segment in list(self._segments.items()):
            segment.mapped_by.discard(peer)
            if segment.lessee == peer:  # its objects may be lent to others, who still read them
                self._destroy(segment_number)

    def end_round(self) -> bool:
        """Free what has had no holder for a whole round; whether another round is to follow at once."""
        found, confirmed = self._unheld
        self._unheld = (set(), found)
        for number in confirmed:
            record = self._objects.get(number)
            if record is not None and record.total == 0:
                self._free(number, record)
        self._serve_starved()
        return bool(self._unheld[0] or self._unheld[1])

    def _free(self, number: int, record: Counted) -> None:
        del self._objects[number]
        if record.on_unheld is not None:
            record.on_unheld()
        if record.payload is not None:
            for inner in record.payload.refs:
                self.release(HUB, inner)
        self._retire_segment(record)

    def _retire_segment(self, record: Counted) -> None:
        """The object of this record is gone: use its memory for others, unless somebody may still read it."""
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
        waiting, record.on_payload = record.on_payload, []
        for tell in waiting:
            tell(payload)

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
        """Answer with a segment of at least `nbytes` for object `number`, which `holder` then holds."""
        self._ask(Request(peer, request, nbytes, time.monotonic() + _PATIENCE_S, (number, holder)))

    def lease(self, peer: int, request: int, nbytes: int) -> None:
        """Answer with a segment of at least `nbytes` for objects of the process's own."""
        self._ask(Request(peer, request, nbytes, time.monotonic() + _PATIENCE_S, None))

    def _ask(self, request: Request) -> None:
        self._starved.append(request)
        self._serve_starved()

    def give_back(self, numbers: list[int]) -> None:
        for number in numbers:
            self._segments[number].lessee = None
            self._pool.setdefault(self._segments[number].size, []).append(number)

    def _serve_starved(self) -> None:
        waiting, self._starved = self._starved, []
        for request in waiting:
            if request.result is not None and not self._is_alive(request.result[1]):
                gone = ObjectLostError("the process that asked for this result has died")
                self._send(request.peer, ("reply", request.number, gone))
                continue
            segment = self._take_segment(request.peer, segment_size(request.nbytes))
            if segment is not None:
                self._place(request, segment)
            elif time.monotonic() < request.deadline and request.nbytes <= self._limit:
                self._starved.append(request)
            else:
                used = self._bytes - sum(size * len(free) for size, free in self._pool.items())
                if request.nbytes > self._limit:
                    text = f"an object of {request.nbytes:,} bytes can never fit into a store of {self._limit:,} bytes"
                    error = ObjectStoreFullError(f"{text}; give it more: outplay.init(object_store_bytes=…)")
                    self._send(request.peer, ("reply", request.number, error))
                    continue
                full = (
                    f"{used:,} of its {self._limit:,} bytes are in use"
                    if len(self._segments) < self._most_segments
                    else f"it holds {len(self._segments):,} large objects already, as many as there may be open files"
                )
                error = ObjectStoreFullError(
                    f"an object of {request.nbytes:,} bytes does not fit into the store: {full}. Let go of Refs and "
                    f"arrays that are not needed any more, or give it more: outplay.init(object_store_bytes=…)"
                )
                self._send(request.peer, ("reply", request.number, error))
        if self._starved:
            lessees = {segment.lessee for segment in self._segments.values() if segment.lessee is not None}
            for peer in lessees | set(self._holds):
                self._send(peer, ("trim",))

    @property
    def starved(self) -> bool:
        return bool(self._starved)

    def _take_segment(self, peer: int, size: int) -> int | None:
        free = self._pool.get(size)
        if free:
            # One that the writer has mapped already is warm; the last freed is the most likely to be in a cache.
            number = next((n for n in reversed(free) if peer in self._segments[n].mapped_by), free[-1])
            free.remove(number)
            return number
        while self._bytes + size > self._limit and self._shrink():
            pass
        while len(self._segments) >= self._most_segments and self._shrink():
            pass
        if self._bytes + size > self._limit or len(self._segments) >= self._most_segments:
            return None
        self._last_segment += 1
        self._segments[self._last_segment] = Segment(_anonymous_memory(size), size)
        self._bytes += size
        return self._last_segment

    def _shrink(self) -> bool:
        """Give the largest free segment back to the system; False if there is none."""
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
            self._send(peer, ("gone", [number]))

    def _place(self, request: Request, number: int) -> None:
        if request.result is None:
            self._segments[number].lessee = request.peer
        else:
            result, holder = request.result
            record = self.object(result)
            self.hold(holder, result)
            record.segment = number
        self._send_segment(request.peer, request.number, number)

    def refuse(self, number: int, holder: int | None, segment: int) -> None:
        """The writer found that there is no memory behind the segment it was given for object `number`."""
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


def most_segments() -> int:
    """How many segments every process can have open, at three descriptors each, and some left for other things."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, (soft - 256) // 3)


def _anonymous_memory(size: int) -> int:
    """Memory that other processes can map once they have its descriptor; it has no name that could outlive them."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("outplay", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="outplay-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd

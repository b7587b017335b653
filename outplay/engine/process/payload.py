"""How an object looks while it travels: small ones whole, large ones as a place in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Below this an object travels inside the message: a copy through a socket is cheaper than a segment.
INLINE_BYTES = 64 * 1024
PAGE = 4096
ID_BITS = 40  # of an object's number; the bits above are the index of the process that owns it


class Place(NamedTuple):
    """Where an object lies: a segment, and the lengths of the pickle stream and of each buffer in it."""

    object: int
    segment: int
    segment_size: int
    lengths: tuple[int, ...]
    writable: tuple[int, ...]  # which buffers belong to tensors


class Payload(NamedTuple):
    """An object on the wire. `refs` are the objects and actors whose Refs and handles are inside it."""

    data: bytes
    buffers: tuple[bytes, ...]
    refs: tuple[int, ...]
    writable: tuple[int, ...] = ()
    place: Place | None = None
    failed: bool = False  # the object is an exception that get() raises

    @property
    def mentions(self) -> tuple[int, ...]:
        """All that a process which keeps this payload must hold."""
        return self.refs if self.place is None else (*self.refs, self.place.object)


# (where in the call, the object's id, its payload if the sender knew it)
Slot = tuple[int | str, int, Payload | None]


class CallSpec(NamedTuple):
    """A call as it travels. Its id is the id of its first result."""

    name: str
    target: str  # a function's or class's export, or a method's name
    payload: Payload
    slots: tuple[Slot, ...]
    granted: tuple[int, ...]  # what the receiver holds from the moment it receives this
    lent: tuple[int, ...]  # what it may read until it answers, because the caller holds it that long
    results: tuple[int, ...]
    caller: int
    definitions: str | None

    @property
    def id(self) -> int:
        return self.results[0]

    # Plain tuples are pickled ten times faster than named ones, and a call is sent often.

    def to_wire(self) -> tuple[object, ...]:
        return (self.name, self.target, tuple(self.payload), *self[3:])

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> CallSpec:
        return cls(fields[0], fields[1], Payload._make(fields[2]), *fields[3:])


class WorkSpec(NamedTuple):
    """A task, or the creation of an actor: the call, and what it needs to run."""

    call: CallSpec
    cpus: float
    gpus: float
    reservation: int | None
    again: int  # how often it may be retried or restarted; -1: without limit
    retry_on: bytes = b""  # of a task: the exceptions after which it is retried, packed
    max_concurrency: int = 1  # of an actor

    def to_wire(self) -> tuple[object, ...]:
        return (self.call.to_wire(), *self[1:])

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> WorkSpec:
        return cls(CallSpec.from_wire(fields[0]), *fields[1:])


def segment_size(nbytes: int) -> int:
    """`nbytes` rounded up to one of four sizes per power of two, so that freed segments fit new objects."""
    pages = max(1, -(-nbytes // PAGE))
    step = max(1, 1 << max(0, pages.bit_length() - 3))
    return -(-pages // step) * step * PAGE

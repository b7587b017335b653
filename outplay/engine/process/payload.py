"""Objects and calls as they are sent. Small objects are sent whole, large ones as a location in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Objects up to this size are sent inside the message: a copy through a socket is cheaper than a segment.
INLINE_BYTES = 64 * 1024
PAGE = 4096
ID_BITS = 40  # the lower bits of an object's number; the higher bits are the index of the process that owns it


class Place(NamedTuple):
    """The location of an object: a segment, and the lengths of the pickle stream and of each buffer in it."""

    object: int
    segment: int
    segment_size: int
    lengths: tuple[int, ...]
    writable: tuple[int, ...]  # the buffers of tensors


class Payload(NamedTuple):
    """An object as it is sent. `refs` are the objects and actors whose Refs and handles are inside it."""

    data: bytes
    buffers: tuple[bytes, ...]
    refs: tuple[int, ...]
    writable: tuple[int, ...] = ()
    place: Place | None = None
    failed: bool = False  # the object is an exception that get() raises

    @property
    def mentions(self) -> tuple[int, ...]:
        """All objects that a process must hold while it keeps this payload."""
        return self.refs if self.place is None else (*self.refs, self.place.object)


# An argument that is a Ref: (position or name, the object's id, its payload if the sender knew it)
RefArgument = tuple[int | str, int, Payload | None]


class CallSpec(NamedTuple):
    """A call as it is sent. Its id is the id of its first result."""

    name: str
    target: str  # a function's or class's export, or a method's name
    payload: Payload
    ref_arguments: tuple[RefArgument, ...]
    granted: tuple[int, ...]  # objects that the receiver holds from the moment it receives this call
    lent: tuple[int, ...]  # objects that it may read until it replies: the caller holds them until then
    results: tuple[int, ...]
    caller: int
    definitions: str | None

    @property
    def id(self) -> int:
        return self.results[0]

    # Plain tuples are pickled ten times faster than named tuples, and calls are sent often.

    def to_wire(self) -> tuple[object, ...]:
        return (self.name, self.target, tuple(self.payload), *self[3:])

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> CallSpec:
        return cls(fields[0], fields[1], Payload._make(fields[2]), *fields[3:])


class WorkSpec(NamedTuple):
    """A task, or the creation of an actor: the call, its resources and its retries."""

    call: CallSpec
    cpus: float
    gpus: float
    reservation: int | None
    retries: int  # of a task, or restarts of an actor; -1: no limit
    retry_on: bytes = b""  # of a task: the pickled exception types after which it is retried
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

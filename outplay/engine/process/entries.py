"""The objects and actors that this process knows: its Entries.

Refs, handles and views refer to an Entry. Python counts these references. When an Entry is deleted, the hub is told.

Two rules keep objects alive across processes:

- Lent: the arguments of a call are held by the caller until the reply arrives. The reply lists the arguments that the
  callee still uses.
- Granted: all other objects that a message mentions. Before the message is sent, the hub is told that the receiver
  holds them.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from outplay.engine import serialize
from outplay.engine.base import Ref
from outplay.engine.process.payload import ID_BITS, INLINE_BYTES, Payload, Place
from outplay.engine.process.post import Post
from outplay.engine.process.store import Store
from outplay.engine.process.wire import HUB


class Entry:
    """An object or actor that this process knows."""

    __slots__ = ("__weakref__", "awaited", "contained", "holds", "id", "link", "payload", "segment", "shared", "table")

    def __init__(self, table: Entries, number: int) -> None:
        self.table = table
        self.id = number
        self.payload: Payload | None = None  # None: it does not exist yet
        self.holds = 0  # this process's reference count at the hub
        self.shared = False  # the hub knows the object, and is told its payload
        self.awaited = False  # the payload will arrive: as the result of a call, or because the hub was asked
        self.segment: tuple[int, int] | None = None  # (segment, size), while only this process knows the object
        self.contained: list[Entry] = []  # the objects whose Refs and handles are inside the payload
        self.link: Any = None  # of an actor: its ActorLink

    @property
    def failed(self) -> bool:
        return self.payload is not None and self.payload.failed

    def __del__(self) -> None:
        # A finalizer runs in any thread, with any lock held. So it only records the deletion.
        if self.holds:
            self.table.dropped.append((self.id, self.holds))
            if self.table.post.helper_leads:
                self.table.post.wake()
        elif self.segment is not None:
            self.table.recycled.append(self.segment)


class ProcessRef(Ref):
    __slots__ = ("_entry",)

    def __init__(self, entry: Entry, known_type: Any) -> None:
        self._entry = entry
        self._type = known_type

    @property
    def id(self) -> int:
        return self._entry.id

    def __reduce__(self) -> Any:
        serialize.carry(self._entry)
        return _rebuild_ref, (self._entry.id, self._type)


class ActorToken:
    """Refers to the entry of an actor. Part of every handle; the actor ends when no process holds it."""

    __slots__ = ("entry", "name")

    def __init__(self, entry: Entry, name: str) -> None:
        self.entry = entry
        self.name = name

    def __reduce__(self) -> Any:
        serialize.carry(self.entry)
        return _rebuild_token, (self.entry.id, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorToken) and self.entry.id == other.entry.id

    def __hash__(self) -> int:
        return hash(self.entry.id)


def _rebuild_ref(number: int, known_type: Any) -> ProcessRef:
    return ProcessRef(_table().entry(number), known_type)


def _rebuild_token(number: int, name: str) -> ActorToken:
    return ActorToken(_table().entry(number), name)


def _table() -> Entries:
    from outplay.engine import api

    entries = getattr(api.engine(), "entries", None)
    assert isinstance(entries, Entries)
    return entries


class Entries:
    """The table of all entries. Tells the hub which objects this process shares, holds and releases."""

    def __init__(self, post: Post, store: Store) -> None:
        self.post = post
        self.store = store
        self.dropped: deque[tuple[int, int]] = deque()
        self.recycled: deque[tuple[int, int]] = deque()
        self._ids = itertools.count((post.index << ID_BITS) + 1)
        self._entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self.failures = 0  # the number of errors that have arrived as objects
        self._promised: dict[int, Entry] = {}  # shared before they exist: other processes wait for them

    def is_promised(self) -> bool:
        """Whether this process has promised objects that do not exist yet."""
        return bool(self._promised)

    # Creating

    def new_id(self) -> int:
        return next(self._ids)

    def new(self) -> Entry:
        return self.entry(self.new_id())

    def new_result(self) -> Entry:
        """The entry of the result of a call that is about to be sent."""
        entry = self.new()
        entry.awaited = True
        return entry

    def entry(self, number: int) -> Entry:
        """The entry of an object or actor. It is created if this process has none."""
        with self.post.lock:
            entry = self._entries.get(number)
            if entry is None:
                entry = self._entries[number] = Entry(self, number)
            return entry

    def find(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def own(self, packed: serialize.Packed, is_argument: bool = False) -> Entry:
        """Store an object that this process owns. Others learn of it when its Ref is sent."""
        # Small arguments are sent with the call and need no id.
        entry = Entry(self, 0) if is_argument and packed.nbytes <= INLINE_BYTES else self.new()
        with self.post.uninterrupted:  # Ctrl-C must not lose a segment before its entry refers to it
            entry.payload = self._to_payload(packed, lambda: self.store.write_own(entry.id, packed))
            entry.contained = packed.carried
            if entry.payload.place is not None:
                entry.segment = (entry.payload.place.segment, entry.payload.place.segment_size)
        return entry

    def load(self, entry: Entry) -> Any:
        """The value of an object that exists. Raises it if it is an error."""
        assert entry.payload is not None
        value = self.store.read(entry.payload, entry)
        if entry.payload.failed:
            try:
                raise value
            finally:
                del value  # otherwise a cycle of the exception and this frame holds the object until it is collected
        return value

    def result(self, packed: serialize.Packed, number: int, caller: int) -> Payload:
        """Store the result of a call. If it is written to shared memory, the hub counts it as held by `caller`.

        A process that calls itself is no exception: its reply grants the object like any other reply.
        """
        return self._to_payload(packed, lambda: self.store.write_for(caller, number, packed))

    def _to_payload(self, packed: serialize.Packed, write: Callable[[], Place]) -> Payload:
        """The payload of a packed object. Large objects are written to shared memory."""
        refs = tuple(entry.id for entry in packed.carried)
        if refs:
            with self.post.lock:
                for entry in packed.carried:
                    self.share(entry)
        if packed.nbytes <= INLINE_BYTES:
            buffers = tuple(bytes(buffer) for buffer in packed.buffers)
            return Payload(packed.data, buffers, refs, tuple(packed.writable))
        self.flush_dropped()
        return Payload(b"", (), refs, place=write())

    def error_payload(self, error: BaseException) -> Payload:
        """The payload of an error. It is never written to shared memory, which could fail."""
        packed = serialize.dumps(error, "an exception")
        with self.post.lock:
            for entry in packed.carried:
                self.share(entry)
        refs = tuple(entry.id for entry in packed.carried)
        return Payload(packed.data, tuple(bytes(b) for b in packed.buffers), refs, failed=True)

    # Sharing

    def is_mine(self, number: int) -> bool:
        return number >> ID_BITS == self.post.index

    def want(self, entries: list[Entry]) -> None:
        """Ask the hub for the values of these objects, except those that will arrive anyway.

        This process may own some of them: a Ref was sent away, its entry deleted, and the Ref sent back.
        """
        with self.post.lock:
            for entry in entries:
                if entry.payload is None and not entry.awaited:
                    entry.awaited = True
                    self.post.send(HUB, ("want", entry.id))

    def share(self, entry: Entry) -> None:
        """Tell the hub about an object of this process, so that others can hold it and ask for its value."""
        if entry.shared or not self.is_mine(entry.id):
            return
        entry.shared = True
        is_new = entry.holds == 0
        entry.holds += is_new
        entry.segment = None  # now managed by the hub
        self.post.send(HUB, ("share", entry.id, entry.payload, is_new))
        if entry.payload is None:
            self._promised[entry.id] = entry
            self.post.kick()  # others will wait for it while this process computes

    def adopt(self, granted: tuple[int, ...]) -> list[Entry]:
        """Count the objects that a message granted to this process. They are held while the returned entries exist."""
        entries = [self.entry(number) for number in granted]
        for entry in entries:
            entry.holds += 1
            # The hub knows the payloads of granted objects, except those of results that have not arrived here yet.
            entry.shared = entry.shared or not entry.awaited
        return entries

    def grant(self, mentioned: tuple[int, ...], to: int) -> None:
        """Tell the hub that process `to` holds these objects. To be called before a message to it mentions them."""
        if mentioned:
            self.post.send(HUB, ("grant", mentioned, to))

    def resolve(self, entry: Entry, payload: Payload) -> None:
        """The value of the object has arrived."""
        entry.payload = payload
        entry.contained = [self.entry(number) for number in payload.refs]
        self.failures += payload.failed
        if self._promised.pop(entry.id, None) is not None:
            self.post.send(HUB, ("resolve", entry.id, payload))

    def keep(self, lent: tuple[int, ...]) -> tuple[int, ...]:
        """The lent objects that this process still uses after the call. From now on, the hub counts them."""
        if not lent:
            return ()
        with self.post.lock:
            kept = [entry for number in lent if (entry := self._entries.get(number)) is not None]
            for entry in kept:
                if entry.holds == 0:
                    entry.holds = 1
                    self.post.send(HUB, ("grant", (entry.id,), self.post.index))
            return tuple(entry.id for entry in kept)

    def flush_dropped(self) -> None:
        """Release the objects that finalizers have recorded as deleted."""
        while self.recycled:
            self.store.recycle(*self.recycled.popleft())
        if self.dropped:
            with self.post.lock:
                dropped = []
                while self.dropped:
                    dropped.append(self.dropped.popleft())
                self.post.send(HUB, ("drop", dropped))

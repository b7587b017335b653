"""What this process knows of objects and actors: its Entries.

Refs, handles and views hold on to an Entry, and Python counts them; when the last is gone, the hub is told. Nothing
here counts references by hand.

Two rules keep memory alive across processes. What a call's arguments are is lent: the caller holds it until the
answer is here, and the answer says what the callee keeps. Everything else that a message mentions is granted: before
it goes to another process, the hub is told that this process now holds it too.
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
    """An object or actor as this process knows it."""

    __slots__ = ("__weakref__", "awaited", "contained", "holds", "id", "link", "payload", "segment", "shared", "table")

    def __init__(self, table: Entries, number: int) -> None:
        self.table = table
        self.id = number
        self.payload: Payload | None = None  # None: not there yet
        self.holds = 0  # how many holds of this process the hub knows of
        self.shared = False  # the hub knows the object, and is told its payload when it is there
        self.awaited = False  # its payload is on the way here: as the result of a call, or because the hub was asked
        self.segment: tuple[int, int] | None = None  # where it lies, and its size, while only this process knows it
        self.contained: list[Entry] = []  # what the payload mentions
        self.link: Any = None  # of an actor: the way to it

    @property
    def failed(self) -> bool:
        return self.payload is not None and self.payload.failed

    def __del__(self) -> None:
        # A finalizer runs anywhere, in any thread, under any lock: it only leaves a note.
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
        return _ref_again, (self._entry.id, self._type)


class ActorToken:
    """What a handle holds: the actor's entry. The actor ends when nobody holds it any more."""

    __slots__ = ("entry", "name")

    def __init__(self, entry: Entry, name: str) -> None:
        self.entry = entry
        self.name = name

    def __reduce__(self) -> Any:
        serialize.carry(self.entry)
        return _token_again, (self.entry.id, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorToken) and self.entry.id == other.entry.id

    def __hash__(self) -> int:
        return hash(self.entry.id)


def _ref_again(number: int, known_type: Any) -> ProcessRef:
    return ProcessRef(_table().entry(number), known_type)


def _token_again(number: int, name: str) -> ActorToken:
    return ActorToken(_table().entry(number), name)


def _table() -> Entries:
    from outplay.engine import api

    entries = getattr(api.engine(), "entries", None)
    assert isinstance(entries, Entries)
    return entries


class Entries:
    """The table of all entries, and what this process tells the hub about them."""

    def __init__(self, post: Post, store: Store) -> None:
        self.post = post
        self.store = store
        self.dropped: deque[tuple[int, int]] = deque()
        self.recycled: deque[tuple[int, int]] = deque()
        self._ids = itertools.count((post.index << ID_BITS) + 1)
        self._entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self.failures = 0  # how many errors have arrived as objects
        self._promised: dict[int, Entry] = {}  # shared before they are there: others rely on this process

    def is_promised(self) -> bool:
        """Whether others wait for an object that only this process can give them."""
        return bool(self._promised)

    # Making

    def new_id(self) -> int:
        return next(self._ids)

    def new(self) -> Entry:
        return self.entry(self.new_id())

    def new_result(self) -> Entry:
        """The entry of a result that a call is about to bring."""
        entry = self.new()
        entry.awaited = True
        return entry

    def entry(self, number: int) -> Entry:
        """The entry of an object or actor, made if this process has none."""
        with self.post.lock:
            entry = self._entries.get(number)
            if entry is None:
                entry = self._entries[number] = Entry(self, number)
            return entry

    def find(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def own(self, packed: serialize.Packed, is_argument: bool = False) -> Entry:
        """An object of this process's own. Nobody else knows it until its Ref travels."""
        # Small arguments go with the call: no message will ever ask for them.
        entry = Entry(self, 0) if is_argument and packed.nbytes <= INLINE_BYTES else self.new()
        with self.post.uninterrupted:  # a segment must not be lost between the hub and its entry
            entry.payload = self._to_payload(packed, lambda: self.store.write_own(entry.id, packed))
            entry.contained = packed.carried
            if entry.payload.place is not None:
                entry.segment = (entry.payload.place.segment, entry.payload.place.segment_size)
        return entry

    def load(self, entry: Entry) -> Any:
        """The value of an object that is there; raises it if it is an error."""
        assert entry.payload is not None
        value = self.store.read(entry.payload, entry)
        if entry.payload.failed:
            raise value
        return value

    def result(self, packed: serialize.Packed, number: int, caller: int) -> Payload:
        """The result of a call. If it goes into the store, the hub counts it as held by `caller` from the start.

        That holds for a process that calls itself too: its answer grants the object like any other answer.
        """
        return self._to_payload(packed, lambda: self.store.write_for(caller, number, packed))

    def _to_payload(self, packed: serialize.Packed, write: Callable[[], Place]) -> Payload:
        """Put a packed object into a message or, if it is large, into the store."""
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
        """An error as a payload. It always travels whole, so that it cannot fail to."""
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
        """Ask the hub for those of the objects that are not on the way already.

        They may be this process's own: a Ref that went away, and came back after its entry here was gone.
        """
        with self.post.lock:
            for entry in entries:
                if entry.payload is None and not entry.awaited:
                    entry.awaited = True
                    self.post.send(HUB, ("want", entry.id))

    def share(self, entry: Entry) -> None:
        """Let the hub know the object, so that others can hold it and ask for it."""
        if entry.shared or not self.is_mine(entry.id):
            return
        entry.shared = True
        is_new = entry.holds == 0
        entry.holds += is_new
        entry.segment = None  # the hub's from now on
        self.post.send(HUB, ("share", entry.id, entry.payload, is_new))
        if entry.payload is None:
            self._promised[entry.id] = entry
            self.post.kick()  # somebody will wait for it while this process computes

    def adopt(self, granted: tuple[int, ...]) -> list[Entry]:
        """Take over the holds that came with a message. They last as long as the entries returned."""
        entries = [self.entry(number) for number in granted]
        for entry in entries:
            entry.holds += 1
            # The hub knows what it counts. A result that is on its way is the exception: it does not know its payload.
            entry.shared = entry.shared or not entry.awaited
        return entries

    def grant(self, mentioned: tuple[int, ...], to: int) -> None:
        """Tell the hub that process `to` holds these from now on; a message to it is about to mention them."""
        if mentioned:
            self.post.send(HUB, ("grant", mentioned, to))

    def resolve(self, entry: Entry, payload: Payload) -> None:
        """The object is there."""
        entry.payload = payload
        entry.contained = [self.entry(number) for number in payload.refs]
        self.failures += payload.failed
        if self._promised.pop(entry.id, None) is not None:
            self.post.send(HUB, ("resolve", entry.id, payload))

    def keep(self, lent: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the lent objects that something here still looks at; the hub learns that this process does."""
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
        """Act on the notes that finalizers have left."""
        while self.recycled:
            self.store.recycle(*self.recycled.popleft())
        if self.dropped:
            with self.post.lock:
                notes = []
                while self.dropped:
                    notes.append(self.dropped.popleft())
                self.post.send(HUB, ("drop", notes))

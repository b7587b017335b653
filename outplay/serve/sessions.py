"""Sessions: the recurrent state of clients, by an id that cannot be guessed. Bounded in number; unused ones expire."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from outplay.serve.source import State


class TooManySessionsError(Exception):
    """There is no room for another session."""


@dataclass
class Session:
    """One episode at a time. Requests of a session are answered one after the other: they hold its lock."""

    state: State | None = None  # None: the next observation is the first of an episode
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used: float = field(default_factory=time.monotonic)
    expires: bool = True  # not that of a WebSocket, which ends with its connection


class Sessions:
    def __init__(self, most: int, timeout_s: float) -> None:
        self._most = most
        self.timeout_s = timeout_s
        self._by_id: dict[str, Session] = {}  # in order of their last use

    def __len__(self) -> int:
        return len(self._by_id)

    def create(self, expires: bool = True) -> str:
        """A new session; returns its id. Raises TooManySessionsError."""
        self.expire()
        if len(self._by_id) >= self._most:
            raise TooManySessionsError
        name = secrets.token_urlsafe(16)
        self._by_id[name] = Session(expires=expires)
        return name

    def get(self, name: str) -> Session:
        """The session with this id; counts as a use. Raises KeyError if there is none."""
        self.expire()
        session = self._by_id.pop(name)
        session.used = time.monotonic()
        self._by_id[name] = session
        return session

    def delete(self, name: str) -> None:
        """Raises KeyError if there is none."""
        self.expire()
        del self._by_id[name]

    def expire(self) -> None:
        """Delete sessions that were not used for `timeout_s`. A session with a request under way is in use."""
        limit = time.monotonic() - self.timeout_s
        expired = []
        for name, session in self._by_id.items():
            if session.used >= limit:
                break  # the others were used later
            if session.expires and not session.lock.locked():
                expired.append(name)
        for name in expired:
            del self._by_id[name]

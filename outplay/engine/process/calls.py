"""A process's records of the calls that it has made, and of the one that each of its threads runs."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from outplay.engine.process.entries import ActorToken, Entry
from outplay.engine.process.payload import Payload


@dataclass(eq=False)
class Call:
    """A call that was sent, or waits to be: what must stay alive until its answer is here."""

    name: str
    target: str  # the name of a method, or of an export
    arguments: Entry
    behind: list[tuple[int | str, Entry]]  # the arguments that are Refs, and their places
    results: tuple[int, ...]
    definitions: str | None
    captured: list[Entry]  # by the function, or by the definitions
    actor: ActorToken | None
    parent: int | None  # the call that made it, if it was not the driver


class Running(threading.local):
    """What the engine must know of the call that a thread runs."""

    number: int | None = None
    is_call = False  # or a thread of the user's own: what that waits for says nothing about the slot


@dataclass(eq=False)
class ActorLink:
    """The way to an actor: where it lives now, and the calls that wait to be told."""

    id: int
    name: str
    process: int | None = None
    incarnation: int = 0
    death: Payload | None = None
    contained: list[Entry] = field(default_factory=list)  # what is inside the error that it died of
    queue: deque[Call] = field(default_factory=deque)
    lost: list[int] = field(default_factory=list)  # calls sent to an incarnation that has died

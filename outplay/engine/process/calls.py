"""Records of the calls that a process has made, and of the call that each of its threads runs."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from outplay.engine.process.entries import ActorToken, Entry
from outplay.engine.process.payload import Payload


@dataclass(eq=False)
class Call:
    """A call without a reply yet, queued or sent. It keeps its arguments alive."""

    name: str
    target: str  # the name of a method, or of an export
    arguments: Entry
    ref_arguments: list[tuple[int | str, Entry]]  # positions or names of the arguments that are Refs, and their objects
    results: tuple[int, ...]
    definitions: str | None
    captured: list[Entry]  # by the closure of the function, or by the definitions
    actor: ActorToken | None
    parent: int | None  # the id of the call that made this call; None in the driver


class Running(threading.local):
    """The call that the current thread runs."""

    number: int | None = None
    is_call = False  # False in the user's own threads: they may block without releasing the slot


@dataclass(eq=False)
class ActorLink:
    """The connection to an actor: its process, and the calls that are queued until that is known."""

    id: int
    name: str
    process: int | None = None
    incarnation: int = 0
    death: Payload | None = None
    contained: list[Entry] = field(default_factory=list)  # objects that the error of its death refers to
    queue: deque[Call] = field(default_factory=deque)
    lost: list[int] = field(default_factory=list)  # ids of calls to an incarnation that has died

"""Cancelling calls, in the process that made them.

A task is the hub's to drop, to interrupt or to kill. A call of an actor waits here, or there, where the actor drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outplay.engine.base import force_refused
from outplay.engine.process.calls import Call
from outplay.engine.process.payload import ID_BITS
from outplay.engine.process.wire import HUB
from outplay.errors import TaskCancelledError

if TYPE_CHECKING:
    from outplay.engine.process.engine import ProcessEngine


def cancel(engine: ProcessEngine, number: int, force: bool) -> None:
    """Cancel the call that is to produce object `number`, if it is not done."""
    owner = number >> ID_BITS
    if owner != engine.post.index:
        engine.post.send(owner, ("cancel", number, force))
        return
    with engine.post.uninterrupted, engine.post.lock:
        for call in [call for call in engine.calls_under_way() if number in call.results]:
            if force and call.actor is not None:
                raise force_refused(call.name)
            _cancel(engine, call, force)


def cancel_for_another(engine: ProcessEngine, number: int, force: bool) -> None:
    """Another process has a Ref of this one, and cancels it."""
    for call in [call for call in engine.calls_under_way() if number in call.results]:
        _cancel(engine, call, force)


def cancel_children(engine: ProcessEngine, parent: int) -> None:
    """Cancel what the call with this id has started, and not waited for."""
    for call in [call for call in engine.calls_under_way() if call.parent == parent]:
        _cancel(engine, call, force=False)


def _cancel(engine: ProcessEngine, call: Call, force: bool) -> None:
    if call.actor is None:
        engine.post.send(HUB, ("cancel", call.results[0], force))
        return
    link = call.actor.entry.link
    if call in link.queue:
        link.queue.remove(call)
        engine.fail_unsent(call, TaskCancelledError(f"{call.name} was cancelled before it started"))
    elif link.process is not None:
        engine.post.send(link.process, ("interrupt", call.results[0]))

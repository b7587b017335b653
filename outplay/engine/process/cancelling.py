"""Cancels calls, in the process that made them.

The hub cancels tasks: it removes them from its queue, interrupts them or kills their worker. A call of an actor is
removed from the queue of this process or, if it was sent already, from the queue of the actor.
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
    """Cancel the call that produces object `number`, if it has not finished."""
    owner = number >> ID_BITS
    if owner != engine.post.index:
        engine.post.send(owner, ("cancel", number, force))
        return
    with engine.post.uninterrupted, engine.post.lock:
        for call in [call for call in engine.unfinished_calls() if number in call.results]:
            if force and call.actor is not None:
                raise force_refused(call.name)
            _cancel(engine, call, force)


def cancel_for_another(engine: ProcessEngine, number: int, force: bool) -> None:
    """Cancel a call of this process, because another process that has its Ref asked for it."""
    for call in [call for call in engine.unfinished_calls() if number in call.results]:
        _cancel(engine, call, force)


def cancel_children(engine: ProcessEngine, parent: int) -> None:
    """Cancel the unfinished calls that the call with this id has made."""
    for call in [call for call in engine.unfinished_calls() if call.parent == parent]:
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

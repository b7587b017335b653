"""The hub's records of actors: the process of each, its death, and unanswered requests for its location."""

from __future__ import annotations

from collections.abc import Callable

from outplay.engine.process.counting import Objects, Sender, error_payload
from outplay.engine.process.crew import Actor, Work, Worker
from outplay.engine.process.names import Names
from outplay.engine.process.payload import Payload
from outplay.engine.process.wire import HUB
from outplay.errors import ActorDiedError


class Actors:
    """Answers where actors live, and records their deaths.

    `dequeue` removes work from the backlog if it is queued. `kill` kills the process of a worker.
    """

    def __init__(
        self, objects: Objects, send: Sender, dequeue: Callable[[Work], None], kill: Callable[[Worker], None]
    ) -> None:
        self.records: dict[int, Actor] = {}
        self.names = Names()
        self._objects = objects
        self._send = send
        self._dequeue = dequeue
        self._kill = kill

    def record(self, number: int) -> Actor:
        """The record of an actor. A message that mentions an actor may arrive before the message that creates it."""
        if number not in self.records:
            self.records[number] = Actor(number)
        return self.records[number]

    def locate(self, peer: int, number: int, incarnation: int) -> None:
        """Tell `peer` where the actor lives, as soon as it is dead or in a later incarnation than the given one."""
        actor = self.record(number)
        actor.located_by.append((peer, incarnation))
        self.answer_locates(actor)

    def answer_locates(self, actor: Actor) -> None:
        """Answer the requests that can be answered now. The others stay."""
        requests, actor.located_by = actor.located_by, []
        alive = actor.worker is not None and actor.worker.ready
        for peer, incarnation in requests:
            if actor.death is not None:
                self._objects.grant(actor.death.refs, peer)
                self._send(peer, ("located", actor.id, actor.incarnation, None, actor.death))
            elif alive and actor.incarnation > incarnation:
                assert actor.worker is not None
                self._send(peer, ("located", actor.id, actor.incarnation, actor.worker.index, None))
            else:
                actor.located_by.append((peer, incarnation))

    def kill(self, number: int) -> None:
        actor = self.record(number)
        name = actor.work.name if actor.work else "?"
        self.mark_dead(actor, f"actor {name} was killed")

    def mark_dead(self, actor: Actor, death: Payload | str, kill: bool = True) -> None:
        """The actor is dead and will not be restarted. With `kill`, its process is killed."""
        self.names.free(actor.id)
        if actor.death is None:
            actor.death = error_payload(ActorDiedError(death)) if isinstance(death, str) else death
            if actor.work is not None:
                self._dequeue(actor.work)
            if kill and actor.worker is not None:
                self._kill(actor.worker)
            self.answer_locates(actor)

    def remove(self, actor: Actor) -> None:
        del self.records[actor.id]
        for number in actor.death.refs if actor.death else ():
            self._objects.release(HUB, number)

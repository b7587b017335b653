"""The hub's workers: what waits to run, who runs it, and what follows when somebody dies."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from outplay.engine.process.backlog import Backlog
from outplay.engine.process.counting import Objects, Sender, error_payload
from outplay.engine.process.crew import Actor, Flavour, Work, Worker, hire
from outplay.engine.process.dismissals import Dismissals
from outplay.engine.process.names import Names
from outplay.engine.process.payload import Payload, Slot, WorkSpec
from outplay.engine.process.reaping import describe_exit, kill_group
from outplay.engine.process.wire import DRIVER, HUB, Message
from outplay.engine.slots import Lease, Slots
from outplay.errors import ActorDiedError, OutplayError, TaskCancelledError, WorkerDiedError

_STUCK_S = 10.0
_KEEP_IDLE_S = 1.0  # a worker that is not needed now may be in a moment, and starting one takes long


class Staff:
    """Starts workers, gives them work, and settles what they leave when they die."""

    def __init__(self, slots: Slots, gpus: list[str], objects: Objects, send: Sender, settings: dict[str, Any]) -> None:
        self.slots = slots
        self.workers: dict[int, Worker] = {}
        self._gpus = gpus
        self._objects = objects
        self._send = send
        self._settings = settings
        self._turns = itertools.count()
        self._indices = itertools.count(DRIVER + 1)
        self._backlog = Backlog(slots, self.workers)
        self._idle: dict[Flavour, list[Worker]] = {}
        self._actors: dict[int, Actor] = {}
        self._reservations: deque[tuple[int, int, tuple[tuple[float, float], ...], int]] = deque()
        self._reserved_by: dict[int, int] = {}
        self._verdicts: dict[int, Work] = {}  # tasks whose worker died, and whose caller is asked what to do
        self._ended = False
        self.names = Names()
        self.dismissals = Dismissals(self.workers)

    # Work arrives

    def submit(self, caller: int, spec: WorkSpec) -> None:
        work = Work(spec, caller, next(self._turns), self._depth(caller) + 1, spec.again)
        for number in spec.call.results:
            self._backlog.makers[number] = work
        self._await_arguments(work)

    def create(self, caller: int, spec: WorkSpec) -> None:
        actor = self._actor(spec.call.id)
        work = Work(spec, caller, next(self._turns), self._depth(caller) + 1, spec.again, actor)
        actor.work = work
        record = self._objects.object(actor.id)
        record.on_unheld = lambda: self._end(actor)
        self._objects.hold(caller, actor.id)
        self._await_arguments(work)

    def _depth(self, index: int) -> int:
        worker = self.workers.get(index)
        return 0 if worker is None or worker.work is None else worker.work.depth

    def _await_arguments(self, work: Work) -> None:
        """Queue the work once every object that is one of its arguments is there."""
        for position, (_, number, payload) in enumerate(work.spec.call.slots):
            if payload is None:
                record = self._objects.object(number)
                if record.payload is not None:
                    self._fill(work, position, record.payload)
                else:
                    work.missing += 1
                    record.on_payload.append(self._filler(work, position))
        if work.missing == 0:
            self._enqueue(work)

    def _filler(self, work: Work, position: int) -> Callable[[Payload], None]:
        def fill(payload: Payload) -> None:
            self._fill(work, position, payload)
            work.missing -= 1
            if work.missing == 0:
                self._enqueue(work)
                self.schedule()

        return fill

    def _fill(self, work: Work, position: int, payload: Payload) -> None:
        call = work.spec.call
        slots: list[Slot] = list(call.slots)
        slots[position] = (slots[position][0], slots[position][1], payload)
        # The object itself is granted to the hub already; what is inside it must be too.
        self._objects.grant(payload.refs, HUB)
        call = call._replace(slots=tuple(slots), granted=(*call.granted, *payload.refs))
        work.spec = work.spec._replace(call=call)

    def _enqueue(self, work: Work) -> None:
        given_up = work.cancelled or (work.actor is not None and work.actor.death is not None)
        if given_up or not self._lives(work.caller):
            self._let_go(work)  # while it waited for its arguments
            return
        self._backlog.add(work)

    # Work is given out

    def schedule(self) -> None:
        """Start whatever there is room for, the oldest first."""
        if self._ended:
            return
        self._grant_reservations()
        held_back = self._reservations[0][3] if self._reservations and self._is_attainable() else None
        for work, lease in self._backlog.startable(held_back):
            if lease is None:
                self._fail_work(work, "its reservation was released before it could start")
            else:
                self._start(work, lease)

    def due_in(self) -> float | None:
        """In how many seconds `schedule` should be called, if nothing happens before."""
        return self._backlog.due_in()

    def warn_if_stuck(self) -> None:
        """Say, once, when work waits and everything it waits for is held by actors, or reserved."""
        busy = any(w.work and not w.work.actor and w.lease and w.lease.cpus for w in self.workers.values())
        for work in self._backlog.heads():
            if not busy and not work.warned and time.monotonic() - work.since > _STUCK_S:
                work.warned = True
                holders = sorted({w.work.name for w in self.workers.values() if w.work and w.lease and w.lease.cpus})
                reserved = sum(len(pools) for pools in self.slots.reservations.values())
                print(
                    f"outplay: {work.name} has waited {_STUCK_S:g} s for num_cpus={work.spec.cpus:g}, "
                    f"num_gpus={work.spec.gpus:g}; they are held by actors ({', '.join(holders) or 'none'}) and "
                    f"reservations ({reserved})",
                    file=sys.stderr,
                    flush=True,
                )

    def _start(self, work: Work, lease: Lease) -> None:
        flavour: Flavour = (max(1, int(work.spec.cpus)), tuple(sorted(lease.gpus)))
        # An actor has a process of its own from the start: a worker that ran tasks may still owe others what they
        # started, and would take it along when the actor ends.
        idle = self._idle.get(flavour) if work.actor is None else None
        try:
            worker = idle.pop() if idle else self._hire(flavour)
        except OSError as error:
            self.slots.give(lease)
            self._fail_work(work, f"no process could be started for it ({error})")
            return
        worker.work, worker.lease = work, lease
        self._objects.grant(work.spec.call.granted, worker.index)
        if work.actor is None:
            self._tell(worker, ("run", *work.spec._replace(again=work.again).to_wire()))
            return
        work.actor.worker = worker
        work.actor.incarnation += 1
        self._tell(worker, ("make", *work.spec.to_wire()))
        self._answer_asked(work.actor)

    def _tell(self, worker: Worker, message: Message) -> None:
        if worker.ready:
            self._send(worker.index, message)
        else:
            worker.outbox.append(message)

    def _hire(self, flavour: Flavour) -> Worker:
        index = next(self._indices)
        worker = self.workers[index] = hire(index, flavour, self._gpus, self._settings)
        return worker

    def ready(self, index: int) -> None:
        worker = self.workers[index]
        worker.ready = True
        outbox, worker.outbox = worker.outbox, []
        for message in outbox:
            self._send(index, message)
        actor = worker.work.actor if worker.work else None
        if actor is not None:
            self._answer_asked(actor)

    # Work ends

    def done(self, index: int, kept: tuple[int, ...] | None) -> None:
        """A worker has run its task. Unless `kept` is None it is to be repeated, and that much of it is still used."""
        worker = self.workers[index]
        if worker.killed_because is not None:
            if kept is None:
                self._let_go_of(worker)  # its last words; the rest follows when it has ended
            return
        if kept is not None:
            work, worker.work = worker.work, None  # what it mentions stays held
            assert work is not None
            self._ask_for_verdict(work, HUB, WorkerDiedError(f"{work.name} failed"), kept)
        if worker.flavour[1] and index not in self._needed():
            # What it holds of a GPU's memory is free when it has ended, and its lease not before.
            self._let_go_of(worker)
            self._send(index, ("retire",))
            return
        self._rest(worker)

    def stay(self, index: int) -> None:
        """A worker that was to retire still owes somebody something."""
        worker = self.workers[index]
        if worker.killed_because is None:
            self._rest(worker)

    def _rest(self, worker: Worker) -> None:
        self._take_back(worker)
        worker.idle_since = time.monotonic()
        self._idle.setdefault(worker.flavour, []).append(worker)
        self.schedule()

    def _take_back(self, worker: Worker) -> None:
        self._let_go_of(worker)
        if worker.lease is not None:
            self.slots.give(worker.lease)
            worker.lease = None

    def _let_go_of(self, worker: Worker) -> None:
        work, worker.work = worker.work, None
        if work is not None and work.actor is None:
            self._let_go(work)

    def _let_go(self, work: Work) -> None:
        for number in work.spec.call.results:
            self._backlog.makers.pop(number, None)
        for number in work.spec.call.granted:
            self._objects.release(HUB, number)

    def retire_surplus(self) -> None:
        """Tasks that waited made room for others, and those for more workers than there are slots."""
        idle = [worker for workers in self._idle.values() for worker in workers]
        needed, before = self._needed(), time.monotonic() - _KEEP_IDLE_S
        surplus = [worker for worker in idle if worker.index not in needed and worker.idle_since < before]
        for worker in surplus[: max(0, len(idle) - max(1, int(self.slots.machine.cpus)))]:
            self._idle[worker.flavour].remove(worker)
            self._send(worker.index, ("retire",))

    def _needed(self) -> set[int]:
        """The processes whose end would end others, or free what they reserved."""
        return {actor.work.caller for actor in self._actors.values() if actor.work} | set(self._reserved_by.values())

    def blocked(self, index: int, waits_for: tuple[int, ...]) -> None:
        """A worker waits: for these objects, or for something else."""
        worker = self.workers.get(index)
        if worker is not None and worker.lease is not None:
            worker.waits_for = waits_for
            self.slots.pause(worker.lease)
            self._backlog.deepen(waits_for, self._depth(index) + 1)
            self.schedule()

    def unblocked(self, index: int) -> None:
        worker = self.workers.get(index)
        if worker is not None and worker.lease is not None:
            worker.waits_for = ()
            self.slots.resume(worker.lease)
            self.schedule()

    def process_gone(self, index: int, exit_code: int | None) -> None:
        """A process has died, or ended: settle everything that hung on it."""
        worker = self.workers.pop(index, None)
        if worker is not None:
            for idle in self._idle.values():
                if worker in idle:
                    idle.remove(worker)
            work = worker.work
            if work is not None and work.actor is None and self._lives(work.caller):
                worker.work = None  # what it mentions stays held
                tried = f" ({work.died + 1} times)" if work.died else ""
                why = worker.killed_because or f"the process that ran it {describe_exit(exit_code)}{tried}"
                work.died += 1
                self._ask_for_verdict(work, index, WorkerDiedError(f"{work.name} failed: {why}"))
            self._take_back(worker)
            if work is not None and work.actor is not None:
                self._actor_gone(work.actor, exit_code)
        self._end_children(index)
        self._reservations = deque(item for item in self._reservations if item[0] != index)
        for reservation in [r for r, owner in self._reserved_by.items() if owner == index]:
            self.release(reservation)
        self.schedule()

    def _lives(self, index: int) -> bool:
        return index == DRIVER or index in self.workers

    def _ask_for_verdict(self, work: Work, worker: int, error: OutplayError, kept: tuple[int, ...] = ()) -> None:
        """A task's worker died. Its answer may have left before: the caller knows, and says whether to repeat it."""
        number, payload = work.spec.call.id, error_payload(_cancelled(work) if work.cancelled else error)
        self._verdicts[number] = work
        self._send(work.caller, ("died", number, worker, payload, work.again != 0, (), kept))

    def verdict(self, number: int, again: bool) -> None:
        work = self._verdicts.pop(number, None)
        if work is None:
            return
        if again and work.cancelled:  # meanwhile
            self._fail_work(work, _cancelled(work))
        elif again:
            work.again -= work.again > 0
            self._backlog.add(work, first=True)
            self.schedule()
        else:
            self._let_go(work)

    def cancel(self, number: int, force: bool) -> None:
        """A task is not wanted any more."""
        work = self._backlog.makers.get(number)
        if work is None or (work.cancelled and not force):
            return
        work.cancelled, work.again = True, 0
        worker = next((worker for worker in self.workers.values() if worker.work is work), None)
        if worker is not None and force:
            self._kill(worker, "it was cancelled")
        elif worker is not None:
            self._tell(worker, ("interrupt", number))
        elif self._backlog.remove(work):
            self._fail_work(work, _cancelled(work))
        elif work.missing:  # let go when its arguments are there
            self._tell_failed(work, _cancelled(work))

    def undelivered(
        self, index: int, caller: int, number: int, error: Payload, granted: tuple[int, ...], kept: tuple[int, ...]
    ) -> None:
        """A worker could not reach the caller it had an answer for; the error goes there through the hub."""
        self._send(caller, ("died", number, index, error, False, granted, kept))

    def _fail_work(self, work: Work, why: str | OutplayError) -> None:
        """Give up on work that does not run."""
        if work.actor is not None:
            self._bury(work.actor, f"actor {work.name} died: {why}")
        else:
            self._tell_failed(work, WorkerDiedError(f"{work.name} failed: {why}") if isinstance(why, str) else why)
        self._let_go(work)

    def _tell_failed(self, work: Work, error: OutplayError) -> None:
        self._send(work.caller, ("died", work.spec.call.id, HUB, error_payload(error), False))

    def _end_children(self, index: int) -> None:
        """What a process started ends with it: its actors, its tasks."""
        for work in self._backlog.remove_all_of(index):
            self._let_go(work)
        for number in [number for number, work in self._verdicts.items() if work.caller == index]:
            self._let_go(self._verdicts.pop(number))
        for worker in self.workers.values():
            if worker.work is not None and worker.work.caller == index and worker.work.actor is None:
                self._kill(worker, "the process that started it is gone")
        for actor in self._actors.values():
            if actor.work is not None and actor.work.caller == index:
                self._bury(actor, f"actor {actor.work.name} died: the process that started it is gone", kill=False)
                if actor.worker is not None:
                    self._dismiss(actor.worker)
        self.names.free_all_of(index)

    # Workers end

    def end(self) -> None:
        """Ask all workers to end. Nothing is started any more."""
        self._ended = True
        for worker in self.workers.values():
            self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        """Ask a worker to end; it is killed if it does not."""
        if self.dismissals.add(worker):
            self._tell(worker, ("exit",))

    # Actors

    def _actor(self, number: int) -> Actor:
        if number not in self._actors:
            self._actors[number] = Actor(number)
        return self._actors[number]

    def locate(self, peer: int, number: int, over: int) -> None:
        """Tell `peer` where the actor lives, as soon as it lives in a later incarnation than `over`, or is dead."""
        actor = self._actor(number)
        actor.asked.append((peer, over))
        self._answer_asked(actor)

    def _answer_asked(self, actor: Actor) -> None:
        asked, actor.asked = actor.asked, []
        alive = actor.worker is not None and actor.worker.ready
        for peer, over in asked:
            if actor.death is not None:
                self._objects.grant(actor.death.refs, peer)
                self._send(peer, ("located", actor.id, actor.incarnation, None, actor.death))
            elif alive and actor.incarnation > over:
                assert actor.worker is not None
                self._send(peer, ("located", actor.id, actor.incarnation, actor.worker.index, None))
            else:
                actor.asked.append((peer, over))

    def ended(self, index: int, death: Payload) -> None:
        """The actor's constructor raised, or a method of it has called sys.exit(): it will not be started again."""
        work = self.workers[index].work
        assert work is not None
        assert work.actor is not None
        if work.actor.death is None:  # else it was killed meanwhile
            self._objects.grant(death.refs, HUB)
            self._bury(work.actor, death, kill=False)

    def kill(self, number: int) -> None:
        actor = self._actor(number)
        name = actor.work.name if actor.work else "?"
        self._bury(actor, f"actor {name} was killed")

    def _bury(self, actor: Actor, death: Payload | str, kill: bool = True) -> None:
        """The actor is dead for good, whatever its process still does."""
        self.names.free(actor.id)
        if actor.death is None:
            actor.death = error_payload(ActorDiedError(death)) if isinstance(death, str) else death
            self._unqueue(actor)
            if kill and actor.worker is not None:
                kill_group(actor.worker.process.pid)
            self._answer_asked(actor)

    def _unqueue(self, actor: Actor) -> None:
        if actor.work is not None and self._backlog.remove(actor.work):
            self._let_go(actor.work)

    def _actor_gone(self, actor: Actor, exit_code: int | None) -> None:
        assert actor.work is not None
        work = actor.work
        actor.worker = None
        if actor.death is None and not actor.ending and work.again != 0 and self._lives(work.caller):
            work.again -= work.again > 0
            self._enqueue(work)
            return
        self._bury(actor, f"actor {work.name} died: its process {describe_exit(exit_code)}")
        self._let_go(work)
        if actor.ending:
            self._forget(actor)

    def _end(self, actor: Actor) -> None:
        """Nobody holds the actor any more. All calls to it are answered, or their callers are gone."""
        actor.ending = True
        self.names.free(actor.id)
        if actor.worker is not None:
            self._tell(actor.worker, ("exit",))
        else:
            self._bury(actor, f"actor {actor.work.name if actor.work else '?'} has ended")
            self._forget(actor)

    def _forget(self, actor: Actor) -> None:
        del self._actors[actor.id]
        for number in actor.death.refs if actor.death else ():
            self._objects.release(HUB, number)

    # Reservations

    def reserve(self, peer: int, number: int, bundles: tuple[tuple[float, float], ...]) -> None:
        self.slots.check_bundles(bundles)
        self._reservations.append((peer, number, bundles, next(self._turns)))
        self.schedule()

    def _grant_reservations(self) -> None:
        while self._reservations:
            peer, number, bundles, _ = self._reservations[0]
            if not self.slots.reserve(number, bundles):
                return
            self._reservations.popleft()
            self._reserved_by[number] = peer
            self._send(peer, ("reserved", number))

    def _is_attainable(self) -> bool:
        """Whether the oldest reservation that waits will be met once the tasks that run now have ended."""
        taken = sum(w.lease.cpus for w in self.workers.values() if w.lease and w.work and w.work.actor)
        taken += sum(pool.cpus for pools in self.slots.reservations.values() for pool in pools)
        return sum(cpus for cpus, _ in self._reservations[0][2]) <= self.slots.machine.cpus - taken

    def release(self, number: int) -> None:
        self._reservations = deque(item for item in self._reservations if item[1] != number)
        self._reserved_by.pop(number, None)
        self.slots.release(number)
        for worker in list(self.workers.values()):
            work = worker.work
            if work is not None and work.spec.reservation == number:
                if work.actor is not None:
                    self._bury(work.actor, f"actor {work.name} died: its reservation was released")
                self._kill(worker, "its reservation was released")
        self.schedule()

    @staticmethod
    def _kill(worker: Worker, why: str) -> None:
        worker.killed_because = why
        if worker.work is not None:
            worker.work.again = 0
        kill_group(worker.process.pid)


def _cancelled(work: Work) -> TaskCancelledError:
    return TaskCancelledError(f"{work.name} was cancelled")

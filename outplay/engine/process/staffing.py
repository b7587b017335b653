"""The hub's scheduler: starts workers, gives them work, and handles their crashes, retries and cancellations."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from outplay.engine.process.actors import Actors
from outplay.engine.process.backlog import Backlog
from outplay.engine.process.counting import Objects, Sender, error_payload
from outplay.engine.process.crew import Actor, Flavour, Work, Worker, start_worker
from outplay.engine.process.dismissals import Dismissals
from outplay.engine.process.payload import Payload, RefArgument, WorkSpec
from outplay.engine.process.reaping import describe_exit, kill_group
from outplay.engine.process.reservations import Bundles, QueuedReservation, Reservations
from outplay.engine.process.wire import DRIVER, HUB, Message
from outplay.engine.slots import Lease, Slots
from outplay.errors import OutplayError, TaskCancelledError, WorkerDiedError

_STUCK_S = 10.0  # after which work that cannot start is reported
_KEEP_IDLE_S = 1.0  # starting a worker takes long, and an idle one may be needed again soon


class Staff:
    """Starts workers, gives them work, and cleans up after those that died."""

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
        self._undecided: dict[int, Work] = {}  # failed tasks; their callers were asked whether to retry
        self._ended = False
        self.actors = Actors(objects, send, self._dequeue, self._kill_process)
        self.reservations = Reservations(slots, send)
        self.dismissals = Dismissals(self.workers)

    # Submission

    def submit(self, caller: int, spec: WorkSpec) -> None:
        work = self._new_work(caller, spec)
        for number in spec.call.results:
            self._backlog.makers[number] = work
        self._await_arguments(work)

    def create(self, caller: int, spec: WorkSpec) -> None:
        actor = self.actors.record(spec.call.id)
        work = self._new_work(caller, spec, actor)
        actor.work = work
        record = self._objects.object(actor.id)
        record.on_unheld = lambda: self._end_actor(actor)
        self._objects.hold(caller, actor.id)
        self._await_arguments(work)

    def _new_work(self, caller: int, spec: WorkSpec, actor: Actor | None = None) -> Work:
        worker = self.workers.get(caller)
        parent = None if worker is None else worker.work
        home = None if parent is None else parent.home if parent.spec.reservation is None else parent.spec.reservation
        return Work(spec, caller, next(self._turns), self._depth(caller) + 1, spec.retries, actor, home)

    def _depth(self, index: int) -> int:
        worker = self.workers.get(index)
        return 0 if worker is None or worker.work is None else worker.work.depth

    def _await_arguments(self, work: Work) -> None:
        """Queue the work as soon as all its arguments exist."""
        for position, (_, number, payload) in enumerate(work.spec.call.ref_arguments):
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
        arguments: list[RefArgument] = list(call.ref_arguments)
        arguments[position] = (arguments[position][0], arguments[position][1], payload)
        # The hub holds the object already. It must also hold the objects whose Refs are inside it.
        self._objects.grant(payload.refs, HUB)
        call = call._replace(ref_arguments=tuple(arguments), granted=(*call.granted, *payload.refs))
        work.spec = work.spec._replace(call=call)

    def _enqueue(self, work: Work) -> None:
        is_discarded = work.cancelled or (work.actor is not None and work.actor.death is not None)
        if is_discarded or not self._is_alive(work.caller):  # this happened while it waited for its arguments
            self._release_work(work)
            return
        self._backlog.add(work)

    # Scheduling

    def schedule(self) -> None:
        """Start all work for which there are free slots, the oldest first."""
        if self._ended:
            return
        self.reservations.grant()
        for work, lease in self._backlog.startable(self.reservations.blocking_turn(self.workers.values())):
            if lease is None:
                self._fail_work(work, "its reservation was released before it could start")
            else:
                self._start(work, lease)

    def due_in(self) -> float | None:
        """Seconds until `schedule` must be called, if no message arrives before."""
        return self._backlog.due_in()

    def warn_if_stuck(self) -> None:
        """Print a warning, once per piece of work, if actors and reservations hold all the resources it waits for."""
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
        # An actor always gets a new process. A process that ran tasks may own objects and calls that others still
        # need, and they would be lost when the actor ends.
        idle = self._idle.get(flavour) if work.actor is None else None
        try:
            worker = idle.pop() if idle else self._start_worker(flavour)
        except OSError as error:
            self.slots.give(lease)
            self._fail_work(work, f"no process could be started for it ({error})")
            return
        worker.work, worker.lease = work, lease
        self._objects.grant(work.spec.call.granted, worker.index)
        if work.actor is None:
            self._send_to(worker, ("run", *work.spec._replace(retries=work.retries_left).to_wire()))
            return
        work.actor.worker = worker
        work.actor.incarnation += 1
        self._send_to(worker, ("construct", *work.spec.to_wire()))
        self.actors.answer_locates(work.actor)

    def _send_to(self, worker: Worker, message: Message) -> None:
        if worker.ready:
            self._send(worker.index, message)
        else:
            worker.outbox.append(message)

    def _start_worker(self, flavour: Flavour) -> Worker:
        index = next(self._indices)
        worker = self.workers[index] = start_worker(index, flavour, self._gpus, self._settings)
        return worker

    def ready(self, index: int) -> None:
        worker = self.workers[index]
        worker.ready = True
        outbox, worker.outbox = worker.outbox, []
        for message in outbox:
            self._send(index, message)
        actor = worker.work.actor if worker.work else None
        if actor is not None:
            self.actors.answer_locates(actor)

    # The end of work

    def done(self, index: int, kept: tuple[int, ...] | None) -> None:
        """A worker has run its task. `kept` is None or, if the task may be retried, the arguments still in use."""
        worker = self.workers[index]
        if worker.killed_because is not None:
            if kept is None:
                self._clear_work(worker)  # the rest follows when its process has ended
            return
        if kept is not None:
            work, worker.work = worker.work, None  # without releasing its arguments: the retry needs them
            assert work is not None
            self._ask_for_retry(work, HUB, WorkerDiedError(f"{work.name} failed"), kept)
        if worker.flavour[1] and index not in self._needed():
            # Its GPU memory is freed only when the process ends. So the lease is kept until then.
            self._clear_work(worker)
            self._send(index, ("retire",))
            return
        self._make_idle(worker)

    def busy(self, index: int) -> None:
        """A worker that was told to retire cannot: other processes still need objects of it."""
        worker = self.workers[index]
        if worker.killed_because is None:
            self._make_idle(worker)

    def _make_idle(self, worker: Worker) -> None:
        self._release_worker(worker)
        worker.idle_since = time.monotonic()
        self._idle.setdefault(worker.flavour, []).append(worker)
        self.schedule()

    def _release_worker(self, worker: Worker) -> None:
        self._clear_work(worker)
        if worker.lease is not None:
            self.slots.give(worker.lease)
            worker.lease = None

    def _clear_work(self, worker: Worker) -> None:
        work, worker.work = worker.work, None
        if work is not None and work.actor is None:
            self._release_work(work)

    def _release_work(self, work: Work) -> None:
        """The work has ended: release the objects that the hub held for it."""
        for number in work.spec.call.results:
            self._backlog.makers.pop(number, None)
        for number in work.spec.call.granted:
            self._objects.release(HUB, number)

    def retire_surplus(self) -> None:
        """End idle workers beyond the number of slots. They were started while other tasks waited."""
        idle = [worker for workers in self._idle.values() for worker in workers]
        needed, before = self._needed(), time.monotonic() - _KEEP_IDLE_S
        surplus = [worker for worker in idle if worker.index not in needed and worker.idle_since < before]
        for worker in surplus[: max(0, len(idle) - max(1, int(self.slots.machine.cpus)))]:
            self._idle[worker.flavour].remove(worker)
            self._send(worker.index, ("retire",))

    def _needed(self) -> set[int]:
        """The processes that own actors or reservations, which would end with them."""
        actors = self.actors.records.values()
        return {actor.work.caller for actor in actors if actor.work} | set(self.reservations.owners.values())

    def blocked(self, index: int, waits_for: tuple[int, ...]) -> None:
        """A worker waits, for these objects or for something else: its slot can be used meanwhile."""
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
        """A process has exited or crashed: clean up everything that depended on it."""
        worker = self.workers.pop(index, None)
        if worker is not None:
            for idle in self._idle.values():
                if worker in idle:
                    idle.remove(worker)
            work = worker.work
            if work is not None and work.actor is None and self._is_alive(work.caller):
                worker.work = None  # without releasing its arguments: a retry needs them
                attempts = f" ({work.crashes + 1} times)" if work.crashes else ""
                why = worker.killed_because or f"the process that ran it {describe_exit(exit_code)}{attempts}"
                work.crashes += 1
                self._ask_for_retry(work, index, WorkerDiedError(f"{work.name} failed: {why}"))
            self._release_worker(worker)
            if work is not None and work.actor is not None:
                self._actor_process_gone(work.actor, exit_code)
        self._end_children(index)
        self.reservations.remove_queued_by(index)
        for reservation in self.reservations.granted_to(index):
            self.release(reservation)
        self.schedule()

    def _is_alive(self, index: int) -> bool:
        return index == DRIVER or index in self.workers

    def _ask_for_retry(self, work: Work, worker: int, error: OutplayError, kept: tuple[int, ...] = ()) -> None:
        """A task failed. Ask its caller whether to retry it: the results may have been sent before the crash."""
        number, payload = work.spec.call.id, error_payload(_cancelled(work) if work.cancelled else error)
        self._undecided[number] = work
        self._send(work.caller, ("failed", number, worker, payload, work.retries_left != 0, (), kept))

    def retry_decision(self, number: int, retry: bool) -> None:
        """The caller's reply."""
        work = self._undecided.pop(number, None)
        if work is None:
            return
        if retry and work.cancelled:  # since the hub asked
            self._fail_work(work, _cancelled(work))
        elif retry:
            work.retries_left -= work.retries_left > 0
            self._backlog.add(work, first=True)
            self.schedule()
        else:
            self._release_work(work)

    def cancel(self, number: int, force: bool) -> None:
        """Cancel a task: interrupt it, with `force` kill its worker, or remove it from the backlog."""
        work = self._backlog.makers.get(number)
        if work is None or (work.cancelled and not force):
            return
        work.cancelled, work.retries_left = True, 0
        worker = next((worker for worker in self.workers.values() if worker.work is work), None)
        if worker is not None and force:
            self._kill_worker(worker, "it was cancelled")
        elif worker is not None:
            self._send_to(worker, ("interrupt", number))
        elif self._backlog.remove(work):
            self._fail_work(work, _cancelled(work))
        elif work.missing:  # it is released when its arguments exist, see _enqueue
            self._send_failure(work, _cancelled(work))

    def undelivered(
        self, index: int, caller: int, number: int, error: Payload, granted: tuple[int, ...], kept: tuple[int, ...]
    ) -> None:
        """A worker could not connect to the caller of a task: the hub forwards the error."""
        self._send(caller, ("failed", number, index, error, False, granted, kept))

    def _fail_work(self, work: Work, why: str | OutplayError) -> None:
        """Fail work that is not running."""
        if work.actor is not None:
            self.actors.mark_dead(work.actor, f"actor {work.name} died: {why}")
        else:
            self._send_failure(work, WorkerDiedError(f"{work.name} failed: {why}") if isinstance(why, str) else why)
        self._release_work(work)

    def _send_failure(self, work: Work, error: OutplayError) -> None:
        self._send(work.caller, ("failed", work.spec.call.id, HUB, error_payload(error), False))

    def _end_children(self, index: int) -> None:
        """A process has ended: end the actors and tasks that it started."""
        for work in self._backlog.remove_all_of(index):
            self._release_work(work)
        for number in [number for number, work in self._undecided.items() if work.caller == index]:
            self._release_work(self._undecided.pop(number))
        for worker in self.workers.values():
            if worker.work is not None and worker.work.caller == index and worker.work.actor is None:
                self._kill_worker(worker, "the process that started it is gone")
        for actor in self.actors.records.values():
            if actor.work is not None and actor.work.caller == index:
                why = f"actor {actor.work.name} died: the process that started it is gone"
                self.actors.mark_dead(actor, why, kill=False)
                if actor.worker is not None:
                    self._dismiss(actor.worker)
        self.actors.names.free_all_of(index)

    # The end of workers

    def end(self) -> None:
        """Ask all workers to exit. No work is started after this."""
        self._ended = True
        for worker in self.workers.values():
            self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        """Ask a worker to exit. It is killed if it does not exit in time."""
        if self.dismissals.add(worker):
            self._send_to(worker, ("exit",))

    def _kill_worker(self, worker: Worker, why: str) -> None:
        worker.killed_because = why
        if worker.work is not None:
            worker.work.retries_left = 0
        self._kill_process(worker)

    @staticmethod
    def _kill_process(worker: Worker) -> None:
        kill_group(worker.process.pid)

    # The end of actors

    def actor_ended(self, index: int, death: Payload) -> None:
        """The constructor of an actor raised, or one of its methods called sys.exit(). It is not restarted."""
        work = self.workers[index].work
        assert work is not None
        assert work.actor is not None
        if work.actor.death is None:  # otherwise it was killed meanwhile
            self._objects.grant(death.refs, HUB)
            self.actors.mark_dead(work.actor, death, kill=False)

    def _dequeue(self, work: Work) -> None:
        if self._backlog.remove(work):
            self._release_work(work)

    def _actor_process_gone(self, actor: Actor, exit_code: int | None) -> None:
        """The process of an actor has ended: restart the actor if that is allowed."""
        assert actor.work is not None
        work = actor.work
        actor.worker = None
        if actor.death is None and not actor.ending and work.retries_left != 0 and self._is_alive(work.caller):
            work.retries_left -= work.retries_left > 0
            self._enqueue(work)
            return
        self.actors.mark_dead(actor, f"actor {work.name} died: its process {describe_exit(exit_code)}")
        self._release_work(work)
        if actor.ending:
            self.actors.remove(actor)

    def _end_actor(self, actor: Actor) -> None:
        """No process holds a handle of the actor. All calls to it have been answered, or their callers are gone."""
        actor.ending = True
        self.actors.names.free(actor.id)
        if actor.worker is not None:
            self._send_to(actor.worker, ("exit",))
        else:
            self.actors.mark_dead(actor, f"actor {actor.work.name if actor.work else '?'} has ended")
            self.actors.remove(actor)

    # Reservations

    def reserve(self, peer: int, number: int, bundles: Bundles) -> None:
        self.slots.check_bundles(bundles)
        self.reservations.queue.append(QueuedReservation(peer, number, bundles, next(self._turns)))
        self.schedule()

    def release(self, number: int) -> None:
        """Release a reservation, and kill the tasks and actors that run in it."""
        self.reservations.remove(number)
        for worker in list(self.workers.values()):
            work = worker.work
            if work is not None and work.spec.reservation == number:
                if work.actor is not None:
                    self.actors.mark_dead(work.actor, f"actor {work.name} died: its reservation was released")
                self._kill_worker(worker, "its reservation was released")
        self.schedule()


def _cancelled(work: Work) -> TaskCancelledError:
    return TaskCancelledError(f"{work.name} was cancelled")

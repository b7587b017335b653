"""Which work the hub starts, on how many processes, and what follows from deaths and cancellations.

On simulated processes: four properties, and random programs whose slots, queues and retries are checked throughout.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import outplay
from outplay.engine.process.staffing import Staff
from tests.simulation import Simulation

seeds = st.integers(0, 2**16)
several = settings(max_examples=25, deadline=None)


@outplay.remote
def tree(fanouts: list[int]) -> int:
    """Start tasks that start tasks, wait for them all, and count them."""
    return 1 + sum(outplay.get([tree.remote(fanouts[1:]) for _ in range(fanouts[0])])) if fanouts else 1


@outplay.remote
def add(first: int, second: int) -> int:
    return first + second


@outplay.remote
def wait_for(refs: list[Any]) -> int:
    return int(outplay.get(refs[0]))


@outplay.remote
class Counter:
    def __init__(self) -> None:
        self.arrived: set[int] = set()

    def arrive(self, number: int) -> int:
        self.arrived.add(number)
        return len(self.arrived)


@outplay.remote
def meet(counter: Any, number: int, others: int) -> int:
    while outplay.get(counter.arrive.remote(number)) < others:
        pass
    return number


def check_all_slots_are_free(simulation: Simulation, cpus: int) -> None:
    simulation.settle()
    staff = simulation.hub.staff
    assert staff.slots.machine.free_cpus == cpus
    assert staff.slots.machine.paused == []
    assert staff._backlog.heads() == []
    assert staff._backlog.makers == {}


@several
@given(seeds, st.integers(1, 3), st.lists(st.integers(1, 4), max_size=3))
def test_tasks_that_wait_for_others_need_few_processes(seed: int, cpus: int, fanouts: list[int]) -> None:
    with Simulation(seed, cpus, slowness=0) as simulation:
        size = 1
        for fanout in reversed(fanouts):
            size = 1 + fanout * size
        assert outplay.get([tree.remote(fanouts) for _ in range(10)]) == [size] * 10
        assert simulation.most_workers <= cpus * (len(fanouts) + 1)
        assert simulation.now == 0  # nobody was started because nothing else happened
        check_all_slots_are_free(simulation, cpus)


@several
@given(seeds, st.integers(1, 3))
def test_what_waiting_tasks_need_runs_first_whoever_started_it(seed: int, cpus: int) -> None:
    with Simulation(seed, cpus, slowness=0) as simulation:
        first = tree.remote([])
        for _ in range(3):
            first = add.remote(first, 1)  # none of these is ready to run when the others start
        assert outplay.get([wait_for.remote([first]) for _ in range(10)]) == [4] * 10
        assert simulation.most_workers <= 2 * cpus
        assert simulation.now == 0
        check_all_slots_are_free(simulation, cpus)


@several
@given(seeds, st.integers(1, 3))
def test_tasks_that_wait_for_each_other_all_start_in_the_end(seed: int, cpus: int) -> None:
    with Simulation(seed, cpus) as simulation:
        counter = Counter.remote()
        assert outplay.get([meet.remote(counter, number, 6) for number in range(6)]) == list(range(6))
        check_all_slots_are_free(simulation, cpus)


@several
@given(seeds, st.integers(1, 2), st.integers(0, 3))
def test_workers_that_die_do_not_take_their_slots_along(seed: int, cpus: int, kills: int) -> None:
    with Simulation(seed, cpus) as simulation:
        refs = [tree.options(max_retries=-1).remote([2, 1]) for _ in range(3)]
        for _ in range(kills):
            for _ in range(30):
                simulation.step()
            for worker in simulation.workers()[:1]:
                simulation.kill(worker, by_hand=True)
        try:
            assert outplay.get(refs) == [5, 5, 5]
        except outplay.OutplayError:
            assert simulation.any_killed
        check_all_slots_are_free(simulation, cpus)


# Random programs


@outplay.remote
def job(number: int, does: str, failures: int, others: list[Any], _: Any = None) -> int:
    """Something that takes the hub's decisions; its first runs fail. The value says whether it worked."""
    runs = Simulation.current.runs
    runs[number] += 1
    if runs[number] <= failures:
        raise ValueError(number)
    if does == "starts others":
        [child.remote() for _ in range(2)]
    elif does == "waits for its own":
        return 1 + sum(outplay.get([child.remote() for _ in range(2)]))
    elif does == "waits for another" and others:
        outplay.wait(others)
    elif does == "reserves":
        return reserves()
    elif does == "starts an actor":
        Counter.remote().arrive.remote(0)
    return 1


VALUES = {"waits for its own": {3}, "reserves": {1, 2}}
DOES = ["returns", "starts others", "waits for its own", "waits for another", "reserves", "starts an actor"]


@outplay.remote
def child() -> int:
    return 1


def reserves() -> int:
    try:
        with outplay.reserve([{"num_cpus": 1}], timeout=1) as reservation:
            return 1 + int(outplay.get(child.options(reservation=reservation).remote()))
    except outplay.GetTimeoutError:
        return 1


@outplay.remote
class Failing:
    def __init__(self) -> None:
        raise ValueError("cannot begin")

    def arrive(self, number: int) -> int:
        return number


@several
@given(seeds, st.integers(1, 2), st.sampled_from(["reserves", "starts an actor"]))
def test_what_a_dead_worker_had_reserved_or_started_is_given_back(seed: int, cpus: int, does: str) -> None:
    with Simulation(seed, cpus) as simulation:
        staff = simulation.hub.staff
        refs = [job.options(max_retries=0).remote(number, does, 0, []) for number in range(3)]
        while (owner := first_owner(staff)) is None and simulation.step():
            check_consistency(staff)
        if owner is not None:
            simulation.kill(simulation.processes[owner], by_hand=True)
        outplay.wait(refs, num_returns=3)
        check_all_slots_are_free(simulation, cpus)
        assert (staff.reservations.owners, staff.slots.reservations) == ({}, {})
        assert not [actor for actor in staff.actors.records.values() if actor.death is None]


def first_owner(staff: Staff) -> int | None:
    """A worker that has reserved something, or started an actor."""
    callers = [actor.work.caller for actor in staff.actors.records.values() if actor.work is not None]
    return next((index for index in (*staff.reservations.owners.values(), *callers) if index in staff.workers), None)


@dataclass(eq=False)
class Job:
    """What the program knows of a task."""

    number: int
    retries: int
    failures: int
    values: set[int]
    ref: Any
    needs: Job | None = None
    reservation: Any = None
    disturbed: list[str] = field(default_factory=list)  # why it may have no value

    def reasons(self) -> list[str]:
        """Why it may have no value: its own, or those of what it needs."""
        return self.disturbed + (self.needs.reasons() if self.needs is not None else [])


def check_consistency(staff: Staff) -> None:
    """What must hold whenever the hub has finished with a message."""
    workers = list(staff.workers.values())
    leases = [worker.lease for worker in workers if worker.lease is not None]
    reserved = [pool for bundles in staff.slots.reservations.values() for pool in bundles]
    pools = {id(pool): pool for pool in (staff.slots.machine, *reserved, *(lease.pool for lease in leases))}
    leases += [pool.parent for pool in pools.values() if pool.parent is not None]
    for pool in pools.values():
        mine = [lease for lease in leases if lease.pool is pool]
        assert pool.used == len(mine)
        assert pool.free_cpus + sum(lease.cpus for lease in mine if not lease.paused) == pytest.approx(pool.cpus)
        assert {id(lease) for lease in pool.paused} == {id(lease) for lease in mine if lease.paused}
    queued = [work for line in staff._backlog._queues.values() for work in line]
    running = [worker.work for worker in workers if worker.work is not None]
    places = [id(work) for work in (*queued, *running, *staff._undecided.values())]
    assert len(places) == len(set(places)), "one piece of work is in two places"
    assert not [work.name for work in queued if work.cancelled], "cancelled work is queued"
    assert not [work.name for work in queued if work.missing], "work is queued without its arguments"
    for idle in (worker for found in staff._idle.values() for worker in found):
        assert (idle.work, idle.lease) == (None, None)
        assert staff.workers.get(idle.index) is idle
    for worker in workers:
        assert worker.work is None or worker.lease is not None or worker.killed_because is not None
        if worker.work is not None and worker.work.actor is not None and worker.work.actor.death is None:
            assert worker.work.actor.worker is worker


choices = st.integers(0, 7)
has_started = precondition(lambda self: self.simulation is not None)


class Staffing(RuleBasedStateMachine):
    """The driver submits, cancels, reserves and releases; in between, things happen, and workers are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation: Any = None
        self.cpus = self.gpus = 0
        self.jobs: list[Job] = []
        self.actors: list[Any] = []
        self.reservations: list[Any] = []
        self.kills = 0

    @precondition(lambda self: self.simulation is None)
    @rule(seed=seeds, cpus=st.integers(1, 3), gpus=st.integers(0, 1))
    def start(self, seed: int, cpus: int, gpus: int) -> None:
        self.cpus, self.gpus = cpus, gpus
        self.simulation = Simulation(seed, cpus, gpus=gpus)

    @has_started
    @rule(
        size=st.sampled_from([(0, 0), (1, 0), (1, 0), (1, 1), (2, 0)]),
        retries=st.sampled_from([0, 1, 2, -1]),
        failures=st.sampled_from([0, 0, 0, 1, 2]),
        does=st.sampled_from(DOES),
        needed=st.none() | choices,
        other=choices,
        reserved=st.none() | choices,
    )
    def submit(
        self,
        size: tuple[int, int],
        retries: int,
        failures: int,
        does: str,
        needed: int | None,
        other: int,
        reserved: int | None,
    ) -> None:
        number = self.simulation.next_number()
        reservation = self.chosen(self.reservations, reserved)
        cpus, gpus = self.cpus, self.gpus
        if reservation is not None:
            cpus, gpus = int(max(cpus for cpus, _ in reservation.bundles)), 0
        options = {"num_cpus": min(size[0], cpus), "num_gpus": min(size[1], gpus), "reservation": reservation}
        needs, waits_for = self.chosen(self.jobs, needed), self.chosen(self.jobs, other)
        if options["num_gpus"]:  # a task that waits keeps its GPU: one that it waits for might never get it
            waits_for = None
        ref = job.options(**options, max_retries=retries, retry_exceptions=[ValueError]).remote(
            number, does, failures, [] if waits_for is None else [waits_for.ref], None if needs is None else needs.ref
        )
        self.jobs.append(Job(number, retries, failures, VALUES.get(does, {1}), ref, needs, reservation))

    @staticmethod
    def chosen(items: list[Any], choice: int | None) -> Any:
        return items[choice % len(items)] if items and choice is not None else None

    @precondition(lambda self: self.jobs)
    @rule(choice=choices, force=st.booleans())
    def cancel(self, choice: int, force: bool) -> None:
        cancelled = self.jobs[choice % len(self.jobs)]
        outplay.cancel(cancelled.ref, force=force)
        cancelled.disturbed.append("cancelled")

    @precondition(lambda self: self.jobs)
    @rule(choice=choices)
    def get(self, choice: int) -> None:
        try:
            outplay.get(self.jobs[choice % len(self.jobs)].ref, timeout=1)
        except outplay.OutplayError:
            return  # what each job may raise is checked in the end

    @has_started
    @rule(bundles=st.lists(st.integers(1, 2), min_size=1, max_size=2))
    def reserve(self, bundles: list[int]) -> None:
        if sum(bundles) <= self.cpus:
            try:
                self.reservations.append(outplay.reserve([{"num_cpus": cpus} for cpus in bundles], timeout=1))
            except outplay.GetTimeoutError:
                return

    @precondition(lambda self: self.reservations)
    @rule(choice=choices)
    def release(self, choice: int) -> None:
        reservation = self.reservations.pop(choice % len(self.reservations))
        for each in self.jobs:
            if each.reservation is reservation:
                each.disturbed.append("its reservation was released")
        reservation.release()

    @has_started
    @rule(cpus=st.integers(0, 1), restarts=st.integers(0, 1), fails=st.booleans(), reserved=st.none() | choices)
    def create(self, cpus: int, restarts: int, fails: bool, reserved: int | None) -> None:
        reservation = self.chosen(self.reservations, reserved)
        options = {"num_cpus": cpus, "max_restarts": restarts, "reservation": reservation}
        self.actors.append((Failing if fails else Counter).options(**options).remote())
        self.actors[-1].arrive.remote(0)

    @precondition(lambda self: self.actors)
    @rule(choice=choices, kills=st.booleans())
    def end_actor(self, choice: int, kills: bool) -> None:
        actor = self.actors.pop(choice % len(self.actors))
        if kills:
            outplay.kill(actor)

    @has_started
    @rule(count=st.integers(1, 40))
    def let_things_happen(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @has_started
    @rule(choice=choices)
    def kill_worker(self, choice: int) -> None:
        worker = self.chosen(self.simulation.workers(), choice)
        if worker is not None:
            self.simulation.kill(worker, by_hand=True)
            self.kills += 1

    @has_started
    @rule()
    def run_out_of_processes(self) -> None:
        """The next worker cannot be started."""
        self.simulation.refuse_hires = 1
        self.kills += 1

    @invariant()
    def is_consistent(self) -> None:
        if self.simulation is not None:
            check_consistency(self.simulation.hub.staff)

    def teardown(self) -> None:
        if self.simulation is None:
            return
        try:
            while self.reservations:
                self.release(0)
            self.actors.clear()
            gc.collect()
            for each in self.jobs:
                self.check_outcome(each)
            self.jobs.clear()
            gc.collect()
            check_all_slots_are_free(self.simulation, self.cpus)
            self.check_nothing_is_left()
        finally:
            self.jobs.clear()
            self.actors.clear()
            self.simulation.close()
        assert not self.simulation.faults, self.simulation.faults

    def check_outcome(self, each: Job) -> None:
        """It has its value; or there is a reason why not. No job runs more often than its retries allow."""
        disturbed = each.reasons() or self.kills
        try:
            assert outplay.get(each.ref) in each.values
            assert self.simulation.runs[each.number] > each.failures
        except outplay.TaskCancelledError:
            assert "cancelled" in each.reasons()
        except outplay.TaskError:
            fails = any(0 <= job.retries < job.failures + self.kills for job in self.needed_by(each))
            assert fails or disturbed
        except outplay.OutplayError:
            assert disturbed
        if each.retries >= 0:
            assert self.simulation.runs[each.number] <= 1 + each.retries
        else:
            assert self.simulation.runs[each.number] <= 1 + each.failures + self.kills

    @staticmethod
    def needed_by(each: Job | None) -> list[Job]:
        found = []
        while each is not None:
            found.append(each)
            each = each.needs
        return found

    def check_nothing_is_left(self) -> None:
        staff = self.simulation.hub.staff
        assert (staff._undecided, staff.actors.records, staff.reservations.owners, list(staff.reservations.queue)) == (
            {},
            {},
            {},
            [],
        )
        for _ in range(3):  # surplus workers stay for a second
            self.simulation.now += 10
            self.simulation._look()
            self.simulation.settle()
        assert len(staff.workers) <= max(1, self.cpus)
        assert sorted(staff.workers) == sorted(worker.index for idle in staff._idle.values() for worker in idle)
        staff.end()
        self.simulation.settle()
        assert staff.workers == {}


def check(examples: int) -> None:
    run_state_machine_as_test(
        Staffing,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_every_decision_in_random_programs_is_sound() -> None:
    check(60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_decision_in_many_random_programs_is_sound() -> None:
    check(3000)

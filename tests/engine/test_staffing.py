"""Which work the hub starts, and on how many processes: tasks that wait for others, on simulated processes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import outplay
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

"""Reference counting, whatever order things happen in: random programs on simulated processes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import outplay
from tests.simulation import INLINE_BYTES, Simulation

# A program is a list of steps; the numbers in it choose among what its process holds by then.
Step = tuple[Any, ...]
SMALL, LARGE = 4, INLINE_BYTES


class Value:
    """An object whose content shows whether it is still the one that was stored, with Refs and handles inside."""

    def __init__(self, size: int, held: list[Any]) -> None:
        self.number = Simulation.current.next_number()
        self.content = np.full(size, self.number)
        self.held = held


def perform(step: Step, held: list[Any], itself: Any = None, may_wait: bool = False) -> None:
    """Take one step of a program, in whatever process this is."""
    kind, choice, *rest = step
    refs = [item for item in held if isinstance(item, outplay.Ref)]
    actors = [item for item in held if not isinstance(item, outplay.Ref)] + ([itself] if itself is not None else [])
    chosen = held[choice % len(held) :][:2] if held else []
    if kind == "put":
        held.append(outplay.put(Value(rest[0], chosen)))
    elif kind == "task":
        held.append(task.remote(rest[0], rest[1], chosen))
    elif kind == "task of a value" and refs:
        held.append(task.remote(rest[0], rest[1], refs[choice % len(refs)]))
    elif kind == "actor":
        held.append(Actor.remote(chosen, fails=choice == 7))
    elif kind == "call" and actors:
        held.append(actors[choice % len(actors)].run.remote(rest[0], rest[1], chosen, choice % 2 == 0))
    elif kind == "call with a value" and actors and refs:
        # Only one that is there: an actor that waits for a task, which waits for the actor, does so for ever.
        ready, _ = outplay.wait(list(set(refs)), num_returns=len(set(refs)), timeout=0)
        for ref in ready[:1]:
            held.append(actors[choice % len(actors)].run.remote(rest[0], rest[1], ref, choice % 2 == 0))
    elif kind == "introduce" and actors:
        held.append(actors[choice % len(actors)].meet.remote([actors[choice % len(actors)]]))
    elif kind == "get" and refs and may_wait:
        take(refs[choice % len(refs)], held)
    elif kind == "cancel" and refs:
        try:
            outplay.cancel(refs[choice % len(refs)])
        except outplay.EngineError as error:  # its owner cannot be told, and the caller knows
            if "too many open files" not in str(error):
                raise
    elif kind == "closure":
        held.append(capturing(chosen).remote())
    elif kind == "drop" and held:
        del held[choice % len(held)]
    elif kind == "fail":
        raise ValueError(chosen)


def capturing(captured: list[Any]) -> Any:
    @outplay.remote
    def function() -> Value:
        return Value(SMALL, captured)

    return function


def take(ref: Any, held: list[Any]) -> None:
    """Get an object, and hold what is inside it."""
    try:
        value = outplay.get(ref)
    except (outplay.ObjectLostError, outplay.WorkerDiedError) as error:
        Simulation.current.expect(Simulation.current.any_killed, f"{error}, though nobody was killed")
    except outplay.OutplayError:
        return  # what a program raised, and what follows from that
    else:
        held += checked(value)


def checked(value: Any) -> list[Any]:
    """What is inside an object, whose content must be what was stored."""
    if not isinstance(value, Value):
        return []
    Simulation.current.expect(bool((value.content == value.number).all()), "an object was overwritten")
    return value.held


def run_program(program: list[Step], size: int, given: Any, itself: Any, may_wait: bool) -> Value:
    held = [*given] if isinstance(given, list) else [*checked(given)]
    for step in program:
        perform(step, held, itself, may_wait)
    return Value(size, held)


@outplay.remote
def task(program: list[Step], size: int, given: Any) -> Value:
    return run_program(program, size, given, None, may_wait=True)


@outplay.remote
class Actor:
    def __init__(self, kept: list[Any], fails: bool) -> None:
        if fails:
            raise ValueError(kept)
        self.kept: list[Any] = kept
        self.itself: Any = None

    def meet(self, handles: list[Any]) -> None:
        (self.itself,) = handles

    def run(self, program: list[Step], size: int, given: Any, keeps: bool) -> Value:
        """An actor does not wait: two that wait for each other would do so for ever."""
        for value in self.kept:
            checked(value)
        if len(self.kept) > 3:
            self.kept.clear()
        if keeps:
            self.kept.append(given)
        return run_program(program, size, given, self.itself, may_wait=False)


sizes = st.sampled_from([SMALL, LARGE])
choices = st.integers(0, 7)


def steps(programs: st.SearchStrategy[list[Step]], kinds: list[str]) -> st.SearchStrategy[Step]:
    with_program = st.sampled_from(["task", "task of a value", "call", "call with a value"])
    return st.one_of(
        st.tuples(with_program, choices, programs, sizes),
        st.tuples(st.just("put"), choices, sizes),
        st.tuples(st.sampled_from(kinds), choices),
    )


ANYWHERE = ["drop", "introduce", "actor", "closure", "cancel"]

programs = st.recursive(
    st.just([]),
    lambda inner: st.lists(steps(inner, [*ANYWHERE, "get", "get", "fail"]), min_size=1, max_size=5),
    max_leaves=8,
)


class Counting(RuleBasedStateMachine):
    """The driver's program is the machine's; in between, messages arrive, workers run, and some are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []
        self.simulation: Any = None
        self.number = 0

    @precondition(lambda self: self.simulation is None)
    @rule(seed=st.integers(0, 2**16), cpus=st.integers(1, 2), actors=st.integers(0, 3))
    def start(self, seed: int, cpus: int, actors: int) -> None:
        self.simulation = Simulation(seed, cpus)
        for number in range(actors):
            perform(("actor", number), self.held)
            perform(("introduce", number), self.held)

    @precondition(lambda self: self.simulation is not None)
    @rule(program=st.lists(steps(programs, [*ANYWHERE, "drop"]), min_size=3, max_size=12))
    def act(self, program: list[Step]) -> None:
        for step in program:
            perform(step, self.held)

    @precondition(lambda self: self.held)
    @rule(choice=choices)
    def get(self, choice: int) -> None:
        refs = [item for item in self.held if isinstance(item, outplay.Ref)]
        if refs:
            take(refs[choice % len(refs)], self.held)

    @precondition(lambda self: self.simulation is not None)
    @rule(count=st.integers(1, 40))
    def let_things_happen(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation is not None)
    @rule(choice=choices)
    def kill(self, choice: int) -> None:
        workers = self.simulation.workers()
        if workers:
            self.simulation.kill(workers[choice % len(workers)], by_hand=True)

    @precondition(lambda self: self.simulation is not None)
    @rule()
    def run_out_of_descriptors(self) -> None:
        self.simulation.refuse_connections = 1

    def teardown(self) -> None:
        if self.simulation is not None:
            try:
                self.check_while_held()
                self.held.clear()
                self.check_when_nothing_is_held()
            finally:
                self.held.clear()
                self.simulation.close()
            assert not self.simulation.faults, self.simulation.faults

    def check_while_held(self) -> None:
        self.simulation.settle()
        gc.collect()
        self.simulation.settle()
        self.simulation.check_counts()
        for item in self.held:
            if isinstance(item, outplay.Ref):
                take(item, [])

    def check_when_nothing_is_held(self) -> None:
        for worker in self.simulation.workers():  # an actor may hold a handle on itself
            self.simulation.kill(worker)
        gc.collect()
        self.simulation.settle()
        self.simulation.check_counts()
        self.simulation.check_nothing_is_left()


def check(examples: int) -> None:
    run_state_machine_as_test(
        Counting,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_every_object_lives_as_long_as_it_is_held() -> None:
    check(50)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_object_lives_as_long_as_it_is_held_in_many_programs() -> None:
    check(3000)

"""What actors mean, on every engine."""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import outplay

pytestmark = pytest.mark.usefixtures("engine")


@outplay.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.calls: list[int] = []

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def note(self, number: int) -> None:
        self.calls.append(number)

    def noted(self) -> list[int]:
        return self.calls

    def fail(self) -> None:
        raise RuntimeError("no")

    def pid(self) -> int:
        return os.getpid()

    def pair(self) -> tuple[int, str]:
        return 1, "two"


@outplay.remote
def add_through(handle: Any, amount: int) -> Any:
    return outplay.get(handle.add.remote(amount))


def test_an_actor_keeps_its_state() -> None:
    counter = Counter.remote(start=10)
    assert outplay.get([counter.add.remote(), counter.add.remote(5)]) == [11, 16]
    other = Counter.remote()
    assert outplay.get(other.add.remote()) == 1


def test_calls_of_one_caller_run_in_order() -> None:
    counter = Counter.remote()
    for number in range(300):
        counter.note.remote(number)
    assert outplay.get(counter.noted.remote()) == list(range(300))


def test_order_holds_when_an_argument_is_late() -> None:
    @outplay.remote
    def slow() -> int:
        time.sleep(0.3)
        return 0

    counter = Counter.remote()
    counter.note.remote(slow.remote())
    counter.note.remote(1)
    assert outplay.get(counter.noted.remote()) == [0, 1]


def test_a_method_can_return_several_refs() -> None:
    one, two = Counter.remote().pair.options(num_returns=2).remote()
    assert outplay.get([one, two]) == [1, "two"]


def test_the_handle_may_be_gone_before_the_answer() -> None:
    ref = Counter.remote(1).add.remote()
    assert outplay.get(ref) == 2


@outplay.remote
class Shelf:
    def __init__(self) -> None:
        self.things: list[Any] = []

    def lay(self, things: list[Any]) -> None:
        self.things = things

    def take(self) -> list[Any]:
        things, self.things = self.things, []
        return things

    def make(self) -> list[Any]:
        return [outplay.put(5), outplay.put(np.full(50_000, 6.0)), add_one.remote(6)]

    def first(self, value: Any) -> Any:
        return np.ravel(value)[0]


@outplay.remote
def add_one(value: int) -> int:
    return value + 1


def test_a_ref_comes_home_after_it_was_forgotten() -> None:
    shelf = Shelf.remote()
    outplay.get(shelf.lay.remote([outplay.put(7), outplay.put(np.full(50_000, 8.0)), add_one.remote(8)]))
    small, large, computed = outplay.get(shelf.take.remote())
    assert outplay.get(small, timeout=60) == 7
    assert outplay.get(large, timeout=60)[0] == 8
    assert outplay.get(computed, timeout=60) == 9


def test_a_ref_goes_back_to_the_actor_that_made_it() -> None:
    shelf = Shelf.remote()
    for ref, value in zip(outplay.get(shelf.make.remote()), (5, 6, 7), strict=True):
        assert outplay.get(shelf.first.remote(ref), timeout=60) == value


def test_a_handle_comes_home_after_it_was_forgotten() -> None:
    shelf, counter = Shelf.remote(), Counter.remote(1)
    outplay.get(shelf.lay.remote([counter]))
    del counter
    (counter,) = outplay.get(shelf.take.remote())
    outplay.get(shelf.lay.remote([counter]))
    assert outplay.get(counter.add.remote()) == 2


def test_a_call_to_an_actor_that_starts_survives_the_garbage_collector() -> None:
    ref = Counter.remote(1).add.remote()
    gc.collect()
    assert outplay.get(ref, timeout=60) == 2


def test_arguments_may_have_any_name() -> None:
    @outplay.remote
    class Greedy:
        def act(self, method: str, num_returns: int, known: int, self_: int = 0) -> str:
            return f"{method} {num_returns} {known}"

    assert outplay.get(Greedy.remote().act.remote(method="greedy", num_returns=3, known=4)) == "greedy 3 4"

    @outplay.remote
    def task(known: int, num_returns: int, exported: int, args: int, kwargs: int) -> int:
        return known + num_returns + exported + args + kwargs

    assert outplay.get(task.remote(known=1, num_returns=2, exported=3, args=4, kwargs=5)) == 15


def test_handles_travel_into_tasks_and_actors() -> None:
    @outplay.remote
    class Middle:
        def __init__(self, counter: Any) -> None:
            self.counter = counter

        def add(self, amount: int) -> Any:
            return outplay.get(self.counter.add.remote(amount))

        def handle(self) -> Any:
            return self.counter

    counter = Counter.remote()
    middle = Middle.remote(counter)
    assert outplay.get(add_through.remote(counter, 3)) == 3
    assert outplay.get(middle.add.remote(4)) == 7
    back = outplay.get(middle.handle.remote())
    assert back == counter
    assert outplay.get(back.add.remote(1)) == 8


def test_actors_start_actors_and_their_handles_come_back() -> None:
    @outplay.remote
    class Boss:
        def hire(self) -> Any:
            self.worker = Counter.remote(100)
            return self.worker

    boss = Boss.remote()
    worker = outplay.get(boss.hire.remote())
    assert outplay.get(worker.add.remote()) == 101


def test_agents_share_a_parameter_server_and_a_buffer() -> None:
    """The pattern of a hand-made distributed learner: tasks that call two actors, and a trainer beside them."""

    @outplay.remote
    class ParameterServer:
        def __init__(self, parameters: dict[str, Any]) -> None:
            self.parameters = dict(parameters)

        def get_weights(self) -> dict[str, Any]:
            return self.parameters

        def set_weights(self, parameters: dict[str, Any]) -> None:
            self.parameters = dict(parameters)

    @outplay.remote
    class DataBuffer:
        def __init__(self) -> None:
            self.items: list[Any] = []

        def add(self, item: Any) -> None:
            self.items.append(item)

        def sample(self) -> Any:
            return np.concatenate(self.items)

        def get_len(self) -> int:
            return len(self.items)

    @outplay.remote
    def agent(server: Any, buffer: Any, steps: int) -> int:
        weights = outplay.get(server.get_weights.remote())
        outplay.get([buffer.add.remote(weights["w"] * step) for step in range(steps)])
        return steps

    @outplay.remote
    def trainer(server: Any, buffer: Any, wanted: int) -> float:
        deadline = time.monotonic() + 60
        while outplay.get(buffer.get_len.remote()) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        batch = outplay.get(buffer.sample.remote())
        outplay.get(server.set_weights.remote({"w": batch[:2]}))
        return float(batch.sum())

    server = ParameterServer.remote({"w": np.ones(2)})
    buffer = DataBuffer.remote()
    agents = [agent.remote(server, buffer, 5) for _ in range(3)]
    trained = trainer.remote(server, buffer, 15)
    assert outplay.get(agents) == [5, 5, 5]
    assert outplay.get(trained) == 3 * 2 * sum(range(5))
    assert outplay.get(server.get_weights.remote())["w"].shape == (2,)


def test_a_method_that_raises_leaves_the_actor_alive() -> None:
    counter = Counter.remote()
    with pytest.raises(outplay.TaskError, match=r"Counter\.fail raised RuntimeError: no") as caught:
        outplay.get(counter.fail.remote())
    assert isinstance(caught.value.cause, RuntimeError)
    assert outplay.get(counter.add.remote()) == 1


def test_a_constructor_that_raises_is_the_cause_of_death() -> None:
    @outplay.remote
    class Broken:
        def __init__(self) -> None:
            raise LookupError("cannot begin")

        def method(self) -> None: ...

    broken = Broken.remote()
    with pytest.raises(outplay.ActorDiedError, match="its constructor failed") as caught:
        outplay.get(broken.method.remote())
    assert isinstance(caught.value.__cause__, outplay.TaskError)
    assert isinstance(caught.value.__cause__.cause, LookupError)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(broken.method.remote())


def test_a_killed_actor_is_dead() -> None:
    counter = Counter.options(max_restarts=3).remote()
    assert outplay.get(counter.add.remote()) == 1
    outplay.kill(counter)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(counter.add.remote())
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(counter.add.remote())


def test_a_dead_actor_fails_its_calls(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline, the actor is in this process")

    @outplay.remote
    class Mortal:
        def die(self) -> None:
            os._exit(1)

        def live(self) -> bool:
            return True

    mortal = Mortal.remote()
    last, after = mortal.die.remote(), mortal.live.remote()
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(last)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(after)


def fails(counter: Any) -> bool:
    try:
        outplay.get(counter.add.remote())
    except outplay.ActorDiedError:
        return True
    return False


def test_a_restarted_actor_begins_anew(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline, the actor is in this process")
    counter = Counter.options(max_restarts=1).remote(start=5)
    assert outplay.get(counter.add.remote()) == 6
    first = outplay.get(counter.pid.remote())
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert outplay.get(counter.add.remote()) == 6  # through its constructor, not from where it was
            break
        except outplay.ActorDiedError:  # calls that were on their way when it died
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert outplay.get(counter.pid.remote()) != first
    os.kill(outplay.get(counter.pid.remote()), signal.SIGKILL)
    # Dead for good now: sooner or later, and from then on, its calls fail.
    assert any(fails(counter) or time.sleep(0.05) for _ in range(600))
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(counter.add.remote())


def test_a_call_in_flight_fails_though_the_actor_restarts(engine: str, tmp_path: Any) -> None:
    if engine == "inline":
        pytest.skip("inline, the actor is in this process")

    @outplay.remote(max_restarts=1)
    class Slow:
        def sleep(self) -> None:
            (tmp_path / "pid").write_text(str(os.getpid()))
            time.sleep(1000)

        def alive(self) -> bool:
            return True

    slow = Slow.remote()
    ref = slow.sleep.remote()
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(ref, timeout=60)
    while True:
        try:
            assert outplay.get(slow.alive.remote(), timeout=60)
            break
        except outplay.ActorDiedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_actor_may_keep_a_view_of_its_arguments() -> None:
    @outplay.remote
    class Keeper:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def keep(self, array: Any) -> None:
            self.kept.append(array)

        def sums(self) -> list[float]:
            return [float(array.sum()) for array in self.kept]

    keeper = Keeper.remote()
    for number in range(10):
        outplay.get(keeper.keep.remote(outplay.put(np.full(50_000, number))))
    for number in range(10, 20):
        outplay.get(keeper.keep.remote(np.full(50_000, number)))
    assert outplay.get(keeper.sums.remote()) == [50_000.0 * number for number in range(20)]


def test_an_actor_cannot_wait_for_itself(engine: str) -> None:
    @outplay.remote
    class Loop:
        def set_self(self, handle: Any) -> None:
            self.handle = handle[0]

        def inner(self) -> str:
            return "inner"

        def outer(self) -> Any:
            ref = self.handle.inner.remote()
            try:
                outplay.get(ref, timeout=0.1)
            except outplay.GetTimeoutError:
                return [ref]
            return None

    loop = Loop.remote()
    outplay.get(loop.set_self.remote([loop]))
    later = outplay.get(loop.outer.remote())
    assert outplay.get(later[0]) == "inner"


def test_what_an_actor_cannot_do_is_said_at_once() -> None:
    with pytest.raises(TypeError, match="inherit from the plain class"):

        class More(Counter):  # type: ignore[misc]
            pass

    with pytest.raises(TypeError, match=r"Waits\.wait is a coroutine or generator"):

        @outplay.remote
        class Waits:
            async def wait(self) -> None: ...

    with pytest.raises(AttributeError, match="give Counter a method for it"):
        Counter.remote().value = 3
    with pytest.raises(TypeError, match="takes a function or a class, not int"):
        outplay.remote(3)


def test_a_released_reservation_takes_no_more_work() -> None:
    with outplay.reserve([{"num_cpus": 1}]) as group:
        late = Counter.options(num_cpus=1, reservation=group)
    with pytest.raises(ValueError, match="already been released"):
        late.remote()


def test_unknown_methods_name_the_nearest() -> None:
    counter = Counter.remote()
    with pytest.raises(AttributeError, match=r"no method 'ad'. Did you mean 'add'\?"):
        counter.ad.remote()
    with pytest.raises(TypeError, match=r"handle\.add\.remote"):
        counter.add()
    with pytest.raises(TypeError, match=r"call Counter\.remote"):
        Counter()
    with pytest.raises(TypeError, match="takes an actor's handle"):
        outplay.kill(3)  # type: ignore[arg-type]


def test_a_reservation_holds_its_resources_together(engine: str) -> None:
    with outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}]) as both:
        with pytest.raises(outplay.GetTimeoutError):
            outplay.reserve([{"num_cpus": 1}], timeout=0.2)
        pair = [Counter.options(num_cpus=1, reservation=both).remote() for _ in range(2)]
        assert outplay.get([counter.add.remote() for counter in pair]) == [1, 1]
    # What ran in it has ended with it.
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(pair[0].add.remote())
    with outplay.reserve([{"num_cpus": 2}], timeout=60):
        pass


def test_a_reservation_that_can_never_be_is_refused() -> None:
    with pytest.raises(outplay.ResourceError, match=r"reserve\(\) asks for num_cpus=3"):
        outplay.reserve([{"num_cpus": 1}] * 3)
    with pytest.raises(ValueError, match=r"no resource 'cpus'. Did you mean 'num_cpus'\?"):
        outplay.reserve([{"cpus": 1}])
    with outplay.reserve([{"num_cpus": 1}]) as one, pytest.raises(outplay.ResourceError, match="its reservation"):
        Counter.options(num_cpus=2, reservation=one).remote()


def test_an_actor_takes_slots_only_if_it_asks_for_them(engine: str) -> None:
    counters = [Counter.remote() for _ in range(5)]
    assert outplay.get([counter.add.remote() for counter in counters]) == [1] * 5
    assert outplay.get(add_through.remote(counters[0], 1)) == 2

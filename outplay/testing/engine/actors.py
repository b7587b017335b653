"""Conformance tests of actors."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

import outplay
from outplay.testing.engine.samples import Counter, Shelf, add_one, add_through


@pytest.mark.usefixtures("engine")
class ActorConformance:
    """State, order of calls, handles."""

    def test_an_actor_keeps_its_state(self) -> None:
        counter = Counter.remote(start=10)
        assert outplay.get([counter.add.remote(), counter.add.remote(5)]) == [11, 16]
        other = Counter.remote()
        assert outplay.get(other.add.remote()) == 1

    def test_calls_of_one_caller_run_in_order(self) -> None:
        counter = Counter.remote()
        for number in range(300):
            counter.note.remote(number)
        assert outplay.get(counter.noted.remote()) == list(range(300))

    def test_order_holds_when_an_argument_is_late(self) -> None:
        @outplay.remote
        def slow() -> int:
            time.sleep(0.3)
            return 0

        counter = Counter.remote()
        counter.note.remote(slow.remote())
        counter.note.remote(1)
        assert outplay.get(counter.noted.remote()) == [0, 1]

    def test_a_method_can_return_several_refs(self) -> None:
        one, two = Counter.remote().pair.options(num_returns=2).remote()
        assert outplay.get([one, two]) == [1, "two"]

    def test_the_handle_may_be_gone_before_the_answer(self) -> None:
        ref = Counter.remote(1).add.remote()
        assert outplay.get(ref) == 2

    def test_a_ref_comes_home_after_it_was_forgotten(self) -> None:
        shelf = Shelf.remote()
        outplay.get(shelf.lay.remote([outplay.put(7), outplay.put(np.full(50_000, 8.0)), add_one.remote(8)]))
        small, large, computed = outplay.get(shelf.take.remote())
        assert outplay.get(small, timeout=60) == 7
        assert outplay.get(large, timeout=60)[0] == 8
        assert outplay.get(computed, timeout=60) == 9

    def test_a_ref_goes_back_to_the_actor_that_made_it(self) -> None:
        shelf = Shelf.remote()
        for ref, value in zip(outplay.get(shelf.make.remote()), (5, 6, 7), strict=True):
            assert outplay.get(shelf.first.remote(ref), timeout=60) == value

    def test_a_handle_comes_home_after_it_was_forgotten(self) -> None:
        shelf, counter = Shelf.remote(), Counter.remote(1)
        outplay.get(shelf.lay.remote([counter]))
        del counter
        (counter,) = outplay.get(shelf.take.remote())
        outplay.get(shelf.lay.remote([counter]))
        assert outplay.get(counter.add.remote()) == 2

    def test_a_call_to_an_actor_that_starts_survives_the_garbage_collector(self) -> None:
        ref = Counter.remote(1).add.remote()
        gc.collect()
        assert outplay.get(ref, timeout=60) == 2

    def test_arguments_may_have_any_name(self) -> None:
        @outplay.remote
        class Greedy:
            def act(self, method: str, num_returns: int, known: int, self_: int = 0) -> str:
                return f"{method} {num_returns} {known}"

        assert outplay.get(Greedy.remote().act.remote(method="greedy", num_returns=3, known=4)) == "greedy 3 4"

        @outplay.remote
        def task(known: int, num_returns: int, exported: int, args: int, kwargs: int) -> int:
            return known + num_returns + exported + args + kwargs

        assert outplay.get(task.remote(known=1, num_returns=2, exported=3, args=4, kwargs=5)) == 15

    def test_handles_travel_into_tasks_and_actors(self) -> None:
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

    def test_actors_start_actors_and_their_handles_come_back(self) -> None:
        @outplay.remote
        class Boss:
            def hire(self) -> Any:
                self.worker = Counter.remote(100)
                return self.worker

        boss = Boss.remote()
        worker = outplay.get(boss.hire.remote())
        assert outplay.get(worker.add.remote()) == 101

    def test_agents_share_a_parameter_server_and_a_buffer(self) -> None:
        """A hand-written distributed learner: tasks that call two actors, and a trainer task."""

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

    def test_an_actor_may_keep_a_view_of_its_arguments(self) -> None:
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

    def test_an_actor_cannot_wait_for_itself(self, engine: str) -> None:
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

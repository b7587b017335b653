"""Conformance tests of actor crashes, restarts, reservations and invalid calls."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import outplay
from outplay.testing.engine.samples import Counter, add_through
from outplay.testing.waiting import until


def answer(method: Any) -> Any:
    """The result of a call; None if the actor is dead."""
    try:
        return outplay.get(method.remote(), timeout=60)
    except outplay.ActorDiedError:
        return None


@outplay.remote
def depth(levels: int) -> int:
    return 1 + int(outplay.get(depth.remote(levels - 1))) if levels else 0


@pytest.mark.usefixtures("engine")
class FailureConformance:
    """Crashes, restarts, reservations, invalid calls."""

    def test_a_method_that_raises_leaves_the_actor_alive(self) -> None:
        counter = Counter.remote()
        with pytest.raises(outplay.TaskError, match=r"Counter\.fail raised RuntimeError: no") as caught:
            outplay.get(counter.fail.remote())
        assert isinstance(caught.value.cause, RuntimeError)
        assert outplay.get(counter.add.remote()) == 1

    def test_a_constructor_that_raises_is_the_cause_of_death(self) -> None:
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

    def test_a_killed_actor_is_dead(self) -> None:
        counter = Counter.options(max_restarts=3).remote()
        assert outplay.get(counter.add.remote()) == 1
        outplay.kill(counter)
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(counter.add.remote())
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(counter.add.remote())

    def test_a_dead_actor_fails_its_calls(self, engine: str) -> None:
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

    def test_a_restarted_actor_begins_anew(self, engine: str) -> None:
        if engine == "inline":
            pytest.skip("inline, the actor is in this process")
        counter = Counter.options(max_restarts=1).remote(start=5)
        assert outplay.get(counter.add.remote()) == 6
        first = outplay.get(counter.pid.remote())
        os.kill(first, signal.SIGKILL)
        # Pending calls fail when it crashes. The restart calls the constructor again; state is lost.
        assert until(lambda: answer(counter.add)) == 6
        assert outplay.get(counter.pid.remote()) != first
        os.kill(outplay.get(counter.pid.remote()), signal.SIGKILL)
        # No restarts are left: from some point on, all calls fail.
        until(lambda: answer(counter.add) is None)
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(counter.add.remote())

    def test_a_call_in_flight_fails_though_the_actor_restarts(self, engine: str, tmp_path: Any) -> None:
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
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(ref, timeout=60)
        until(lambda: answer(slow.alive))

    def test_what_an_actor_cannot_do_is_said_at_once(self) -> None:
        with pytest.raises(TypeError, match="inherit from the plain class"):

            class More(Counter):
                pass

        with pytest.raises(TypeError, match=r"Waits\.wait is a coroutine or generator"):

            @outplay.remote
            class Waits:
                async def wait(self) -> None: ...

        with pytest.raises(AttributeError, match="give Counter a method for it"):
            Counter.remote().value = 3
        with pytest.raises(TypeError, match="takes a function or a class, not int"):
            outplay.remote(3)  # type: ignore[call-overload]

    def test_a_released_reservation_takes_no_more_work(self) -> None:
        with outplay.reserve([{"num_cpus": 1}]) as group:
            late = Counter.options(num_cpus=1, reservation=group)
        with pytest.raises(ValueError, match="already been released"):
            late.remote()

    def test_unknown_methods_name_the_nearest(self) -> None:
        counter = Counter.remote()
        with pytest.raises(AttributeError, match=r"no method 'ad'. Did you mean 'add'\?"):
            counter.ad.remote()
        with pytest.raises(TypeError, match=r"handle\.add\.remote"):
            counter.add()
        with pytest.raises(TypeError, match=r"call Counter\.remote"):
            Counter()
        with pytest.raises(TypeError, match="takes an actor's handle"):
            outplay.kill(3)  # type: ignore[arg-type]

    def test_a_reservation_holds_its_resources_together(self, engine: str) -> None:
        with outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}]) as both:
            with pytest.raises(outplay.GetTimeoutError):
                outplay.reserve([{"num_cpus": 1}], timeout=0.2)
            pair = [Counter.options(num_cpus=1, reservation=both).remote() for _ in range(2)]
            assert outplay.get([counter.add.remote() for counter in pair]) == [1, 1]
        # Its actors ended with the reservation.
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(pair[0].add.remote())
        with outplay.reserve([{"num_cpus": 2}], timeout=60):
            pass

    def test_what_starts_inside_a_reservation_uses_it(self, engine: str) -> None:
        @outplay.remote
        class Starts:
            def work(self) -> int:
                counter = Counter.options(num_cpus=1).remote()
                return sum(outplay.get([depth.remote(1), counter.add.remote()]))

        with outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}]) as both:
            assert outplay.get(depth.options(reservation=both).remote(2), timeout=60) == 2
            starts = Starts.options(num_cpus=1, reservation=both, lends_cpus=True).remote()
            assert outplay.get(starts.work.remote(), timeout=60) == 2
        until(lambda: outplay.available_resources()["CPU"] == 2)

    def test_an_actor_that_keeps_its_cpus_starts_work_elsewhere(self, engine: str) -> None:
        @outplay.remote
        class Starts:
            def work(self) -> int:
                return int(outplay.get(depth.remote(1)))

        with outplay.reserve([{"num_cpus": 1}]) as group:
            starts = Starts.options(num_cpus=1, reservation=group).remote()
            assert outplay.get(starts.work.remote(), timeout=60) == 1

    def test_a_reservation_that_can_never_be_is_refused(self) -> None:
        with pytest.raises(outplay.ResourceError, match=r"reserve\(\) asks for num_cpus=3"):
            outplay.reserve([{"num_cpus": 1}] * 3)
        with pytest.raises(ValueError, match=r"no resource 'cpus'. Did you mean 'num_cpus'\?"):
            outplay.reserve([{"cpus": 1}])
        with outplay.reserve([{"num_cpus": 1}]) as one, pytest.raises(outplay.ResourceError, match="its reservation"):
            Counter.options(num_cpus=2, reservation=one).remote()

    def test_an_actor_takes_slots_only_if_it_asks_for_them(self, engine: str) -> None:
        counters = [Counter.remote() for _ in range(5)]
        assert outplay.get([counter.add.remote() for counter in counters]) == [1] * 5
        assert outplay.get(add_through.remote(counters[0], 1)) == 2

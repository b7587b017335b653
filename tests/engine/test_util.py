"""ActorPool, and what there is of CPUs and GPUs, on every engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay.testing.waiting import until
from outplay.util import ActorPool

pytestmark = pytest.mark.usefixtures("engine")


@outplay.remote
class Squarer:
    def square(self, x: int) -> int:
        return x * x

    def both(self, x: int) -> tuple[int, int]:
        return x, x * x

    def after(self, flag: Path, x: int) -> int:
        while not flag.exists():
            time.sleep(0.01)
        return x

    def fail(self, x: int) -> None:
        raise ValueError(x)


def square(actor: Any, x: int) -> Any:
    return actor.square.remote(x)


@pytest.fixture
def pool() -> ActorPool:
    return ActorPool([Squarer.remote() for _ in range(2)])


def test_a_pool_maps_in_order(pool: ActorPool) -> None:
    assert list(pool.map(square, range(10))) == [x * x for x in range(10)]
    assert sorted(pool.map_unordered(square, range(10))) == [x * x for x in range(10)]
    assert list(pool.map(square, [])) == []
    both = pool.map(lambda actor, x: actor.both.options(num_returns=2).remote(x), [2, 3])
    assert list(both) == [[2, 4], [3, 9]]


def test_a_pool_returns_results_one_by_one(pool: ActorPool) -> None:
    assert not pool.has_next()
    assert pool.has_free()
    for x in range(5):
        pool.submit(square, x)
    assert pool.has_next()
    assert [pool.get_next() for _ in range(2)] == [0, 1]
    assert sorted(pool.get_next_unordered(timeout=60) for _ in range(3)) == [4, 9, 16]
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_a_map_returns_its_own_results_only(pool: ActorPool) -> None:
    pool.submit(square, 10)
    assert list(pool.map(square, [1, 2, 3])) == [1, 4, 9]
    pool.submit(square, 11)
    assert sorted(pool.map_unordered(square, [1, 2, 3])) == [1, 4, 9]
    assert [pool.get_next(), pool.get_next()] == [100, 121]


def test_a_pool_gives_up_after_its_timeout(engine: str, pool: ActorPool, tmp_path: Path) -> None:
    if engine == "inline":
        pytest.skip("inline, a call has run when it returns")
    flag = tmp_path / "go"

    def after(actor: Any, x: int) -> Any:
        return actor.after.remote(flag, x)

    for x in range(3):
        pool.submit(after, x)
    assert not pool.has_free()
    for get_next in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(TimeoutError, match=r"not ready in 0\.2 s"):
            get_next(timeout=0.2)
    with pytest.raises(TimeoutError, match="it was discarded"):
        pool.get_next(timeout=0.2, ignore_if_timedout=True)
    flag.touch()
    assert [pool.get_next(), pool.get_next()] == [1, 2]
    assert not pool.has_next()


def test_who_is_slow_does_not_hold_up_the_others(engine: str, pool: ActorPool, tmp_path: Path) -> None:
    if engine == "inline":
        pytest.skip("inline, a call has run when it returns")
    flag = tmp_path / "go"
    pool.submit(lambda actor, x: actor.after.remote(flag, x), -1)
    assert list(pool.map(square, range(5))) == [0, 1, 4, 9, 16]
    flag.touch()
    assert pool.get_next() == -1


def test_errors_are_raised_in_their_turn_and_the_pool_goes_on(pool: ActorPool) -> None:
    functions = [square, lambda actor, x: actor.fail.remote(x), lambda actor, x: actor.square.remote(), lambda *_: 3]
    for function in [*functions, square, square]:
        pool.submit(function, 4)
    assert pool.get_next() == 16
    with pytest.raises(outplay.TaskError, match="ValueError: 4"):
        pool.get_next()
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        pool.get_next()
    with pytest.raises(TypeError, match=r"must return what actor\.method\.remote\(…\) returns, not int"):
        pool.get_next()
    assert [pool.get_next(), pool.get_next()] == [16, 16]


def test_actors_join_and_leave_a_pool() -> None:
    one, two = Squarer.remote(), Squarer.remote()
    pool = ActorPool([one])
    with pytest.raises(ValueError, match="is in the pool already"):
        pool.push(one)
    assert pool.pop_idle() == one
    assert pool.pop_idle() is None
    assert not pool.has_free()
    pool.submit(square, 3)
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(ValueError, match="has no actors"):
        next(pool.map(square, [4]))
    pool.push(two)
    assert [pool.get_next(), pool.get_next()] == [9, 16]


def test_resources_are_told() -> None:
    assert outplay.cluster_resources() == {"CPU": 2.0, "GPU": float(gpus())}
    until(lambda: outplay.available_resources() == outplay.cluster_resources())
    actor = Squarer.options(num_cpus=1).remote()
    outplay.get(actor.square.remote(1))
    until(lambda: outplay.available_resources()["CPU"] == 1.0)
    with outplay.reserve([{"num_cpus": 1}], timeout=60):
        until(lambda: outplay.available_resources()["CPU"] == 0.0)
    outplay.kill(actor)
    until(lambda: outplay.available_resources()["CPU"] == 2.0)

    @outplay.remote
    def inside() -> Any:
        return outplay.cluster_resources()

    assert outplay.get(inside.remote()) == outplay.cluster_resources()


def gpus() -> int:
    from outplay.machine import visible_gpus

    return len(visible_gpus())


def test_nodes_are_told() -> None:
    (node,) = outplay.nodes()
    assert set(node) == {"NodeID", "Alive", "NodeManagerAddress", "NodeManagerHostname", "Resources"}
    assert node["Alive"]
    assert node["Resources"] == outplay.cluster_resources()
    assert node["NodeManagerHostname"] == os.uname().nodename

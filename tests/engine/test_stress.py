"""Random programs against a small store: whatever happens, nobody ever reads what is not theirs."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

import outplay

SIZE = 60_000  # as float64, well above what travels inside a message


def fill(number: int, size: int = SIZE) -> Any:
    return np.full(size, float(number))


def is_intact(array: Any, number: int) -> bool:
    return bool(array.min() == array.max() == number)


@outplay.remote(max_restarts=-1)
class Keeper:
    def __init__(self, number: int, array: Any) -> None:
        assert is_intact(array, number)
        self.kept: dict[int, Any] = {number: array}
        self.refs: dict[int, Any] = {}

    def keep(self, number: int, array: Any) -> bool:
        self.kept[number] = array
        return is_intact(array, number)

    def keep_ref(self, number: int, refs: list[Any]) -> bool:
        self.refs[number] = refs[0]
        return is_intact(outplay.get(refs[0]), number)

    def look(self, number: int, array: Any) -> bool:
        return is_intact(array, number)

    def make(self, number: int) -> Any:
        return fill(number)

    def make_refs(self, number: int) -> list[Any]:
        return [outplay.put(fill(number)), double.remote(number)]

    def check(self, forget: int) -> bool:
        intact = all(is_intact(array, number) for number, array in self.kept.items())
        intact &= all(is_intact(outplay.get(ref), number) for number, ref in self.refs.items())
        for kept in (self.kept, self.refs):
            for number in list(kept)[:forget]:
                del kept[number]
        return intact


@outplay.remote
def double(number: int) -> Any:
    return fill(2 * number)


def run_program(seed: int, seconds: float, with_deaths: bool) -> int:
    rng = random.Random(seed)
    number, done, until = 0, 0, time.monotonic() + seconds
    keepers = [Keeper.remote(0, fill(0)) for _ in range(3)]
    held: list[tuple[int, Any, Any]] = []  # number, Ref, view
    while time.monotonic() < until:
        number += 1
        keeper = rng.choice(keepers)
        step = rng.randrange(10)
        try:
            if step == 0:
                ref = outplay.put(fill(number))
                held.append((number, ref, outplay.get(ref) if rng.random() < 0.5 else None))
            elif step == 1:
                assert outplay.get(keeper.keep.remote(number, fill(number)), timeout=60)
            elif step == 2:
                assert outplay.get(keeper.keep.remote(number, outplay.put(fill(number))), timeout=60)
            elif step == 3:
                assert outplay.get(keeper.keep_ref.remote(number, [outplay.put(fill(number))]), timeout=60)
            elif step == 4:
                refs = [keeper.look.remote(number, fill(number)) for _ in range(4)]
                assert all(outplay.get(refs, timeout=60))
            elif step == 5:
                held.append((number, None, outplay.get(keeper.make.remote(number), timeout=60)))
            elif step == 6:
                stored, doubled = outplay.get(keeper.make_refs.remote(number), timeout=60)
                held += [(number, stored, None), (2 * number, doubled, None)]
            elif step == 7:
                assert outplay.get(keeper.look.remote(2 * number, double.remote(number)), timeout=60)
            elif step == 8:
                assert outplay.get(keeper.check.remote(rng.randrange(5)), timeout=60)
            elif held and rng.random() < 0.5:
                passed_on = rng.choice(held)
                if passed_on[1] is not None:
                    assert outplay.get(keeper.look.remote(passed_on[0], passed_on[1]), timeout=60)
            elif with_deaths and rng.random() < 0.1:
                position = rng.randrange(len(keepers))
                outplay.kill(keepers[position])
                keepers[position] = Keeper.remote(number, fill(number))
            done += 1
        except (outplay.ActorDiedError, outplay.ObjectLostError):
            assert with_deaths
        for known, ref, view in held:
            assert view is None or is_intact(view, known)
            if ref is not None and rng.random() < 0.1:
                try:
                    assert is_intact(outplay.get(ref, timeout=60), known)
                except outplay.ObjectLostError:
                    assert with_deaths
        while len(held) > 20:
            held.pop(rng.randrange(len(held)))
        if rng.random() < 0.2:
            for keeper in keepers:
                keeper.check.remote(10)
    return done


@pytest.fixture
def engine_with_a_small_store() -> Any:
    outplay.init("process", num_cpus=2, object_store_bytes=100_000_000)
    yield
    outplay.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("engine_with_a_small_store")
@pytest.mark.parametrize("with_deaths", [False, True])
def test_random_programs(with_deaths: bool) -> None:
    assert run_program(seed=1, seconds=5, with_deaths=with_deaths) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("engine_with_a_small_store")
@pytest.mark.parametrize("seed", range(4))
def test_many_random_programs(seed: int) -> None:
    assert run_program(seed=100 + seed, seconds=45, with_deaths=seed % 2 == 1) > 0

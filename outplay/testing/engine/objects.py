"""Conformance tests of objects and Refs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import outplay
from outplay.testing.engine.samples import add, both, identity


@pytest.mark.usefixtures("engine")
class ObjectConformance:
    """Refs, values, serialization."""

    def test_a_task_returns_a_ref_to_its_result(self) -> None:
        ref = add.remote(1, b=2)
        assert isinstance(ref, outplay.Ref)
        assert outplay.get(ref) == 3
        assert outplay.get([add.remote(i) for i in range(20)]) == [i + 10 for i in range(20)]

    def test_num_returns_gives_that_many_refs(self) -> None:
        first, second = both.remote("a", 2)
        assert outplay.get(first) == "a"
        assert outplay.get(second) == 2
        three = identity.options(num_returns=3).remote([1, 2, 3])
        assert outplay.get(three) == [1, 2, 3]

    def test_num_returns_that_does_not_fit_the_result_is_an_error(self) -> None:
        first, _ = identity.options(num_returns=2).remote([1, 2, 3])
        with pytest.raises(outplay.TaskError, match=r"must return 2 values \(num_returns\), but returned 3 values"):
            outplay.get(first)

    def test_a_ref_as_an_argument_arrives_as_its_value(self) -> None:
        assert outplay.get(add.remote(outplay.put(5), b=add.remote(1, 1))) == 7

    def test_a_ref_inside_a_container_stays_a_ref(self) -> None:
        @outplay.remote
        def look(items: list[Any]) -> Any:
            return isinstance(items[0], outplay.Ref), outplay.get(items[0])

        assert outplay.get(look.remote([outplay.put("inside")])) == (True, "inside")
        assert outplay.get(look.remote([add.remote(1, 1)])) == (True, 2)

    def test_a_ref_can_be_returned_and_used(self) -> None:
        @outplay.remote
        def make() -> Any:
            return [outplay.put(np.arange(50_000)), add.remote(20, 1)]

        stored, computed = outplay.get(make.remote())
        assert outplay.get(stored).sum() == 50_000 * 49_999 // 2
        assert outplay.get(computed) == 21

    def test_a_ref_survives_in_a_stored_object(self) -> None:
        inner = outplay.put(np.ones(40_000))
        outer = outplay.put({"inner": inner})
        del inner
        assert outplay.get(outplay.get(outer)["inner"]).sum() == 40_000

    def test_wait_separates_what_is_ready(self) -> None:
        refs = [add.remote(i) for i in range(4)]
        ready, others = outplay.wait(refs, num_returns=4, timeout=60)
        assert ready == refs
        assert others == []
        ready, others = outplay.wait(refs, num_returns=1)
        assert len(ready) == 1
        assert set(ready + others) == set(refs)

    @pytest.mark.parametrize("count", [0, 3])
    def test_wait_for_an_impossible_number_is_refused(self, count: int) -> None:
        refs = [outplay.put(1), outplay.put(2)]
        with pytest.raises(ValueError, match="num_returns"):
            outplay.wait(refs, num_returns=count)

    def test_wait_and_get_refuse_what_is_not_a_ref(self) -> None:
        with pytest.raises(TypeError, match="item 1 of the list is no Ref, but of type int"):
            outplay.get([outplay.put(1), 2])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a list of Refs, not int"):
            outplay.get(3)  # type: ignore[call-overload]
        same = outplay.put(1)
        with pytest.raises(ValueError, match="same Ref twice"):
            outplay.wait([same, same])
        with pytest.raises(TypeError, match="in the store already"):
            outplay.put(same)

    def test_arguments_and_results_are_passed_by_value(self) -> None:
        @outplay.remote
        def spoil(items: list[int]) -> list[int]:
            items.append(99)
            return items

        mine = [1, 2]
        stored = outplay.put(mine)
        mine.append(3)
        assert outplay.get(stored) == [1, 2]
        assert outplay.get(spoil.remote(mine)) == [1, 2, 3, 99]
        assert mine == [1, 2, 3]
        assert outplay.get(spoil.remote(stored)) == [1, 2, 99]
        assert outplay.get(stored) == [1, 2]
        once = outplay.get(stored)
        once.append(4)
        assert outplay.get(stored) == [1, 2]

    @pytest.mark.parametrize("size", [10, 1_000_000])
    def test_arrays_arrive_read_only(self, size: int) -> None:
        @outplay.remote
        def is_writable(array: Any) -> bool:
            return bool(array.flags.writeable)

        array = np.arange(float(size))
        assert outplay.get(is_writable.remote(array)) is False
        assert outplay.get(is_writable.remote(outplay.put(array))) is False
        arrived = outplay.get(outplay.put(array))
        assert not arrived.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            arrived[0] = 1
        assert (arrived == array).all()

    def test_a_view_outlives_its_ref(self) -> None:
        views = []
        for number in range(20):
            ref = outplay.put(np.full(100_000, number))
            views.append(outplay.get(ref))
            del ref
        for number, view in enumerate(views):
            assert (view == number).all()

    def test_a_result_outlives_the_arguments_it_is_a_view_of(self) -> None:
        @outplay.remote
        def middle(array: Any) -> Any:
            return array[1:-1]

        results = [middle.remote(np.full(100_000, number)) for number in range(5)]
        for number, value in enumerate(outplay.get(results)):
            assert value.shape == (99_998,)
            assert (value == number).all()

    def test_an_object_that_cannot_travel_names_itself(self) -> None:
        with pytest.raises(outplay.SerializationError, match=r"argument 0 of identity.*\['deep'\]\[1\].*lock"):
            identity.remote({"deep": [1, threading.Lock()]})
        with pytest.raises(outplay.SerializationError, match="argument 'value' of identity"):
            identity.remote(value=threading.Lock())
        with pytest.raises(outplay.SerializationError, match=r"put\(\)"):
            outplay.put(threading.Lock())

    def test_whatever_pickling_raises_is_told(self) -> None:
        import multiprocessing

        with pytest.raises(outplay.SerializationError, match="argument 0 of identity"):
            identity.remote(multiprocessing.Lock())

        @outplay.remote(max_retries=0)
        def make() -> Any:
            return multiprocessing.Lock()

        with pytest.raises(outplay.SerializationError, match=r"make"):
            outplay.get(make.remote())

    def test_a_result_that_cannot_travel_names_itself(self) -> None:
        @outplay.remote
        def make_lock() -> Any:
            return threading.Lock()

        with pytest.raises(outplay.SerializationError, match=r"make_lock.*lock"):
            outplay.get(make_lock.remote())

    def test_closures_lambdas_and_local_classes_travel(self) -> None:
        factor = 3

        class Box:
            def __init__(self, value: int) -> None:
                self.value = value

        @outplay.remote
        def scaled(box: Any, function: Any) -> Any:
            return Box(function(box.value) * factor)

        assert outplay.get(scaled.remote(Box(2), lambda x: x + 1)).value == 9

    def test_many_small_objects_at_once(self) -> None:
        refs = [outplay.put(i) for i in range(500)] + [add.remote(i, 0) for i in range(100)]
        assert outplay.get(refs) == [*range(500), *range(100)]

    def test_refs_are_only_carried_by_the_engine(self, engine: str) -> None:
        import copy
        import pickle

        ref = outplay.put(1)
        assert copy.copy(ref) is ref
        assert copy.deepcopy([ref])[0] is ref
        assert {ref: 1}[ref] == 1
        if engine != "ray":
            with pytest.raises(outplay.SerializationError, match="only be pickled inside"):
                pickle.dumps(ref)

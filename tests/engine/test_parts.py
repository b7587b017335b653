"""The engine's parts without its processes: what must always hold."""

from __future__ import annotations

import socket
import typing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.engine import serialize
from outplay.engine.options import Options, parse_bundles
from outplay.engine.process.payload import PAGE, segment_size
from outplay.engine.process.wire import Channel
from outplay.engine.serialize import ALIGNMENT, layout
from outplay.engine.slots import Lease, Slots
from outplay.engine.typed import could_be, describe
from outplay.errors import ResourceError, TaskError

# Serialising

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def round_trip(value: Any) -> Any:
    packed = serialize.dumps(value, "it")
    return serialize.loads(packed.data, [bytes(buffer) for buffer in packed.buffers])


@given(plain)
def test_plain_values_survive(value: Any) -> None:
    assert round_trip(value) == value


@given(
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(["f4", "f8", "i1", "u2", "?", "c8", "U3", "M8[s]"]),
    st.booleans(),
)
def test_arrays_of_any_shape_survive(shape: tuple[int, ...], dtype: str, transposed: bool) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    array = array.T if transposed else array
    again = round_trip({"x": array})["x"]
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)


def test_a_task_error_keeps_its_cause_however_far_it_travels() -> None:
    inner = TaskError("inner", "trace of inner", ValueError("deep"))
    outer = round_trip(round_trip(TaskError("outer", "trace of outer", inner)))
    assert outer.cause.cause.args == ("deep",)
    assert outer.__cause__.remote_traceback == "trace of inner"


# The wire


@given(st.lists(st.binary(max_size=300) | st.integers(), min_size=1, max_size=20), st.integers(1, 7))
def test_frames_arrive_whole_however_they_are_cut(messages: list[Any], cut: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        sender, receiver = Channel(left, 1), Channel(right, 2)
        for message in messages:
            sender.send(("m", message))
        receiver.read()
        stream = bytes(receiver._in)
        receiver._in.clear()
        found: list[Any] = []
        for start in range(0, len(stream), cut):
            receiver._in += stream[start : start + cut]
            found += receiver.messages()
        assert [message for _, message in found] == messages


# Shared memory


@given(st.integers(1, 2**40))
def test_segments_are_large_enough_and_waste_little(nbytes: int) -> None:
    size = segment_size(nbytes)
    assert size >= nbytes
    assert size % PAGE == 0
    assert size <= max(PAGE, nbytes * 1.25 + PAGE)
    assert segment_size(size) == size


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=10).map(tuple))
def test_parts_of_an_object_do_not_overlap(lengths: tuple[int, ...]) -> None:
    offsets, end = layout(lengths)
    places = list(zip(offsets, lengths, strict=True))
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert all(offset + length <= after for (offset, length), (after, _) in pairwise(places))
    assert offsets[-1] + lengths[-1] <= end


# Slots

requests = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]))


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "pause", "resume", "reserve", "release"]), requests)))
def test_slots_are_never_lost_or_given_twice(steps: list[tuple[str, tuple[float, float]]]) -> None:
    slots = Slots(cpus=4, gpus=2)
    leases: list[tuple[Lease, int | None]] = []
    reserved: list[int] = []
    for number, (step, (cpus, gpus)) in enumerate(steps):
        if step == "take":
            where = reserved[-1] if reserved and number % 2 else None
            lease = slots.take(cpus, gpus, where)
            if lease is not None:
                leases.append((lease, where))
        elif step == "give" and leases:
            slots.give(leases.pop(number % len(leases))[0])
        elif step in ("pause", "resume") and leases:
            getattr(slots, step)(leases[number % len(leases)][0])
        elif step == "reserve" and slots.reserve(number, ((cpus, gpus),)):
            reserved.append(number)
        elif step == "release" and reserved:
            slots.release(reserved.pop(0))
        assert all(-1e-9 <= free <= 1 + 1e-9 for free in slots.machine.free_gpus.values())
    for lease, _ in leases:
        slots.give(lease)
    for reservation in reserved:
        slots.release(reservation)
    assert slots.machine.free_cpus == pytest.approx(4)
    assert all(free == pytest.approx(1) for free in slots.machine.free_gpus.values())


def test_a_reservation_is_all_or_none() -> None:
    slots = Slots(cpus=3, gpus=0)
    assert slots.take(2, 0) is not None
    assert not slots.reserve(1, ((1, 0), (1, 0)))
    assert slots.machine.free_cpus == 1
    with pytest.raises(ResourceError, match="at most num_cpus=3"):
        slots.check_bundles(((2, 0), (2, 0)))


def test_fractions_of_a_gpu_share_one() -> None:
    slots = Slots(cpus=8, gpus=2)
    half, other_half, whole = (slots.take(0, amount) for amount in (0.5, 0.5, 1))
    assert half is not None
    assert other_half is not None
    assert whole is not None
    assert half.gpus.keys() == other_half.gpus.keys() != whole.gpus.keys()
    assert slots.take(0, 0.25) is None
    with pytest.raises(ValueError, match="an integer"):
        slots.check("it", 0, 1.5)


# Types


@pytest.mark.parametrize(
    ("given_type", "expected", "answer"),
    [
        (int, int, True),
        (int, str, False),
        (bool, int, True),
        (int, float, True),
        (float, int, False),
        (dict, dict[str, int], True),
        (dict[str, int], list[int], False),
        (int, int | None, True),
        (str, int | None, False),
        (int | str, str, True),
        (type(None), None, True),
        (typing.Any, int, True),
        (int, typing.Any, True),
        (object, int, True),
        (typing.Optional[int], typing.Optional[str], True),  # noqa: UP045 - both may be None
    ],
)
def test_a_type_is_refused_only_where_that_is_certain(given_type: Any, expected: Any, answer: bool) -> None:
    assert could_be(given_type, expected) is answer


def test_types_are_named_as_their_users_write_them() -> None:
    assert describe(int) == "int"
    assert describe(dict[str, np.ndarray]) == "dict[str, numpy.ndarray]"
    assert describe(type(None)) == "None"
    assert describe(np.ndarray) == "numpy.ndarray"


# Options


def test_options_are_laid_over_each_other() -> None:
    options = Options().updated("function", {"num_cpus": 2}).updated("function", {"num_returns": 3})
    assert (options.num_cpus, options.num_returns) == (2, 3)
    assert (Options().cpus(1), options.cpus(1)) == (1, 2.0)


@pytest.mark.parametrize("bundles", [[], "x", [1], [{"num_cpus": -1}], [{"num_cpus": None}], [{"memory": 1}]])
def test_bundles_that_make_no_sense_are_refused(bundles: Any) -> None:
    with pytest.raises(ValueError, match=r"reserve\(\)|num_cpus"):
        parse_bundles(bundles)

"""How the process engine writes large objects into shared memory."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outplay
from outplay.engine import serialize
from outplay.engine.process import copying

MIB = 1024 * 1024


some_bytes = st.lists(st.binary(max_size=9000), min_size=1, max_size=6)


@given(some_bytes, some_bytes)
def test_what_is_written_is_there_on_new_and_on_used_pages(first: list[bytes], second: list[bytes]) -> None:
    fd = os.memfd_create("test")
    size = 128 * 1024
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_MIN_BYTES_PER_THREAD", 100)  # so that threads share the work
        for parts in (first, second, first):
            offsets, _ = serialize.layout([len(part) for part in parts])
            copying.write(memory, fd, [(o, memoryview(p)) for o, p in zip(offsets, parts, strict=True)])
            for offset, part in zip(offsets, parts, strict=True):
                assert memory[offset : offset + len(part)] == part
    os.close(fd)


@given(offset=st.integers(0, 10_000), length=st.integers(1, 100_000), refused=st.booleans())
def test_new_memory_is_filled_from_both_ends(offset: int, length: int, refused: bool) -> None:
    before, part = bytes([7]) * offset, np.random.default_rng(length).bytes(length)
    size = 128 * 1024
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_CHUNK", mmap.PAGESIZE)
        if refused:  # as by a system that does not know this call
            patch.setattr(copying, "_MADV_POPULATE_WRITE", 12345)
        copying.write(memory, fd, [(0, memoryview(before)), (offset, memoryview(part))])
        assert memory[:] == before + part + bytes(size - offset - length)
    os.close(fd)


def test_large_bytes_are_not_copied_on_their_way_to_the_store() -> None:
    large, small = bytes(200_000), bytes(1000)
    for value in (large, [small, {"a": large}], (np.zeros(3), bytearray(large))):
        packed = serialize.dumps(value, "it")
        assert any(len(piece) == len(large) for piece in packed.stream)
        assert packed.stream_nbytes == len(packed.data)
    packed = serialize.dumps({"a": large}, "it")
    assert any(piece is large for piece in packed.stream)
    assert len(serialize.dumps([small] * 3, "it").stream) == 1


@pytest.fixture
def limited_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system refuses to write beyond 8 MiB, as it would without memory."""
    monkeypatch.setattr(copying, "_CHUNK", 1024 * MIB)  # the limit holds for system calls, not for mappings
    outplay.init("process", num_cpus=1, object_store_bytes=200 * MIB)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    outplay.put(np.zeros(4 * MIB, np.uint8))  # before: what is needed is loaded and started
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    outplay.shutdown()


def test_without_memory_a_put_is_refused_and_nothing_is_lost(limited_files: None) -> None:
    for _ in range(50):  # the store would be full if what was refused were kept
        with pytest.raises(outplay.ObjectStoreFullError, match=r"no [0-9,]+ bytes of memory left"):
            outplay.put(np.zeros(50 * MIB, np.uint8))
    assert outplay.get(outplay.put(np.ones(7 * MIB, np.uint8))).sum() == 7 * MIB

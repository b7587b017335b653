"""The random streams that all code of a process shares, and how an environment gets its own.

Environments should draw from `self.np_random`. Many draw from `np.random` or `random` instead; some seed these in
`reset`. Several such environments in one process would disturb each other, and the result of a run would depend on
how they are spread over workers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import gymnasium
import numpy as np

_SEED = 0  # of what an environment draws before its first episode


class OwnStream(Protocol):
    """A stream that takes the place of one that the whole process shares, between one `swap` and the next."""

    def __init__(self, seed: int) -> None: ...

    def swap(self) -> None: ...

    def state(self) -> Any:
        """Something that changes when numbers are drawn; only while it is not in place."""


class _NumpyStream:
    """In place of `np.random.rand`, `np.random.choice` …

    numpy keeps the second number of a pair of normal ones. It is dropped with every swap, so each call of an
    environment begins without one.
    """

    def __init__(self, seed: int) -> None:
        self._generator: Any = np.random.MT19937(seed)

    def swap(self) -> None:
        before = np.random.get_bit_generator()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._generator)  # type: ignore[attr-defined]
        self._generator = before

    def state(self) -> Any:
        state = self._generator.state["state"]
        return state["pos"], state["key"].tobytes()


class _PythonStream:
    """In place of `random.random`, `random.choice` …"""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()  # noqa: S311 - what the environment would have

    def swap(self) -> None:
        before = random.getstate()
        random.setstate(self._state)
        self._state = before

    def state(self) -> Any:
        return self._state


class _TorchStream:
    """In place of `torch.rand`, `torch.randint` …, on the CPU."""

    def __init__(self, seed: int) -> None:
        import torch

        self._shared = torch.default_generator
        self._state = torch.Generator().manual_seed(seed).get_state()

    def swap(self) -> None:
        before = self._shared.get_state()
        self._shared.set_state(self._state)
        self._state = before

    def state(self) -> Any:
        return self._state.numpy().tobytes()


_STREAMS: dict[str, type[OwnStream]] = {"numpy": _NumpyStream, "random": _PythonStream, "torch": _TorchStream}


@contextmanager
def watching() -> Iterator[list[str]]:
    """The names of the shared streams that the block draws from or seeds, once it is over. It leaves them alone."""
    used: list[str] = []
    # torch takes long to import: nobody draws from what is not there.
    kinds = {name: kind for name, kind in _STREAMS.items() if name in sys.modules}
    streams = {name: kind(_SEED) for name, kind in kinds.items()}
    try:
        with _in_place(list(streams.values())):
            yield used
    finally:
        used += [name for name, stream in streams.items() if stream.state() != kinds[name](_SEED).state()]


@contextmanager
def _in_place(streams: list[OwnStream]) -> Iterator[None]:
    for stream in streams:
        stream.swap()
    try:
        yield
    finally:
        for stream in streams:
            stream.swap()


class OwnStreams(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with shared streams of its own: in place while it is made and in its calls.

    They are seeded with each episode, so an episode depends on its seed alone, also where the environment itself
    never seeds them.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], names: tuple[str, ...]) -> None:
        self._names = names
        self.seed_streams(_SEED)
        super().__init__(self.call(make))

    def seed_streams(self, seed: int) -> None:
        self._streams = [_STREAMS[name](seed) for name in self._names]

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the function returns, called with this environment's streams in place."""
        with _in_place(self._streams):
            return function(*arguments, **options)

    def reset(self, **options: Any) -> Any:
        if (seed := options.get("seed")) is not None:
            self.seed_streams(seed)
        return self.call(self.env.reset, **options)

    def step(self, action: Any) -> Any:
        return self.call(self.env.step, action)

    def render(self) -> Any:
        return self.call(self.env.render)

    def close(self) -> None:
        self.call(self.env.close)

"""Global random generators of a process (numpy, random, torch), and a wrapper that gives each environment its own.

Environments should use `self.np_random`. Many use `np.random` or `random` instead; some seed these in `reset`. Several
such environments in one process would influence each other. The result of a run would then depend on the number of
workers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import gymnasium
import numpy as np

_SEED = 0  # until the first episode is seeded


class OwnStream(Protocol):
    """A random generator that can be swapped with a global one. `swap` installs it; the next `swap` removes it."""

    def __init__(self, seed: int) -> None: ...

    def swap(self) -> None: ...

    def state(self) -> Any:
        """A value that changes when numbers are drawn. Valid only while the generator is not installed."""


class _NumpyStream:
    """Replaces the generator of `np.random.rand`, `np.random.choice` …

    numpy draws normal numbers in pairs and caches the second one. Every swap drops the cache, so each call of an
    environment starts without it.
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
    """Replaces the generator of `random.random`, `random.choice` …"""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()  # noqa: S311 - the same generator as the global one

    def swap(self) -> None:
        before = random.getstate()
        random.setstate(self._state)
        self._state = before

    def state(self) -> Any:
        return self._state


class _TorchStream:
    """Replaces the generator of `torch.rand`, `torch.randint` …, on the CPU."""

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
def detect_global_streams() -> Iterator[list[str]]:
    """Detect which global generators the block draws from or seeds. Their own states do not change.

    Yields a list that holds the names after the block.
    """
    used: list[str] = []
    # Only imported modules: importing torch is slow, and a module that is not imported is not used.
    kinds = {name: kind for name, kind in _STREAMS.items() if name in sys.modules}
    streams = {name: kind(_SEED) for name, kind in kinds.items()}
    try:
        with _installed(list(streams.values())):
            yield used
    finally:
        used += [name for name, stream in streams.items() if stream.state() != kinds[name](_SEED).state()]


@contextmanager
def _installed(streams: list[OwnStream]) -> Iterator[None]:
    for stream in streams:
        stream.swap()
    try:
        yield
    finally:
        for stream in streams:
            stream.swap()


class OwnStreams(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that gives an environment its own copy of the global generators.

    The copies are installed while the environment is created and during each of its calls. They are seeded at every
    reset. So an episode depends only on its seed and actions, even if the environment never seeds the generators.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], names: tuple[str, ...]) -> None:
        self._names = names
        self.seed_streams(_SEED)
        super().__init__(self.call(make))

    def seed_streams(self, seed: int) -> None:
        self._streams = [_STREAMS[name](seed) for name in self._names]

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function with this environment's generators installed."""
        with _installed(self._streams):
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

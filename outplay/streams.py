"""Random streams: every random number of a run comes from a named stream.

The key of a stream is the run's seed, its purpose, and indices such as the EnvGroup and the episode. It does not
contain the worker or the process. So the numbers do not depend on placement or restarts, and the state of a stream does
not need to be saved.

>>> stream(7, "minibatches", 3).integers(10) == stream(7, "minibatches", 3).integers(10)
True
"""

from __future__ import annotations

import zlib

import numpy as np

_SEEDS = 2**31 - 1  # every environment accepts seeds below this


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *keys])


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The random generator for this purpose and these keys."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, keys)))


def seed_for(seed: int, purpose: str, *keys: int) -> int:
    """An integer seed for this purpose and these keys: for an environment's episode, or torch's initial weights."""
    return int(_sequence(seed, purpose, keys).generate_state(1)[0]) % _SEEDS

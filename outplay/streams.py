"""Random streams: every random number of a run comes from a stream with a name.

A stream is keyed by the run's seed, by what it is for, and by numbers such as the EnvGroup and the episode; never by
the worker or the process that draws from it. So the numbers are the same wherever, and after however many restarts,
they are drawn, and no stream's state needs saving.

>>> stream(7, "minibatches", 3).integers(10) == stream(7, "minibatches", 3).integers(10)
True
"""

from __future__ import annotations

import zlib

import numpy as np

_SEEDS = 2**31 - 1  # what every environment accepts as a seed


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *keys])


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A generator for this purpose alone."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, keys)))


def seed_for(seed: int, purpose: str, *keys: int) -> int:
    """A seed for something that takes one: an environment's episode, torch's initial weights."""
    return int(_sequence(seed, purpose, keys).generate_state(1)[0]) % _SEEDS

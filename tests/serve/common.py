"""What tests of serving share: trainers with random weights, and servers on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from outplay import PPO, Algorithm
from outplay.serve import PolicyServer, PolicySource, ServeSettings

SMALL = {"num_workers": 0, "num_envs": 2}


def randomised(trainer: Algorithm, seed: int = 0) -> Algorithm:
    """With weights that make actions differ from each other. Buffers, such as normalisers, stay positive."""
    rng = np.random.default_rng(seed)
    weights = trainer.get_policy().get_weights()
    changed = {
        name: rng.normal(0, 0.05 if "bias" in name else 0.5, array.shape).astype(np.float32)
        for name, array in weights.items()
    }
    kept = {name: array for name, array in weights.items() if "observation_" in name or "atoms" in name}
    trainer.get_policy().set_weights({**changed, **kept})
    return trainer


def saved_cartpole(folder: Path, **config: Any) -> tuple[Algorithm, Path]:
    trainer = randomised(PPO("CartPole-v1", {**SMALL, **config}))
    return trainer, Path(trainer.save(folder))


@contextmanager
def serving(path: Path, env: Any = None, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a server that runs in a thread."""
    with (
        PolicyServer(PolicySource.find(path, env=env), ServeSettings(port=0, **settings)) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client,
    ):
        yield client

"""A searcher with a state of its own is restored with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outplay import tune
from outplay.tune.search import Searcher


class OwnGenerator(Searcher):
    """Draws from a generator that no seed determines."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": float(self.rng.uniform())}

    def save(self) -> dict[str, Any]:
        return dict(self.rng.bit_generator.state)

    def restore(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state


def train(config: dict[str, Any]) -> dict[str, float]:
    return {"v": config["x"]}


def test_a_state_that_was_saved_is_restored(tmp_path: Path) -> None:
    config = {"x": tune.uniform(0, 1)}
    settings: dict[str, Any] = {"config": config, "name": "s", "storage_path": tmp_path, "verbose": 0}
    searcher = OwnGenerator()
    first = tune.run(train, search_alg=searcher, num_samples=3, **settings)
    expected = float(searcher.rng.uniform())
    more = tune.run(train, search_alg=OwnGenerator(), num_samples=4, resume=True, **settings)
    assert [trial.values for trial in more.trials[:3]] == [trial.values for trial in first.trials]
    assert more.trials[3].values == {"x": expected}

"""Rows for tests of trainers."""

from __future__ import annotations

import numpy as np

from outplay import preprocessors

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
ROWS = {"x": X, "kind": np.where(X[:, 0] > 0, "a", "b"), "label": (X[:, 0] + X[:, 1] > 0).astype(np.int64)}
PARTS = {"train": {n: c[:300] for n, c in ROWS.items()}, "valid": {n: c[300:] for n, c in ROWS.items()}}


def chain() -> preprocessors.Chain:
    return preprocessors.Chain(preprocessors.StandardScaler(["x"]), preprocessors.OrdinalEncoder(["kind"]))

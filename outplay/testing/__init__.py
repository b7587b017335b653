"""Conformance suites: what Outplay's own engines, algorithms and vectors pass, for those of another package.

Each is a pytest class. A test file subclasses it and says what is to be tested:

>>> from outplay.testing import AlgorithmConformance
>>> class TestMine(AlgorithmConformance):
...     algorithm = Mine

`outplay.testing.probes` has the tiny environments that they use. pytest is needed: pip install 'outplay[testing]'.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outplay.testing.algorithm import AlgorithmConformance
    from outplay.testing.engine.suite import EngineConformance
    from outplay.testing.vector import VectorConformance

# Imported when they are used: workers import the probes, and should not need pytest for it.
_SUITES = {
    "AlgorithmConformance": "outplay.testing.algorithm",
    "EngineConformance": "outplay.testing.engine.suite",
    "VectorConformance": "outplay.testing.vector",
}
if sys.modules.get("pytest") is not None:  # so that a failing assert shows its values
    sys.modules["pytest"].register_assert_rewrite("outplay.testing.engine", *_SUITES.values())


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module 'outplay.testing' has no attribute {name!r}")
    try:
        import pytest  # noqa: F401
    except ImportError as error:
        raise ImportError(f"outplay.testing.{name} needs pytest: pip install 'outplay[testing]'") from error
    return getattr(import_module(_SUITES[name]), name)


__all__ = ["AlgorithmConformance", "EngineConformance", "VectorConformance"]

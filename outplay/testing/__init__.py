"""Conformance suites: Outplay's own tests of engines, algorithms, vectors and searchers, for those of other packages.

Each suite is a pytest class. Subclass it in a test file and set the class to test:

>>> from outplay.testing import AlgorithmConformance
>>> class TestMine(AlgorithmConformance):
...     algorithm = Mine

`outplay.testing.probes` contains the tiny environments of the suites. They need pytest: pip install 'outplay[testing]'.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outplay.testing.algorithm import AlgorithmConformance
    from outplay.testing.engine.suite import EngineConformance
    from outplay.testing.searcher import SearcherConformance
    from outplay.testing.vector import VectorConformance

# Imported on first use: workers import the probes, and should not need pytest.
_SUITES = {
    "AlgorithmConformance": "outplay.testing.algorithm",
    "EngineConformance": "outplay.testing.engine.suite",
    "SearcherConformance": "outplay.testing.searcher",
    "VectorConformance": "outplay.testing.vector",
}
if sys.modules.get("pytest") is not None:  # so that pytest shows the values of a failed assertion
    sys.modules["pytest"].register_assert_rewrite("outplay.testing.engine", *_SUITES.values())


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module 'outplay.testing' has no attribute {name!r}")
    try:
        import pytest  # noqa: F401
    except ImportError as error:
        raise ImportError(f"outplay.testing.{name} needs pytest: pip install 'outplay[testing]'") from error
    return getattr(import_module(_SUITES[name]), name)


__all__ = ["AlgorithmConformance", "EngineConformance", "SearcherConformance", "VectorConformance"]

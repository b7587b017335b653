"""Conformance suites: what Outplay's own engines, algorithms and vectors pass, for those of another package.

Each is a pytest class. A test file subclasses it and says what is to be tested:

>>> from outplay.testing import AlgorithmConformance
>>> class TestMine(AlgorithmConformance):
...     algorithm = Mine

`outplay.testing.probes` has the tiny environments that they use. pytest is needed: pip install 'outplay[testing]'.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outplay.testing.algorithm import AlgorithmConformance
    from outplay.testing.engine.suite import EngineConformance
    from outplay.testing.vector import VectorConformance

# Imported when they are used: workers import the probes, and should not need pytest for it.
_SUITES = {
    "AlgorithmConformance": ("algorithm",),
    "EngineConformance": ("engine.suite", "engine.actors", "engine.failures", "engine.objects", "engine.tasks"),
    "VectorConformance": ("vector",),
}


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module 'outplay.testing' has no attribute {name!r}")
    try:
        import pytest
    except ImportError as error:
        raise ImportError(f"outplay.testing.{name} needs pytest: pip install 'outplay[testing]'") from error
    modules = [f"outplay.testing.{module}" for module in _SUITES[name]]
    pytest.register_assert_rewrite(*modules)  # so that a failing assert shows its values
    return getattr(import_module(modules[0]), name)


__all__ = ["AlgorithmConformance", "EngineConformance", "VectorConformance"]

"""Conformance suite for engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import outplay
from outplay.testing.engine.actors import ActorConformance
from outplay.testing.engine.failures import FailureConformance
from outplay.testing.engine.objects import ObjectConformance
from outplay.testing.engine.tasks import TaskConformance


class EngineConformance(ObjectConformance, TaskConformance, ActorConformance, FailureConformance):
    """Tests of an engine with two CPUs. Set the arguments of `outplay.init`.

    >>> class TestTwoProcesses(EngineConformance):
    ...     settings = {"engine": "process", "num_cpus": 2}

    The fixture `engine` is the name of the engine.
    """

    settings: ClassVar[dict[str, Any]] = {"engine": "process", "num_cpus": 2}

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[str]:
        outplay.shutdown()
        outplay.init(**cls.settings)
        yield cls.settings["engine"]
        outplay.shutdown()

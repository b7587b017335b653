"""Studies of tests lie in temporary folders, and print nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import tune


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tune.ExperimentAnalysis]:
    """`tune.run` with a folder of the test's own."""
    return functools.partial(tune.run, storage_path=tmp_path, verbose=0)


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The entries of a study's journal, by its name."""
    from outplay.tune.folder import StudyFolder

    return lambda name: list(StudyFolder(tmp_path / name).entries())

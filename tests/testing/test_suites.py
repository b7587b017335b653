"""The suites notice what is wrong, and can be used from a package of one's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import A2C
from outplay.fragments import Batch
from outplay.testing import AlgorithmConformance, VectorConformance
from outplay.testing.waiting import until
from tests import probes
from tests.algorithms.test_conformance import SETTINGS


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_mine.py"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


ENGINE = """
from outplay.testing import EngineConformance

class TestMine(EngineConformance):
    settings = {"engine": "inline", "num_cpus": 2}
"""


@pytest.mark.slow
def test_an_engine_is_tested_by_its_settings(tmp_path: Path) -> None:
    result = run(tmp_path, ENGINE)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    broken = run(tmp_path, ENGINE.replace("2}", "3}"), "-k", "more_is_asked_for")  # the suite is for two CPUs
    assert "at most num_cpus=3" in broken.stdout  # as pytest shows a failing assert


def test_without_pytest_one_sentence_says_what_to_install(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import sys\nsys.modules['pytest'] = None\nfrom outplay.testing.probes import Walk\n"
        "from outplay.testing import EngineConformance"
    )
    assert result.stderr.strip().endswith(
        "ImportError: outplay.testing.EngineConformance needs pytest: pip install 'outplay[testing]'"
    )


class Restless(VectorConformance):
    env = probes.Restless


class Late(probes.Walk):
    """Remembers something over a reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        before = getattr(self, "place", 0.0)
        super().reset(seed=seed)
        self.place += before
        return self._observe(), {}


class Remembering(VectorConformance):
    env = Late


@pytest.mark.parametrize(
    ("suite", "test"),
    [
        (Restless, "test_equal_seeds_give_equal_episodes"),
        (Restless, "test_a_step_that_was_begun_before_is_the_same"),
        (Remembering, "test_an_ended_lane_starts_again_at_once"),
    ],
)
def test_an_environment_with_a_flaw_fails(suite: type[VectorConformance], test: str) -> None:
    pair = suite().make(3), suite().make(3)
    with pytest.raises(AssertionError):
        getattr(suite(), test)(pair)


class MergingLearner(A2C.Learner):  # type: ignore[misc]
    """Takes truncated for terminated."""

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        return super().update(replace(batch, terminated=batch.terminated | batch.truncated), timesteps, iteration)


class Merging(A2C):
    Learner = MergingLearner


class ForgetfulLearner(A2C.Learner):  # type: ignore[misc]
    """Draws from a stream that is neither seeded nor saved."""

    rng = np.random.default_rng()

    def lr(self, timesteps: int) -> float:
        return super().lr(timesteps) * self.rng.uniform(0.9, 1.1)


class Forgetful(A2C):
    Learner = ForgetfulLearner


class MergingSuite(AlgorithmConformance):
    algorithm = Merging
    config = SETTINGS["A2C"]


class ForgetfulSuite(AlgorithmConformance):
    algorithm = Forgetful
    config = SETTINGS["A2C"]


@pytest.mark.parametrize(
    ("suite", "test", "arguments"),
    [
        (MergingSuite, "test_values_bootstrap_where_an_episode_is_truncated", (True, 2.0)),
        (ForgetfulSuite, "test_workers_do_not_change_the_result", ("inline",)),
        (ForgetfulSuite, "test_an_iteration_that_fails_is_rolled_back", ()),
        (ForgetfulSuite, "test_an_iteration_interrupted_anywhere_is_rolled_back", ()),
    ],
)
def test_an_algorithm_with_a_flaw_fails(suite: type[AlgorithmConformance], test: str, arguments: Any) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(), test)(*arguments)


def test_waiting_for_something_that_does_not_happen_fails() -> None:
    assert until(lambda: 3) == 3
    with pytest.raises(AssertionError, match=r"is not true after 0\.05 s"):
        until(lambda: False, 0.05)

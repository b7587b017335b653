"""Fixtures shared by all tests, and which of them run in one process."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

import outplay

# Several processes of xdist share the cores: threads that spin while they wait for each other would take them all.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of learners, which set their number of threads themselves

ENGINES = ("inline", "process", "ray")
# On Ray, `make test` runs tasks and objects of the conformance suite, and the placement of workers.
SLOW_ON_RAY = (
    *("test_util.py", "test_queue.py", "test_actor_options.py", "test_nested.py", "test_captured.py"),
    *("test_definitions.py", "test_calls.py", "test_failures.py", "test_cancel.py", "test_actors.py"),
    "test_curriculum.py",
    "test_evaluation_placement.py",
    "test_trials_never_wait_for_each_other",
    "test_seeds",
    "test_a_lost_process",
    "test_what_does_not_fit_a_trial_uses_the_machine",
)
# Tests with workers of the conformance suite, and the algorithms whose workers do nothing of their own.
WITH_WORKERS = ("test_a_worker_that_dies_does_not_change_the_result", "test_workers_do_not_change_the_result")
SLOW_WITH_WORKERS = ("TestA2C", "TestPG", "TestPQN", "TestTD3")
# The tests of a file stay together, because they share an engine; these start programs of their own, or share nothing.
SPREAD = ("tests/test_documents.py", "tests/cli/", "tests/algorithms/test_conformance.py", "tests/envs/test_vectors.py")


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process of xdist, one after the other. So one Ray serves the whole run."""
    file = nodeid.split("::")[0]
    if file.endswith("test_ray.py") or re.search(r"\[ray[-\]]", nodeid):
        return "ray"
    return nodeid if file.startswith(SPREAD) else file


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return GroupScheduling(config, log)


def uses_shared_ray(item: pytest.Item | None) -> bool:
    """Whether a test asks for the fixture `engine` below, and gets Ray."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.get("engine", ())
    return item.callspec.params.get("engine") == "ray" and any(found.baseid == "tests" for found in definitions)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the shared Ray come first, one after the other."""
    for item in items:
        if uses_shared_ray(item) and {item.path.name, item.originalname} & {*SLOW_ON_RAY}:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)
        if getattr(item, "originalname", "") in WITH_WORKERS and getattr(item.cls, "__name__", "") in SLOW_WITH_WORKERS:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not uses_shared_ray(item))


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared Ray ends after the last test that uses it; any other engine with the tests of its module."""
    if uses_shared_ray(item) and uses_shared_ray(nextitem):
        return
    if uses_shared_ray(item) or nextitem is None or nextitem.path != item.path:
        outplay.shutdown()


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine in turn, with two slots: what a test says of one is true of all."""
    outplay.init(request.param, num_cpus=2)  # does nothing if it is the shared Ray, and runs
    yield request.param
    if request.param != "ray":
        outplay.shutdown()


@pytest.fixture(scope="module")
def process_engine() -> Iterator[None]:
    outplay.init("process", num_cpus=2)
    yield
    outplay.shutdown()


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python text as a program of its own, from an empty folder."""

    def run(text: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(text)
        return subprocess.run(
            [sys.executable, str(script), *args], cwd=tmp_path, capture_output=True, text=True, timeout=90, **options
        )

    return run


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """The level of the package's logger is that of the last algorithm: each test begins without one."""
    yield
    logging.getLogger("outplay").setLevel(logging.NOTSET)

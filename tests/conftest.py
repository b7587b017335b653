"""Fixtures shared by all tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import outplay

ENGINES = ("inline", "process", "ray")
# What these say of Ray is built on what the others say of it.
SLOW_ON_RAY = ("test_util.py", "test_queue.py")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_ON_RAY and "[ray" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine in turn, with two slots: what a test says of one is true of all."""
    outplay.init(request.param, num_cpus=2)
    yield request.param
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

"""Fixtures shared by all tests, and which of them run in one process: see `pytest_collection_modifyitems`."""

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


def uses_shared_ray(item: pytest.Item | None) -> bool:
    """Whether a test asks for the fixture `engine` below, and gets Ray."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.get("engine", ())
    return item.callspec.params.get("engine") == "ray" and any(found.baseid == "tests" for found in definitions)


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that is made once for its module or class, as an engine is."""
    found = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return any(definition.scope in ("module", "class") for definitions in found for definition in definitions)


@pytest.hookimpl(tryfirst=True)  # before -m chooses, and before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs in one process of xdist (`--dist loadgroup`).

    One Ray serves the whole run: all tests that use it run one after the other, and tests with a Ray of their own
    follow when the shared one has ended. Tests that share a fixture stay together. All others run anywhere.
    """
    for item in items:
        if item.path.name in SLOW_ON_RAY and uses_shared_ray(item):
            item.add_marker(pytest.mark.slow)
        if uses_shared_ray(item) or item.path.name == "test_ray.py":
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
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

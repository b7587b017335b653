"""The project itself: it is light to load, and its texts are true."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outplay
from tests.conftest import SPREAD, group_of, uses_shared_ray

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "gymnasium", "ray")


def test_importing_outplay_is_light(run_script: Callable[..., Any]) -> None:
    for module in HEAVY:
        pytest.importorskip(module)
    result = run_script(f"import sys, outplay\nprint([m for m in {HEAVY!r} if m in sys.modules])")
    assert result.stdout.strip() == "[]"


def test_tune_loads_only_what_a_study_needs(run_script: Callable[..., Any], tmp_path: Path) -> None:
    heavy = [m for m in (*HEAVY, "pandas", "optuna", "sklearn", "scipy") if importlib.util.find_spec(m)]
    result = run_script(
        f"import sys, outplay.tune as tune\nprint([m for m in {heavy!r} if m in sys.modules])\n"
        f"found = tune.run(lambda config: {{'v': config['x'], 'loaded': [m for m in {heavy!r} if m in sys.modules]}},"
        f" config={{'x': tune.uniform(0, 1)}}, metric='v', mode='max', storage_path={str(tmp_path)!r}, verbose=0)\n"
        f"print(found.best_result['loaded'])\nprint([m for m in {heavy!r} if m in sys.modules])"
    )
    assert result.stdout.splitlines() == ["[]"] * 3, result.stderr  # imported; in a trial; in the driver at the end


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info"]])
def test_the_command_is_light(arguments: list[str], run_script: Callable[..., Any]) -> None:
    result = run_script(
        f"import sys\nfrom outplay.cli import main\nsys.argv = ['outplay', *{arguments!r}]\ntry:\n    main()\n"
        f"except SystemExit as end:\n    print('ended', end.code)\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert result.stdout.splitlines()[-2:] == ["ended 0", "[]"], result.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [("train --env Cart", "CartPole-v1"), ("evaluate ", ""), ("train cart", "cartpole"), ("train --run P", "PPO")],
)
def test_completion_is_light(words: str, found: str, run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import os, sys\nfrom outplay.cli import main\nos.environ['_OUTPLAY_COMPLETE'] = 'complete_zsh'\n"
        f"os.environ['_TYPER_COMPLETE_ARGS'] = 'outplay {words}'\nsys.argv = ['outplay']\ntry:\n    main()\n"
        f"except SystemExit as end:\n    print('ended', end.code)\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert result.stdout.splitlines()[-2:] == ["ended 0", "[]"], result.stderr
    assert found in result.stdout


def test_using_the_engine_loads_nothing_heavy_either(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import sys, outplay\n@outplay.remote\ndef f():\n    return sorted(sys.modules)\n"
        f"loaded = outplay.get(f.remote())\nprint([m for m in (*{HEAVY!r}, 'numpy') if m in loaded])"
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).parent / "outplay"
    result = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"outplay {outplay.__version__}"
    module = subprocess.run([sys.executable, "-m", "outplay", "info"], capture_output=True, text=True, check=True)
    assert f"outplay      {outplay.__version__}" in module.stdout


def test_a_wrong_command_is_one_sentence_and_exit_code_2() -> None:
    result = subprocess.run([sys.executable, "-m", "outplay", "trian"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "No such command 'trian'" in result.stderr
    assert "Traceback" not in result.stderr


def test_everything_public_is_documented() -> None:
    for name in outplay.__all__:
        thing = getattr(outplay, name)
        if callable(thing):
            assert thing.__doc__, f"outplay.{name} has no docstring"
    assert f"## [{outplay.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_test_file_is_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 500} == {}


def test_all_tests_that_use_the_shared_ray_run_in_one_process(request: pytest.FixtureRequest) -> None:
    shared = [item.nodeid for item in request.session.items if uses_shared_ray(item)]
    assert {group_of(nodeid) for nodeid in [*shared, "tests/engine/test_tasks.py::TestTasks::test_x[ray-1]"]} == {"ray"}
    assert group_of("tests/engine/test_tasks.py::TestTasks::test_x[process]") == "tests/engine/test_tasks.py"
    for path in SPREAD:
        assert (ROOT / path).exists()

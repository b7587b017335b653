"""Names: one table, and what installed packages add to it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import Algorithm, ConfigError, EnvError, registry
from outplay.algorithms import find_algorithm
from outplay.envs import find_env, is_import_path

ALGORITHM = """
from outplay.algorithms.a2c import A2C, A2CConfig

class SlowA2CConfig(A2CConfig):
    lr: float = 1e-5

class SlowA2C(A2C):
    Config = SlowA2CConfig

class Corridor:
    pass
"""
ENVIRONMENT = """
import gymnasium, numpy as np

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def step(self, action):
        self.place += int(action)
        return self.seen(), float(action), self.place >= self.length, False, {}

    def seen(self):
        return np.array([self.place / self.length], np.float32)
"""
ENTRY_POINTS = """
[outplay.algorithms]
SlowA2C = stranger_algorithms:SlowA2C
Broken = stranger_broken:Broken
Missing = stranger_algorithms:Missing
Corridor = stranger_algorithms:Corridor
Alias = stranger_algorithms:SlowA2C
PPO = stranger_algorithms:SlowA2C
Twice = stranger_algorithms:SlowA2C

[outplay.envs]
stranger.Corridor = stranger_envs:Corridor
number = stranger_envs:np.pi

[outplay.callbacks]
count = stranger_envs:Corridor
"""


def install(folder: Path, name: str, entry_points: str, **modules: str) -> None:
    """A distribution as pip would leave it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with two installed packages of strangers."""
    folder = tmp_path / "site"
    install(
        folder,
        "stranger",
        ENTRY_POINTS,
        stranger_algorithms=ALGORITHM,
        stranger_envs=ENVIRONMENT,
        stranger_broken="import a_module_nobody_has\n",
    )
    install(folder, "other", "[outplay.algorithms]\nTwice = other:Other\n", other="")
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    yield
    for module in [name for name in sys.modules if name.startswith("stranger")]:
        del sys.modules[module]


def test_every_name_that_ships_is_its_own_class() -> None:
    for name in registry.algorithms.shipped:
        cls = find_algorithm(name)
        assert cls.__name__ == name
        assert cls.Config.__name__ == f"{name}Config"
        assert {name, f"{name}Config"} <= set(registry.__all__)
    assert len(registry.__all__) == 2 * len(registry.algorithms.shipped)


@pytest.mark.parametrize("module", [outplay, outplay.algorithms, registry])
def test_modules_offer_the_registered_algorithms(module: Any) -> None:
    assert set(registry.__all__) <= set(module.__all__)
    for name in registry.algorithms.shipped:
        assert getattr(module, name) is find_algorithm(name)
        assert getattr(module, f"{name}Config") is find_algorithm(name).Config
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_no_other_module_lists_the_algorithms() -> None:
    """Whoever adds one would forget it there."""
    root = Path(outplay.__file__).parent
    names = set(registry.algorithms.shipped)
    listing = []
    for path in root.rglob("*.py"):
        if path == root / "registry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = names & set(node.value.replace(",", " ").split())
            elif isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ImportFrom)):
                found = names & {n.id if isinstance(n, ast.Name) else str(getattr(n, "name", getattr(n, "value", "")))
                                 for n in ast.walk(node)}  # fmt: skip
            else:
                continue
            if len(found) == len(names):
                listing.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not listing


def test_the_registry_imports_every_algorithm_for_type_checkers() -> None:
    tree = ast.parse(Path(str(registry.__file__)).read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if str(node.module).startswith("outplay.algorithms")
    }
    modules = {name: path.split(":")[0] for name, path in registry.algorithms.shipped.items()}
    assert imported == {**modules, **{f"{name}Config": module for name, module in modules.items()}}


@pytest.mark.slow
def test_type_checkers_know_the_algorithms(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    names = sorted(registry.algorithms.shipped)
    program.write_text(
        f"import outplay\nfrom outplay import {', '.join(names)}\n"
        f"from outplay.algorithms import {', '.join(f'{name}Config' for name in names)}\n"
        + "".join(f"reveal_type({name})\nreveal_type(outplay.{name})\nreveal_type({name}Config)\n" for name in names)
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--follow-imports=silent",
         "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    said = [line for line in result.stdout.splitlines() if "Revealed type" in line]
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(said) == 3 * len(names)
    for name in names:
        assert sum(f"outplay.algorithms.{name.lower()}.{name}" in line for line in said) == 3, said


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_names() -> None:
    assert "SlowA2C" in registry.algorithms.names()
    assert registry.algorithms.names()[: len(registry.algorithms.shipped)] == list(registry.algorithms.shipped)
    assert not [name for name in sys.modules if name.startswith("stranger")]  # nothing is loaded to list them
    found = find_algorithm("slowa2c")
    assert issubclass(found, Algorithm)
    assert (found.__name__, found.__module__) == ("SlowA2C", "stranger_algorithms")
    assert find_algorithm("PPO") is outplay.PPO  # what ships is not replaced
    assert registry.callbacks.load("count").__name__ == "Corridor"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Broken",
            "the package 'stranger' registers the algorithm 'Broken' as 'stranger_broken:Broken', which cannot be "
            "loaded: ModuleNotFoundError: No module named 'a_module_nobody_has'; update or uninstall 'stranger'",
        ),
        ("Missing", "cannot be loaded: AttributeError: module 'stranger_algorithms' has no attribute 'Missing'"),
        ("Corridor", "which is not a subclass of outplay.Algorithm"),
        ("Alias", "the algorithm 'Alias' is the class 'SlowA2C'; register it by its own name"),
        (
            "Twice",
            "the algorithm 'Twice' is registered by several packages ('other', 'stranger'): uninstall all but one",
        ),
        ("SlowA2", "no algorithm 'SlowA2'. Did you mean 'SlowA2C'?"),
    ],
)
def test_an_algorithm_that_cannot_be_had_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_algorithm(name)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_an_environment_of_an_installed_package() -> None:
    name, factory = find_env("stranger.Corridor")
    assert name == "stranger.Corridor"
    assert factory is not None
    assert factory.__name__ == "Corridor"
    assert not is_import_path("stranger.Corridor")  # an installed package names it, no file does
    with pytest.raises(EnvError, match=r"the environment 'number' is 3\.14.*, not a class or a function"):
        find_env("number")


def test_a_name_that_nobody_registers() -> None:
    with pytest.raises(ConfigError, match="no callback 'count'; no installed package registers one"):
        registry.callbacks.load("count")
    assert is_import_path("stranger.Corridor")


@pytest.mark.slow
def test_a_strangers_algorithm_and_environment_are_trained(
    site: Path, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    """In processes that know them by their names alone; resuming finds them again."""
    environment = {**os.environ, "PYTHONPATH": str(site), "OUTPLAY_RESULTS": str(tmp_path / "results")}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "outplay", *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
        )

    trained = command(
        "train", "--run", "SlowA2C", "--env", "stranger.Corridor", "--name", "strange", "--num-workers", "1",
        "--stop", "training_iteration=1", "--config", "train_batch_size=32", "--config", "env_config.length=3",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    resumed = command("train", "--resume", "strange", "--stop", "training_iteration=2")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from iteration 1" in resumed.stderr
    played = command("evaluate", "strange", "--episodes", "2")
    assert "SlowA2C on stranger.Corridor, iteration 2" in played.stdout, played.stderr
    broken = command("train", "--run", "Broken", "--env", "CartPole-v1")
    assert (broken.returncode, len(broken.stderr.splitlines())) == (2, 1)
    assert "the package 'stranger' registers the algorithm 'Broken'" in broken.stderr

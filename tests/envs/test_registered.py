"""Ids and names that are there once a module is imported: in workers, in checkpoints, at the command line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outplay import PPO, CheckpointError, EnvError
from outplay.envs import EnvSpec, check_trust, find_env
from outplay.envs.lookup import import_path

Script = Callable[..., "subprocess.CompletedProcess[str]"]

PACKAGE = {
    "tiny_envs/__init__.py": """
import gymnasium
import outplay
from tiny_envs.core import Walk

gymnasium.register("TinyWalk-v0", entry_point="tiny_envs.core:Walk", max_episode_steps=20)
outplay.register_env("tiny-maze", lambda settings: Walk(**settings))
""",
    "tiny_envs/core.py": """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=3.0):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float(self.np_random.normal())
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += 2 * int(action) - 1 + float(self.np_random.normal())
        return np.array([self.place], np.float32), 1.0, abs(self.place) > self.size, False, {}
""",
}
TRAIN = """
import sys
{imports}
from outplay import PPO

if __name__ == "__main__":
    weights = []
    for num_workers in (0, 2):
        config = {{"num_envs": 4, "train_batch_size": 64, "num_workers": num_workers}}
        with PPO(env={env!r}, config=config) as trainer:
            trainer.train()
            weights.append(trainer.policy.flat.numpy().tobytes())
            print(trainer.save(sys.argv[1]))
    assert weights[0] == weights[1]
    with PPO.from_checkpoint(sys.argv[1]) as again:  # all of it is here: nothing would be imported
        print(again.env_spec.name)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for path, text in PACKAGE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outplay", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "recorded"),
    [
        ("TinyWalk-v0", "tiny_envs.core:TinyWalk-v0"),
        pytest.param("tiny-maze", "tiny_envs:tiny-maze", marks=pytest.mark.slow),
    ],
)
def test_a_name_that_an_import_registers(package: Path, run_script: Script, env: str, recorded: str) -> None:
    saved = package / "saved"
    done = run_script(TRAIN.format(imports="import tiny_envs", env=env), str(saved))
    assert done.returncode == 0, done.stderr
    assert "Overriding" not in done.stderr
    assert done.stdout.splitlines()[-1] == recorded

    refused = cli(package, "evaluate", str(saved), "--episodes", "2")
    assert refused.returncode == 2
    assert f"names the environment {recorded!r}, which would be imported" in refused.stderr
    assert f"--env {recorded}" in refused.stderr
    for given in (["--env", f"tiny_envs:{env}"], ["--trust"]):
        played = cli(package, "evaluate", str(saved), "--episodes", "2", *given)
        assert played.returncode == 0, played.stderr
        assert "2 episodes" in played.stdout


MAIN = """
import gymnasium
from tiny_envs.core import Walk


class Mine(Walk):
    pass


gymnasium.register("Mine-v0", entry_point=Mine, max_episode_steps=15)
"""


@pytest.mark.slow
def test_an_id_that_the_program_itself_registers(package: Path, run_script: Script) -> None:
    done = run_script(TRAIN.format(imports=MAIN, env="Mine-v0"), str(package / "saved"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "program:Mine-v0"
    played = cli(package, "evaluate", str(package / "saved"), "--episodes", "2", "--env", "program:Mine-v0")
    assert played.returncode == 0, played.stderr


@pytest.mark.slow
def test_a_run_at_the_command_line(package: Path) -> None:
    train = ["train", "--env", "tiny_envs:TinyWalk-v0", "--stop", "training_iteration=1", "--results-dir", "results"]
    trained = cli(package, *train, "--config", "num_workers=2", "--config", "train_batch_size=64")
    assert trained.returncode == 0, trained.stderr
    misspelt = cli(package, "train", "--env", "tiny_envs:TinyWolk-v0")
    assert misspelt.returncode == 2
    assert "importing 'tiny_envs' registers no 'TinyWolk-v0'. Did you mean 'TinyWalk-v0'?" in misspelt.stderr


def test_what_comes_with_gymnasium_needs_no_module() -> None:
    for name in (
        "CartPole-v1",
        "ALE/Pong-v5",
        "PongDifference",
        "envpool/Pong-v5",
        "maze:Maze",
        "custom_env.CustomEnv",
    ):
        assert import_path(name) == name


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("highway_env:highway-fast-v0", "highway-fast-v0"),
        ("highway_env:highway-fast-v0", "highway_env.envs.highway_env:highway-fast-v0"),
        ("maze.Maze", "maze:Maze"),
        ("CartPole-v1", "gymnasium:CartPole-v1"),
    ],
)
def test_two_names_of_one_environment(given: str, recorded: str) -> None:
    check_trust(recorded, given, recorded.startswith("gymnasium:"), "it", "repeat it")


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("other:highway-fast-v0", "highway_env:highway-fast-v0"),
        ("highway_env:highway-v0", "highway_env:highway-fast-v0"),
        ("package.one:Maze", "package.two:Maze"),
        ("CartPole-v1", "Acrobot-v1"),
    ],
)
def test_two_environments(given: str, recorded: str) -> None:
    with pytest.raises(CheckpointError, match="is of the environment"):
        check_trust(recorded, given, True, "it", "repeat it")


def test_an_id_alone_does_not_repeat_the_module_in_a_file() -> None:
    for recorded, given in (("evil:CartPole-v1", "CartPole-v1"), ("evil:Unheard-v0", "Unheard-v0")):
        for repeated in (None, given):
            with pytest.raises(CheckpointError, match="would be imported"):
                check_trust(recorded, repeated, False, "it", "repeat it")


INSTALL = {"minigrid": "minigrid", "highway_env": "highway-env", "shimmy": "'shimmy[dm-control]'"}
FAMILIES = {
    "MiniGrid-Empty-5x5-v0": "minigrid",
    "BabyAI-GoToObj-v0": "minigrid",
    "highway-fast-v0": "highway_env",
    "dm_control/cartpole-balance-v0": "shimmy",
}
MEANT = {
    "Pong-v4": "ALE/Pong-v5",
    "PongNoFrameskip-v4": "ALE/Pong-v5",
    "SpaceInvadersDeterministic-v4": "ALE/SpaceInvaders-v5",
    "Breakout-ram-v0": "ALE/Breakout-v5",
    "Taxi-v3": "Taxi-v4",
    "LunarLander-v2": "LunarLander-v3",
    "CarRacing-v0": "CarRacing-v3",
    "Ant-v9": "Ant-v5",
    "mountaincar-v0": "MountainCar-v0",
}


def test_an_unknown_id_says_what_to_type(run_script: Script) -> None:
    """In a program of its own: ids may be registered here by now."""
    names = [*FAMILIES, *MEANT, "Nothing-v0"]
    done = run_script(
        f"""
from outplay import EnvError
from outplay.envs import find_env

for name in {names}:
    try:
        find_env(name)
    except EnvError as error:
        print(error)
"""
    )
    expected = []
    for name, module in FAMILIES.items():
        install = "" if importlib.util.find_spec(module) else f"pip install {INSTALL[module]}, and "
        expected.append(
            f"no environment {name!r} before {module!r} is imported: {install}name it {module + ':' + name!r}"
        )
    expected += [f"no environment {name!r}. Did you mean {meant!r}?" for name, meant in MEANT.items()]
    assert done.stdout.splitlines()[:-1] == expected, done.stderr
    assert "a Gymnasium id, an import path (module:Class)" in done.stdout.splitlines()[-1]


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_a_version_that_is_gone_names_the_newest() -> None:
    name, factory = find_env("HalfCheetah-v2")
    with pytest.raises(
        EnvError, match=r"'HalfCheetah-v2' could not be created .*; the newest version is 'HalfCheetah-v5'"
    ):
        EnvSpec(name, factory).make()


@pytest.mark.filterwarnings("ignore")
def test_highway(process_engine: None, tmp_path: Path) -> None:
    """Tested where it is installed."""
    pytest.importorskip("highway_env")
    results = []
    for name, num_workers in (("highway-fast-v0", 0), ("highway-fast-v0", 2), ("highway_env:highway-fast-v0", 2)):
        config = {"num_envs": 2, "num_workers": num_workers, "train_batch_size": 16, "num_sgd_iter": 1}
        with PPO(env=name, config=config) as trainer:
            trainer.train()
            results.append(trainer.policy.flat.numpy().tobytes())
            trainer.save(tmp_path)
    assert len(set(results)) == 1
    with PPO.from_checkpoint(tmp_path, env="highway_env:highway-fast-v0") as again:
        again.train()
